"""The .approx functions of f32 and f64, computed in double precision and rounded once.

Source: PTX ISA, Floating Point Instructions: the tables of special values. A GPU's results may
differ in the last bits, within the errors that the ISA gives.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array

_HUGE = np.float32(2.0**126)
_F64_UPPER_BITS = np.uint64(0xFFFF_FFFF_0000_0000)


def ex2(x: Array) -> Array:
    result: Array = np.exp2(x.astype("f8")).astype("f4")
    return result


def lg2(x: Array) -> Array:
    result: Array = np.log2(x.astype("f8")).astype("f4")
    return result


def rcp(x: Array) -> Array:
    return np.float32(1) / x


def rsqrt(x: Array) -> Array:
    result: Array = (1.0 / np.sqrt(x.astype("f8"))).astype("f4")
    return result


def sqrt(x: Array) -> Array:
    return np.sqrt(x)


def sin(x: Array) -> Array:
    result: Array = np.sin(x.astype("f8")).astype("f4")
    return result


def cos(x: Array) -> Array:
    result: Array = np.cos(x.astype("f8")).astype("f4")
    return result


def tanh(x: Array) -> Array:
    result: Array = np.tanh(x.astype("f8")).astype("f4")
    return result


def div(a: Array, b: Array) -> Array:
    """div.approx: a (1/b); 0 for a divisor in (2^126, 2^128), where 1/b is flushed."""
    quotient = a / b
    large = (np.abs(b) > _HUGE) & np.isfinite(b)
    if not np.count_nonzero(large):
        return quotient
    flushed = a * np.copysign(np.float32(0), b)
    return np.where(large, flushed, quotient)


def _upper(x: Array) -> Array:
    """A double without the lower half of its bits."""
    return (x.view("u8") & _F64_UPPER_BITS).view("f8")


def _upper_normal(x: Array) -> Array:
    """The upper half of a double's bits, a subnormal number flushed to a zero of its sign."""
    upper = _upper(x)
    return np.where(np.abs(upper) < 2.0**-1022, np.copysign(0.0, upper), upper)


def rcp_f64(x: Array) -> Array:
    """rcp.approx.ftz.f64: from and to the upper 32 bits of a double, subnormals flushed."""
    return _upper_normal(1.0 / _upper_normal(x))


def rsqrt_f64(x: Array) -> Array:
    """rsqrt.approx.f64: subnormals are supported."""
    return 1.0 / np.sqrt(x)


def rsqrt_ftz_f64(x: Array) -> Array:
    """rsqrt.approx.ftz.f64: from and to the upper 32 bits of a double, subnormals flushed."""
    return _upper(1.0 / np.sqrt(_upper_normal(x)))
