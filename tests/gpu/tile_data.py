"""Data for tiles: integers that leave nothing to round, random values, and values at the edges."""

from __future__ import annotations

import zlib

import numpy as np
import tile_bits
from tile_bits import FP8, INTEGERS
from tile_forms import Form, Tiles

INTEGRAL, RANDOM, SUBNORMAL, SPECIAL, DIRTY = "integers", "random", "subnormal", "special", "dirty"
_LEAST_EXPONENT = {"bf16": -126, "f16": -14, "tf32": -126, "e4m3": -6, "e5m2": -14}
_SPREAD_BITS = 6  # binary orders of magnitude over which half of the random tiles are spread


def kinds_of(form: Form) -> tuple[str, ...]:
    """The data sets that a form is compared on."""
    if form.d in INTEGERS:
        return (INTEGRAL,)
    dirty = (DIRTY,) if form.a == "tf32" else ()
    return (INTEGRAL, RANDOM, SUBNORMAL, SPECIAL, *dirty)


def make_tiles(form: Form, kind: str, count: int) -> Tiles:
    """The same tiles for the same form, kind and count."""
    rng = np.random.default_rng(zlib.crc32(f"{form.name} {kind}".encode()))
    return _MAKERS[kind](form, count, rng)


def _encoded(form: Form, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Tiles:
    return Tiles(
        tile_bits.encode(a, form.a), tile_bits.encode(b, form.b), tile_bits.encode(c, form.d)
    )


def _shapes(form: Form, count: int) -> tuple[tuple[int, int, int], ...]:
    m, n, k = form.sizes
    return (count, m, k), (count, n, k), (count, m, n)


def _integral(form: Form, count: int, rng: np.random.Generator) -> Tiles:
    """Of integer types all values; of others so small that 2^11 holds every sum."""
    a, b, c = _shapes(form, count)
    if form.d in INTEGERS:
        low, high = (
            {"s8": (-128, 128), "u8": (0, 256)}[form.a],
            {"s8": (-128, 128), "u8": (0, 256)}[form.b],
        )
        far = rng.integers(-(2**31), 2**31, c)  # so that sums wrap, or saturate
        near = rng.integers(-1000, 1000, c)
        late = np.arange(count)[:, None, None] % 2 == 1
        return _encoded(
            form, rng.integers(*low, a), rng.integers(*high, b), np.where(late, far, near)
        )
    return _encoded(
        form, rng.integers(-4, 5, a), rng.integers(-4, 5, b), rng.integers(-100, 101, c)
    )


def _random(form: Form, count: int, rng: np.random.Generator) -> Tiles:
    """Normal values; in every other tile over several orders of magnitude."""
    parts = []
    for shape in _shapes(form, count):
        spread = np.exp2(rng.uniform(-_SPREAD_BITS / 2, _SPREAD_BITS / 2, shape))
        wide = np.arange(count)[:, None, None] % 2 == 1
        parts.append(rng.standard_normal(shape) * np.where(wide, spread, 1.0))
    return _encoded(form, *parts)


def _subnormal(form: Form, count: int, rng: np.random.Generator) -> Tiles:
    """A of subnormal numbers and B around 1 in three tiles of four, so that D is tiny where its
    type reaches as far down; in the fourth C alone is subnormal."""
    a, b, c = _shapes(form, count)
    last = np.arange(count)[:, None, None] % 4 == 3
    tiny_a = np.ldexp(rng.uniform(-1, 1, a), _LEAST_EXPONENT[form.a])
    tiny_c = np.ldexp(rng.uniform(-1, 1, c), -126 if form.d == "f32" else -14)
    zero = np.arange(count)[:, None, None] % 4 == 2
    return _encoded(
        form, np.where(last, 0.0, tiny_a), rng.standard_normal(b), np.where(zero, 0.0, tiny_c)
    )


def _special(form: Form, count: int, rng: np.random.Generator) -> Tiles:
    """Random tiles with a few inf, NaN, signed zeros and largest values in A, B and C."""
    tiles = _random(form, count, rng)
    kinds = (form.a, form.b, form.d)
    for bits, kind in zip((tiles.a, tiles.b, tiles.c), kinds, strict=True):
        largest = {"e4m3": 448.0, "e5m2": 57344.0, "f16": 65504.0}.get(kind, 3.3e38)
        values = [np.inf, -np.inf, np.nan, 0.0, -0.0, largest, -largest]
        if kind == "e4m3":  # it has no infinities
            values = values[2:]
        edges = tile_bits.encode(np.array(values), kind)
        flat = bits.reshape(count, -1)
        for tile in range(count):
            where = rng.integers(0, flat.shape[1], 2)
            flat[tile, where] = edges[rng.integers(0, len(edges), 2)]
    return tiles


def _dirty(form: Form, count: int, rng: np.random.Generator) -> Tiles:
    """tf32 operands with bits where tf32 has none: the ISA leaves open what becomes of them."""
    clean = _random(form, count, rng)
    low = np.uint32(0x1FFF)
    return Tiles(
        clean.a | rng.integers(0, low, clean.a.shape, np.uint32, endpoint=True),
        clean.b | rng.integers(0, low, clean.b.shape, np.uint32, endpoint=True),
        clean.c,
    )


_MAKERS = {
    INTEGRAL: _integral, RANDOM: _random, SUBNORMAL: _subnormal, SPECIAL: _special, DIRTY: _dirty,
}  # fmt: skip


def unit_of(form: Form) -> float:
    """What a term may lose against the sum of all terms' magnitudes when it is added.

    fp8 on Hopper keeps 13 bits behind the point of the largest term (arXiv 2511.10909), other types
    single precision.
    """
    return 2.0**-13 if form.a in FP8 else 2.0**-23


def bound_of(form: Form) -> float:
    """The largest difference of two sums of a tile's terms, against the terms' magnitudes."""
    rounding = 2.0**-10 if form.d == "f16" else 2.0**-23
    return (form.k + 2) * unit_of(form) + rounding
