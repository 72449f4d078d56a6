"""The published model of how tensor cores add, to see whether it gives a GPU's bits.

A group of products and the accumulator are aligned to the largest exponent among them, cut to so
many bits behind it, and added exactly; the sum is cut to single precision, and the next group goes
on from it. Source: arXiv 2511.10909 and 2512.07004.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tile_bits
from tile_bits import FP8
from tile_forms import Form, Tiles

_NO_EXPONENT = -4000
_F32_LEAST_EXPONENT, _F32_MANTISSA_BITS = -126, 23


@dataclass(frozen=True)
class Model:
    """bits: kept behind the largest exponent. group: products added at once. result_bits: of the
    mantissa that is handed on."""

    bits: int
    group: int
    result_bits: int = _F32_MANTISSA_BITS


def models_of(form: Form) -> Iterator[Model]:
    """Those worth trying."""
    groups = [g for g in (4, 8, 16, 32) if g <= form.k]
    for bits in (13, 14, 25) if form.a in FP8 else (23, 24, 25, 26):
        for group in groups:
            yield Model(bits, group)
            if form.a in FP8:
                yield Model(bits, group, 13)


def accumulate(form: Form, model: Model, tiles: Tiles) -> np.ndarray:
    """D of the tiles as bits, [tiles, m, n]."""
    a, b = tile_bits.decode(tiles.a, form.a), tile_bits.decode(tiles.b, form.b)
    total = form.kept(tile_bits.decode(tiles.c, form.d))
    for start in range(0, form.k, model.group):
        part = slice(start, start + model.group)
        total = _add(form, model, a[:, :, None, part], b[:, None, :, part], total)
    return tile_bits.encode(total, form.d)


def _add(form: Form, model: Model, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> np.ndarray:
    terms = np.concatenate([form.signed(a * b), total[..., None]], axis=3)
    exponents = np.concatenate(
        [_exponent(a, form.a) + _exponent(b, form.b), _exponent(total, form.d)[..., None]], axis=3
    )
    exponents = np.where(terms == 0, _NO_EXPONENT, exponents)
    largest = exponents.max(axis=3)
    scale = np.where(largest == _NO_EXPONENT, 0, model.bits - largest)
    cut = np.trunc(np.ldexp(terms, scale[..., None])).sum(axis=3)
    return _toward_zero(np.ldexp(cut, -scale), model.result_bits)


def _exponent(x: np.ndarray, kind: str) -> np.ndarray:
    """Of the leading bit; of a subnormal number the least of the type."""
    least = {"bf16": -126, "f16": -14, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}[kind]
    return np.maximum(np.frexp(x)[1] - 1, least)


def _toward_zero(x: np.ndarray, bits: int) -> np.ndarray:
    exponent = np.maximum(np.frexp(x)[1] - 1, _F32_LEAST_EXPONENT)
    return np.ldexp(np.trunc(np.ldexp(x, bits - exponent)), exponent - bits)
