"""PTX arithmetic on one number at a time, in integers and fractions: what tests compare with.

Written from the text of the PTX ISA and IEEE 754, without numpy and without the emulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

NAN, INF, FINITE = "nan", "inf", "finite"


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int
    has_inf: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> Fraction:
        if self.has_inf:
            return (2 - Fraction(1, 2**self.mantissa_bits)) * Fraction(2) ** self.bias
        return (2 - Fraction(2, 2**self.mantissa_bits)) * Fraction(2) ** (self.bias + 1)


F64, F32, F16, BF16 = Format(11, 52), Format(8, 23), Format(5, 10), Format(8, 7)
TF32, E4M3, E5M2 = Format(8, 10), Format(4, 3, has_inf=False), Format(5, 2)


@dataclass(frozen=True)
class Number:
    """A floating-point number apart from its format; a zero keeps its sign."""

    kind: str
    negative: bool = False
    value: Fraction = Fraction(0)

    def __neg__(self) -> Number:
        return Number(self.kind, not self.negative, -self.value)

    @property
    def is_zero(self) -> bool:
        return self.kind == FINITE and self.value == 0


def finite(value: Fraction, negative_zero: bool = False) -> Number:
    return Number(FINITE, value < 0 or (value == 0 and negative_zero), value)


def decode(bits: int, form: Format) -> Number:
    negative = bool(bits >> (form.bits - 1) & 1)
    exponent = bits >> form.mantissa_bits & (2**form.exponent_bits - 1)
    mantissa = bits & (2**form.mantissa_bits - 1)
    top = 2**form.exponent_bits - 1
    if form.has_inf and exponent == top:
        return Number(NAN, negative) if mantissa else Number(INF, negative)
    if not form.has_inf and exponent == top and mantissa == 2**form.mantissa_bits - 1:
        return Number(NAN, negative)
    if exponent == 0:
        magnitude = Fraction(mantissa) * Fraction(2) ** (1 - form.bias - form.mantissa_bits)
    else:
        whole = mantissa + 2**form.mantissa_bits
        magnitude = Fraction(whole) * Fraction(2) ** (exponent - form.bias - form.mantissa_bits)
    return Number(FINITE, negative, -magnitude if negative else magnitude)


def round_integer(value: Fraction, mode: str) -> int:
    """rn (ties to even), rna (ties away), rz, rm, rp."""
    floor = value.numerator // value.denominator
    rest = value - floor
    if mode == "rm" or rest == 0:
        return floor
    if mode == "rp":
        return floor + 1
    if mode == "rz":
        return floor if value > 0 else floor + 1
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    if mode == "rna":
        return floor + 1 if value > 0 else floor
    return floor + (floor & 1)


def encode(number: Number, form: Format, mode: str = "rn", satfinite: bool = False) -> int:
    sign = int(number.negative) << (form.bits - 1)
    infinity = (2**form.exponent_bits - 1) << form.mantissa_bits
    if number.kind == NAN:
        return 2 ** (form.bits - 1) - 1
    clamps = satfinite or not form.has_inf
    if number.kind == INF:
        return sign | (encode(finite(form.largest), form) if clamps else infinity)
    magnitude = abs(number.value)
    if magnitude == 0:
        return sign
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    exponent = max(exponent, 1 - form.bias)
    unit = Fraction(2) ** (exponent - form.mantissa_bits)
    signed = -magnitude if number.negative else magnitude
    units = abs(round_integer(signed / unit, mode))
    rounded = units * unit
    if rounded > form.largest:
        inward = mode == "rz" or (mode == "rm" and not number.negative)
        inward |= mode == "rp" and number.negative
        if clamps or inward:
            return sign | encode(finite(form.largest), form)
        return sign | infinity
    if units >= 2 ** (form.mantissa_bits + 1):
        units, exponent = units // 2, exponent + 1
    if units < 2**form.mantissa_bits:
        return sign | units
    field = exponent + form.bias
    return sign | field << form.mantissa_bits | (units - 2**form.mantissa_bits)


def add(a: Number, b: Number, mode: str = "rn") -> Number:
    if NAN in (a.kind, b.kind) or (a.kind == b.kind == INF and a.negative != b.negative):
        return Number(NAN)
    if INF in (a.kind, b.kind):
        return a if a.kind == INF else b
    total = a.value + b.value
    if total == 0:
        if a.negative == b.negative:
            return finite(total, a.negative)
        return finite(total, mode == "rm")
    return finite(total)


def multiply(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if NAN in (a.kind, b.kind):
        return Number(NAN)
    if INF in (a.kind, b.kind):
        return Number(NAN) if a.is_zero or b.is_zero else Number(INF, negative)
    return finite(a.value * b.value, negative)


def fma(a: Number, b: Number, c: Number, mode: str = "rn") -> Number:
    return add(multiply(a, b), c, mode)


def divide(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if NAN in (a.kind, b.kind) or (a.kind == b.kind == INF) or (a.is_zero and b.is_zero):
        return Number(NAN)
    if a.kind == INF or b.is_zero:
        return Number(INF, negative)
    if b.kind == INF:
        return finite(Fraction(0), negative)
    return finite(a.value / b.value, negative)


def square_root(a: Number, extra_bits: int = 80) -> Number:
    """Exact where it is rational, else with so many bits that no rounding can tell."""
    if a.is_zero or (a.kind == INF and not a.negative):
        return a
    if a.kind != FINITE or a.negative:
        return Number(NAN)
    shift = 2 * (extra_bits + 1100)
    scaled = a.value.numerator * 2**shift // a.value.denominator
    root = isqrt(scaled)
    exact = root * root == scaled and a.value.numerator * 2**shift % a.value.denominator == 0
    tail = 0 if exact else Fraction(1, 2)
    return finite(Fraction(root + tail) / 2 ** (shift // 2))


def flush(bits: int, form: Format) -> int:
    """.ftz: a subnormal becomes a zero of its sign."""
    exponent = bits >> form.mantissa_bits & (2**form.exponent_bits - 1)
    return bits & 1 << (form.bits - 1) if exponent == 0 else bits


def flush_rounded(number: Number, form: Format, mode: str) -> int:
    """.ftz of a result: a zero of its sign where it is below the smallest normal number even when
    it is rounded with an exponent of any size."""
    bits = encode(number, form, mode)
    if number.kind != FINITE:
        return bits
    twice = encode(finite(2 * number.value, number.negative), form, mode)
    tiny = twice >> form.mantissa_bits & (2**form.exponent_bits - 1) <= 1
    return bits & 1 << (form.bits - 1) if tiny else bits


def saturate(number: Number) -> Number:
    """.sat: to [0, 1], NaN to +0."""
    if number.kind == NAN or number.negative:
        return finite(Fraction(0))
    if number.kind == INF or number.value > 1:
        return finite(Fraction(1))
    return number


def less(a: Number, b: Number) -> bool:
    def key(n: Number) -> Fraction:
        huge = Fraction(2) ** 2000
        return (-huge if n.negative else huge) if n.kind == INF else n.value

    return key(a) < key(b)


def equal(a: Number, b: Number) -> bool:
    return not less(a, b) and not less(b, a)


def extreme(a: Number, b: Number, largest: bool, nan: bool) -> Number:
    """max or min; -0 is less than +0; a NaN loses, unless nan says that it wins."""
    if NAN in (a.kind, b.kind):
        if nan or a.kind == b.kind == NAN:
            return Number(NAN)
        return b if a.kind == NAN else a
    if a.is_zero and b.is_zero:
        both = (a.negative and b.negative) if largest else (a.negative or b.negative)
        return finite(Fraction(0), both)
    first_is_less = less(a, b)
    return (b if first_is_less else a) if largest else (a if first_is_less else b)


# ---- integers


def signed(x: int, bits: int) -> int:
    x &= 2**bits - 1
    return x - 2**bits if x >> (bits - 1) else x


def as_integer(bits: int, kind: str) -> int:
    """The value of a bit pattern as u32, s16, b8, ..."""
    width = int(kind[1:])
    return signed(bits, width) if kind[0] == "s" else bits & (2**width - 1)


def clamp(value: int, kind: str) -> int:
    width = int(kind[1:])
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if kind[0] == "s" else (0, 2**width - 1)
    return max(low, min(high, value))
