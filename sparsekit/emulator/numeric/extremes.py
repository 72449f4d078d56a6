"""min and max of floating-point numbers. Source: PTX ISA, Floating Point Instructions: min, max."""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array


def maximum_of(a: Array, b: Array, nan: bool) -> Array:
    """The larger; +0 over -0; NaN wins with nan, else the number."""
    result = np.maximum(a, b) if nan else np.fmax(a, b)
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, a + b, result) if np.count_nonzero(zeros) else result


def minimum_of(a: Array, b: Array, nan: bool) -> Array:
    """The smaller; -0 under +0; NaN wins with nan, else the number."""
    result = np.minimum(a, b) if nan else np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    if not np.count_nonzero(zeros):
        return result
    negative = np.signbit(a) | np.signbit(b)
    return np.where(zeros, np.where(negative, -np.abs(a), a), result)


def with_xor_of_signs(value: Array, *sources: Array) -> Array:
    """value with the exclusive or of the sources' signs (.xorsign.abs); a NaN stays."""
    sign = np.signbit(sources[0])
    for source in sources[1:]:
        sign = sign ^ np.signbit(source)
    return np.where(np.isnan(value), value, np.where(sign, -np.abs(value), np.abs(value)))
