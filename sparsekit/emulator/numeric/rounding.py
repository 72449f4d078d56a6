"""Exactly rounded arithmetic in single and double precision, in all four IEEE directions.

Single precision is computed in double precision rounded to odd, which a second rounding cannot
spoil (Boldo and Melquiond, 2008, "Emulation of FMA and correctly rounded sums"). Modes are PTX's:
rn to nearest even, rz towards zero, rm down, rp up.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array

_LOW_BITS = np.uint64(0x0FFF_FFFF)  # of a double, below what a float and its half way point hold
_HALF_WAY_BITS, _HALF_WAY = np.uint64(0x1FFF_FFFF), np.uint64(0x1000_0000)
_SPLIT = 134_217_729.0  # 2^27 + 1, Dekker's
_SAFE_LOW, _SAFE_HIGH = 2.0**-400, 2.0**400
_SMALLEST_NORMAL = np.float32(2.0**-126)


def flush(x: Array) -> Array:
    """Subnormal f32 values become zeros of the same sign (.ftz)."""
    bits = x.view("u4")
    tiny = (bits & np.uint32(0x7F80_0000)) == 0
    if not np.count_nonzero(tiny):
        return x
    return np.where(tiny, bits & np.uint32(0x8000_0000), bits).view("f4")


def saturate(x: Array) -> Array:
    """To [0, 1]; NaN and -0 become +0 (.sat)."""
    result: Array = np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))
    return result


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b = sum + error exactly, where nothing overflows (Knuth)."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def to_odd(s: Array, error: Array) -> Array:
    """s + error rounded to odd, s being it rounded to nearest."""
    bits = s.view("i8")
    inexact = (error != 0) & np.isfinite(error) & np.isfinite(s) & ((bits & 1) == 0)
    if not np.count_nonzero(inexact):
        return s
    outwards = (error > 0) == (s > 0)
    return np.where(inexact, bits + np.where(outwards, 1, -1), bits).view("f8")


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in double precision, rounded to odd."""
    return to_odd(*two_sum(a, b))


def to_f32(x: Array, mode: str = "rn") -> Array:
    """A double, exact or rounded to odd, as f32."""
    r = x.astype("f4")
    if mode == "rn":
        return r
    back = r.astype("f8")
    toward = np.float32(0)
    if mode == "rz":
        wrong = np.abs(back) > np.abs(x)
    elif mode == "rm":
        wrong, toward = back > x, np.float32(-np.inf)
    else:
        wrong, toward = back < x, np.float32(np.inf)
    return np.where(wrong, np.nextafter(r, toward), r)


def _rounded_sum(a: Array, b: Array, mode: str) -> Array:
    """The sum of doubles as f32; in mode rm an exact sum of opposites is -0."""
    total = odd_sum(a, b)
    result = to_f32(total, mode)
    if mode != "rm":
        return result
    opposite = (total == 0) & (np.signbit(a) != np.signbit(b))
    return np.where(opposite, np.float32(-0.0), result)


def flush_result(r: Array, mode: str, exact: Callable[[], Array]) -> Array:
    """.ftz of r, a result of single precision that may be tiny and inexact.

    A result is tiny when it is below 2^-126 after rounding to 24 bits with exponents of any size:
    one that only the coarse steps of subnormal numbers lift to 2^-126 becomes 0. Seen on an H200
    (docs/emulator.md). exact: what was rounded, as a double, exact or rounded to odd.
    """
    edge = np.abs(r) == _SMALLEST_NORMAL
    if np.count_nonzero(edge):
        twice = to_f32(2.0 * exact(), mode)  # its steps are those of 24 bits
        edge &= np.abs(twice) < 2 * _SMALLEST_NORMAL
        r = np.where(edge, np.copysign(np.float32(0), r), r)
    return flush(r)


def add_f32(a: Array, b: Array, mode: str) -> Array:
    if mode == "rn":
        return a + b
    return _rounded_sum(a.astype("f8"), b.astype("f8"), mode)


def mul_f32(a: Array, b: Array, mode: str) -> Array:
    return a * b if mode == "rn" else to_f32(a.astype("f8") * b, mode)


def mul_ftz_f32(a: Array, b: Array, mode: str) -> Array:
    return flush_result(mul_f32(a, b, mode), mode, lambda: a.astype("f8") * b)


def div_f32(a: Array, b: Array, mode: str) -> Array:
    # A quotient of floats is no nearer to a float than a double can tell, unless it is one.
    return a / b if mode == "rn" else to_f32(a.astype("f8") / b, mode)


def div_ftz_f32(a: Array, b: Array, mode: str) -> Array:
    return flush_quotient(div_f32(a, b, mode), a, b, mode)


def flush_quotient(r: Array, a: Array, b: Array, mode: str = "rn") -> Array:
    """.ftz of r, which is a / b, if need be approximately."""
    return flush_result(r, mode, lambda: a.astype("f8") / b)


def sqrt_f32(a: Array, mode: str) -> Array:
    return np.sqrt(a) if mode == "rn" else to_f32(np.sqrt(a.astype("f8")), mode)


def fma_rn_f32(a: Array, b: Array, c: Array) -> Array:
    """a b + c, rounded once to nearest even."""
    product = a.astype("f8") * b
    total = product + c
    # Rounding twice differs from once only where the double ends like a half way point.
    if not np.minimum.reduce(total.view("u8") & _LOW_BITS) and _is_half_way(total):
        total = to_odd(*two_sum(product, c.astype("f8")))
    return total.astype("f4")


def _is_half_way(total: Array) -> bool:
    """Whether any double may be half way between floats: of subnormal ones, by a lower bit."""
    ends = (total.view("u8") & _HALF_WAY_BITS) == _HALF_WAY
    small = (np.abs(total) < _SMALLEST_NORMAL) & (total != 0)
    return bool(np.count_nonzero(ends | small))


def fma_f32(a: Array, b: Array, c: Array, mode: str) -> Array:
    if mode == "rn":
        return fma_rn_f32(a, b, c)
    return _rounded_sum(a.astype("f8") * b, c.astype("f8"), mode)


def fma_ftz_f32(a: Array, b: Array, c: Array, mode: str) -> Array:
    def exact() -> Array:
        return odd_sum(a.astype("f8") * b, c.astype("f8"))

    return flush_result(fma_f32(a, b, c, mode), mode, exact)


def to_ftz_f32(x: Array, mode: str) -> Array:
    """A double as f32, flushed."""
    return flush_result(to_f32(x, mode), mode, lambda: x)


# ---- double precision


def _directed(s: Array, error: Array, mode: str) -> Array:
    """s + error rounded in a direction, s being it rounded to nearest."""
    if mode == "rz":
        wrong, toward = (error != 0) & ((error < 0) == (s > 0)), 0.0
    elif mode == "rm":
        wrong, toward = error < 0, -np.inf
    else:
        wrong, toward = error > 0, np.inf
    return np.where(wrong, np.nextafter(s, toward), s)


def add_f64(a: Array, b: Array, mode: str) -> Array:
    if mode == "rn":
        return a + b
    return _lanes(lambda x, y: x + y, mode, _add, a, b)


def mul_f64(a: Array, b: Array, mode: str) -> Array:
    return a * b if mode == "rn" else _lanes(lambda x, y: x * y, mode, np.multiply, a, b)


def div_f64(a: Array, b: Array, mode: str) -> Array:
    return a / b if mode == "rn" else _lanes(_quotient, mode, np.divide, a, b)


def sqrt_f64(a: Array, mode: str) -> Array:
    root = np.sqrt(a)
    if mode == "rn":
        return root
    error = np.zeros_like(root)
    for lane, (x, r) in enumerate(zip(a.tolist(), root.tolist(), strict=True)):
        if np.isfinite(r):
            left = Fraction(x) - Fraction(r) ** 2
            error[lane] = (left > 0) - (left < 0)
    return _directed(root, error, mode)


def fma_f64(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a b + c, rounded once: error-free transformations, exact fractions near the range's ends."""
    if mode != "rn":
        return _lanes(lambda x, y, z: x * y + z, mode, _multiply_add, a, b, c)
    high, low = _two_product(a, b)
    upper, lower = two_sum(c, low)
    result_high, result_low = two_sum(high, upper)
    result = result_high + odd_sum(lower, result_low)
    sizes = [np.abs(x) for x in (a, b, c, high)]
    hard = ~np.logical_and.reduce([((s > _SAFE_LOW) | (s == 0)) & (s < _SAFE_HIGH) for s in sizes])
    hard |= (high == 0) & (a != 0) & (b != 0)
    if hard.any():
        exact = _lanes(lambda x, y, z: x * y + z, mode, _multiply_add, a[hard], b[hard], c[hard])
        result[hard] = exact
    zero = (high == 0) & (low == 0)
    return np.where(zero & ~hard, high + c, result)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    p = a * b
    ta, tb = a * _SPLIT, b * _SPLIT
    ah, bh = ta - (ta - a), tb - (tb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _add(a: Array, b: Array) -> Array:
    return a + b


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _quotient(x: Fraction, y: Fraction) -> Fraction:
    return x / y


def _lanes(
    exact: Callable[..., Fraction], mode: str, plain: Callable[..., Any], *operands: Array
) -> Array:
    """Lane by lane in exact fractions; where that is not finite, or exactly 0, as plain gives it.

    The sign of an exact sum of 0 is the mode's.
    """
    results = np.array(plain(*operands), np.float64)
    is_sum = plain in (_add, _multiply_add)
    for lane, values in enumerate(zip(*(o.tolist() for o in operands), strict=True)):
        if not all(np.isfinite(values)):
            continue
        try:
            value = exact(*map(Fraction, values))
        except ZeroDivisionError:
            continue
        if value != 0:
            results[lane] = round_f64(value, mode)
        elif is_sum:
            results[lane] = _zero_sum(values, mode)
    return results


def _zero_sum(values: tuple[float, ...], mode: str) -> float:
    """An exact sum of 0: of equal zeros that zero, of opposites +0, or -0 in mode rm."""
    first = values[0] * values[1] if len(values) == 3 else values[0]
    negative = bool(np.signbit(first)), bool(np.signbit(values[-1]))
    if first == 0 and values[-1] == 0 and negative[0] == negative[1]:
        return -0.0 if negative[0] else 0.0
    return -0.0 if mode == "rm" else 0.0


def round_f64(value: Fraction, mode: str) -> float:
    """An exact number other than 0 as a double."""
    try:
        nearest = float(value)
    except OverflowError:
        nearest = np.inf if value > 0 else -np.inf
    if mode == "rn":
        return nearest
    if np.isinf(nearest):
        error = -1 if nearest > 0 else 1
    else:
        difference = value - Fraction(nearest)
        error = (difference > 0) - (difference < 0)
    if nearest == 0:  # to_nearest took a tiny number to 0
        tiny = 5e-324
        up = mode == "rp" and value > 0
        down = mode == "rm" and value < 0
        return tiny if up else -tiny if down else (0.0 if value > 0 else -0.0)
    s, e = np.array([nearest]), np.array([float(error)])
    return float(_directed(s, e, mode)[0])
