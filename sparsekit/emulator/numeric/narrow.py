"""Formats narrower than f32: f16, bf16, tf32, fp8, and rounding to them.

Sources: PTX ISA, Fundamental Types, Alternate Floating-Point Data Formats; OCP 8-bit Floating
Point Specification. Values travel as doubles, which hold all of them exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.numeric.rounding import to_f32


@dataclass(frozen=True)
class Format:
    """A binary format. has_inf: the top exponent holds inf and NaN, else values, one a NaN."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_inf: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def largest(self) -> float:
        if self.has_inf:
            return float((2 - 2.0**-self.mantissa_bits) * 2.0**self.bias)
        return float((2 - 2.0 ** (1 - self.mantissa_bits)) * 2.0 ** (self.bias + 1))

    @property
    def nan(self) -> int:
        """The NaN that instructions make."""
        return (1 << (self.bits - 1)) - 1


F16 = Format("f16", 5, 10)
BF16 = Format("bf16", 8, 7)
TF32 = Format("tf32", 8, 10)
E4M3 = Format("e4m3", 4, 3, has_inf=False)
E5M2 = Format("e5m2", 5, 2)
_TF32_BITS = np.uint32(0xFFFF_E000)
FORMATS = {f.name: f for f in (F16, BF16, TF32, E4M3, E5M2)}


def bf16_bits(x: Array) -> Array:
    """f32 to bf16, to nearest even, as u2; a NaN becomes 0x7FFF."""
    bits = x.view("u4") if x.flags.c_contiguous else np.ascontiguousarray(x).view("u4")
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = x != x
    if np.count_nonzero(nan):
        rounded = np.where(nan, np.uint32(0x7FFF), rounded)
    return rounded


def bf16_value(bits: Array) -> Array:
    """bf16 bits, as any unsigned type, to f32."""
    return (bits.astype("u4") << np.uint32(16)).view("f4")


def f16_value(bits: Array) -> Array:
    """f16 bits (u2) to f32."""
    return bits.view("f2").astype("f4")


def _nearest_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil, "rna": _nearest_away,
}  # fmt: skip


def quantised(x: Array, kind: Format, mode: str = "rn") -> Array:
    """x (f8, exact or rounded to odd) to the nearest value of the format, without a largest one.

    mode: rn, rz, rm, rp, or rna: to nearest, ties away from zero.
    """
    _, exponent = np.frexp(x)
    unit_exponent = np.maximum(exponent - 1, 1 - kind.bias) - kind.mantissa_bits
    scaled = np.ldexp(x, -unit_exponent)
    rounded = _ROUNDINGS[mode](scaled)
    result: Array = np.where(np.isfinite(x), np.ldexp(rounded, unit_exponent), x)
    return np.copysign(result, x)


def encode(
    x: Array, kind: Format, mode: str = "rn", *, satfinite: bool = False, relu: bool = False
) -> Array:
    """x (f8) as bits of the format (u4). Out of range: inf, or the largest value.

    satfinite: the largest value instead of inf, of infinite x too. relu: negative becomes 0, and
    NaN the format's NaN, as always.
    """
    value = quantised(x, kind, mode)
    if relu:
        value = np.where(value < 0, 0.0, value)
        value = np.where(value == 0, 0.0, value)
    magnitude = np.abs(value)
    over = magnitude > kind.largest
    clamps = satfinite or not kind.has_inf
    if not clamps and mode in ("rz", "rm", "rp"):
        inward = np.full(x.shape, mode == "rz")
        inward |= (value > 0) if mode == "rm" else (value < 0) if mode == "rp" else False
        clamped = over & inward & np.isfinite(x)
        magnitude = np.where(clamped, kind.largest, magnitude)
        over &= ~clamped
    if clamps:
        magnitude = np.where(over, kind.largest, magnitude)
        over = np.zeros_like(over)
    bits = _magnitude_bits(magnitude, kind)
    infinity = ((1 << kind.exponent_bits) - 1) << kind.mantissa_bits
    bits = np.where(over, infinity, bits)
    bits |= np.where(np.signbit(value), 1 << (kind.bits - 1), 0)
    return np.where(np.isnan(x), kind.nan, bits).astype("u4")


def _magnitude_bits(magnitude: Array, kind: Format) -> Array:
    """Bits without sign of values that the format holds."""
    finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
    _, exponent = np.frexp(finite)
    field = np.maximum(exponent - 1, 1 - kind.bias)
    mantissa = np.ldexp(finite, kind.mantissa_bits - field).astype("i8")
    normal = mantissa >> kind.mantissa_bits
    biased = np.where(normal > 0, field + kind.bias, 0)
    bits: Array = (biased << kind.mantissa_bits) | (mantissa & ((1 << kind.mantissa_bits) - 1))
    return bits


def decode(bits: Array, kind: Format) -> Array:
    """Bits (any unsigned type) as doubles."""
    table = _TABLES.get(kind.name)
    if table is None:
        table = _TABLES[kind.name] = _values(kind)
    return table.take(bits.astype("u4") & np.uint32((1 << kind.bits) - 1))


_TABLES: dict[str, Array] = {}


def _values(kind: Format) -> Array:
    codes = np.arange(1 << kind.bits)
    mantissa = codes & ((1 << kind.mantissa_bits) - 1)
    field = (codes >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    normal = field > 0
    scale = np.where(normal, field, 1) - kind.bias - kind.mantissa_bits
    value = np.ldexp((mantissa + np.where(normal, 1 << kind.mantissa_bits, 0)).astype("f8"), scale)
    top = field == (1 << kind.exponent_bits) - 1
    if kind.has_inf:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where(top & (mantissa == (1 << kind.mantissa_bits) - 1), np.nan, value)
    return np.where(codes >> (kind.bits - 1), -value, value)


def tf32_bits(x: Array, mode: str) -> Array:
    """f32 to tf32, kept in 32 bits with the low 13 bits zero.

    A NaN becomes 0x7FFF_FFFF; but .rna cuts its low bits off, and may leave an infinity: ptxas
    makes it of integer instructions, and an H200 does so.
    """
    value = to_f32(quantised(x.astype("f8"), TF32, mode))
    nan = x.view("u4") & _TF32_BITS if mode == "rna" else np.uint32(0x7FFF_FFFF)
    return np.where(np.isnan(x), nan, value.view("u4"))
