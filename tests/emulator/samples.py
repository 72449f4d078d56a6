"""Bit patterns to try instructions on: the edges of each type, and random ones."""

from __future__ import annotations

import random
import struct
from itertools import product

from scalar_model import BF16, E4M3, E5M2, F16, F32, F64, Format

FORMATS = {"f32": F32, "f64": F64, "f16": F16, "bf16": BF16, "e4m3": E4M3, "e5m2": E5M2}


def integers(bits: int) -> list[int]:
    edges = {0, 1, 2, 3, 7, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1), 2 ** (bits - 1) - 1}
    edges |= {2 ** (bits - 1) + 1, 5, 0x5A % 2**bits, 2 ** (bits // 2), 2 ** (bits // 2) - 1}
    return sorted(edges)


def floats(form: Format) -> list[int]:
    """Zeros, infinities, NaN, the ends of the subnormal and normal ranges, numbers about 1."""
    m, top = form.mantissa_bits, (2**form.exponent_bits - 1) << form.mantissa_bits
    one = form.bias << m
    smallest_normal = 1 << m
    found = [
        0,
        1,
        3,
        smallest_normal - 1,
        smallest_normal,
        smallest_normal + 1,
        smallest_normal * 3,
    ]
    found += [one - 1, one, one + 1, one + (1 << (m - 1)), one + 2 ** (m - 1) + 1, one + (2 << m)]
    found += [one - (3 << m) + 5, one + (m << m), one + ((m + 1) << m) + 1, top - 1, top - (1 << m)]
    found += [top, top + 1, top + (1 << (m - 1))]
    sign = 1 << (form.bits - 1)
    return [b | s for b in found for s in (0, sign)]


def pairs(values: list[int], extra: int, bits: int, seed: int = 0) -> list[tuple[int, int]]:
    """All pairs of the values, and random ones."""
    rng = random.Random(seed)
    found = list(product(values, values))
    return found + [(rng.getrandbits(bits), rng.getrandbits(bits)) for _ in range(extra)]


def triples(values: list[int], extra: int, bits: int, seed: int = 0) -> list[tuple[int, ...]]:
    """So many triples of the values, and as many that mix them with random ones."""
    rng = random.Random(seed)
    found = [tuple(rng.choice(values) for _ in range(3)) for _ in range(extra)]
    found += [tuple(rng.getrandbits(bits) for _ in range(3)) for _ in range(extra)]
    return found


def near(form: Format, count: int, seed: int = 0) -> list[int]:
    """Random numbers whose exponents are close together, so that sums and products interact."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        exponent = form.bias + rng.randint(-6, 6)
        mantissa = rng.getrandbits(form.mantissa_bits)
        if rng.random() < 0.3:
            mantissa &= ~((1 << (form.mantissa_bits // 2)) - 1)
        found.append(
            rng.getrandbits(1) << (form.bits - 1) | exponent << form.mantissa_bits | mantissa
        )
    return found


def f32_bits(x: float) -> int:
    return struct.unpack("<I", struct.pack("<f", x))[0]


def columns(rows: list[tuple[int, ...]]) -> list[list[int]]:
    return [list(column) for column in zip(*rows, strict=True)]


def is_nan(bits: int, form: Format) -> bool:
    return (bits & (2 ** (form.bits - 1) - 1)) > ((2**form.exponent_bits - 1) << form.mantissa_bits)


def same_float(found: int, wanted: int, form: Format) -> bool:
    """The same bits; a NaN has any."""
    return found == wanted or (is_nan(found, form) and is_nan(wanted, form))
