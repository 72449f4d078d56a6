"""PTX ISA, Data Movement and Conversion Instructions: cvt, cvt.pack.

Floating point to integer clamps to the range of the result; a NaN becomes 0, but where the source
is f64 or the result has 64 bits, the result's top bit alone.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.isa.half import rounded_half
from sparsekit.emulator.numeric import rounding
from sparsekit.emulator.numeric.integers import saturated
from sparsekit.emulator.numeric.narrow import (
    BF16,
    F16,
    FORMATS,
    bf16_bits,
    bf16_value,
    decode,
    encode,
    f16_value,
    tf32_bits,
)
from sparsekit.emulator.source import DTYPES, WIDTH_BYTES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Operand

CHAPTER = Chapter("Data Movement and Conversion Instructions: cvt")
_I = "u8|u16|u32|u64|s8|s16|s32|s64"
_WIDER = "u16|u32|u64|s16|s32|s64"
_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@CHAPTER.form(f"cvt sat? d={_I} t={_I}", 2)
def between_integers(w: Writer, m: Matched) -> None:
    source, target = DTYPES[m["t"]], DTYPES[m["d"]]
    if m["sat"] and np.can_cast(source, target):
        raise m.unsupported(f"saturation, where {m['d']} holds all that {m['t']} does")
    a = w.read(m.operands[1], source)
    if m["sat"]:
        w.write(m.operands[0], f"{w.fn(saturated_integer)}({a}, {target!r})", target)
    elif source == target:
        w.write(m.operands[0], a, target)
    else:
        w.write(m.operands[0], f"{a}.astype({target})", target)


def saturated_integer(a: Array, dtype: str) -> Array:
    """An integer clamped to the range of another type."""
    if a.dtype == np.uint64:
        return np.minimum(a, np.uint64(np.iinfo(dtype).max)).astype(dtype)
    wide = a.astype("i8")
    if dtype == "u8":
        result: Array = np.maximum(wide, 0).astype("u8")
        return result
    return saturated(wide, dtype)


@CHAPTER.form(f"cvt rnd=rn|rz|rm|rp ftz? sat? d=f32 t={_I}", 2)
@CHAPTER.form(f"cvt rnd=rn|rz|rm|rp sat? d=f16|f64 t={_I}", 2)
@CHAPTER.form(f"cvt rnd=rn|rz|rm|rp d=bf16 t={_WIDER}", 2)
def from_integer(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], DTYPES[m["t"]])
    _write_float(w, m, f"{w.fn(integer_to_float)}({a}, {m['d']!r}, {m['rnd']!r})")


def integer_to_float(a: Array, kind: str, mode: str) -> Array:
    """An integer as f32 or f64, or as a double (rounded to odd) for a half."""
    exact = a.dtype.itemsize < 8
    wide = a.astype("f8")
    if not exact:
        low = (a & a.dtype.type(0x7FF)).astype("f8")
        wide = rounding.odd_sum((a & ~a.dtype.type(0x7FF)).astype("f8"), low)
    if kind == "f64":
        if exact:
            return wide
        low = (a & a.dtype.type(0x7FF)).astype("f8")
        high = (a & ~a.dtype.type(0x7FF)).astype("f8")
        return high + low if mode == "rn" else rounding.add_f64(high, low, mode)
    return rounding.to_f32(wide, mode) if kind == "f32" else wide


def _write_float(w: Writer, m: Matched, name: str) -> None:
    """Write f32 or f64 as it is, a double for a half rounded to it."""
    kind = m["d"]
    if kind in ("f16", "bf16"):
        call = f"{w.fn(float_to_half)}({name}, {kind!r}, {m['rnd'] or 'rn'!r}, {bool(m['sat'])})"
        w.write(m.operands[0], call, "u2")
        return
    if m["sat"]:
        name = f"{w.fn(rounding.saturate)}({name})"
    w.write(m.operands[0], name, DTYPES[kind])


def float_to_half(x: Array, kind: str, mode: str, sat: bool) -> Array:
    if mode == "rn" or mode.endswith("i"):
        return rounded_half(x.astype("f8"), kind, sat, False, False)
    if sat:
        x = rounding.saturate(x)
    return encode(x.astype("f8"), F16 if kind == "f16" else BF16, mode).astype("u2")


def _read_float(w: Writer, m: Matched, operand: Operand, kind: str) -> str:
    """An operand of a floating type as f32 or f64."""
    if kind in ("f16", "bf16"):
        convert = w.fn(f16_value if kind == "f16" else bf16_value)
        name = w.temp(f"{convert}({w.read(operand, 'u2')})")
    else:
        name = w.read(operand, DTYPES[kind])
    return w.temp(f"{w.fn(rounding.flush)}({name})") if m["ftz"] and kind == "f32" else name


@CHAPTER.form(f"cvt rnd=rni|rzi|rmi|rpi ftz? sat? d={_I} t=f32", 2)
@CHAPTER.form(f"cvt rnd=rni|rzi|rmi|rpi sat? d={_I} t=f16|f64", 2)
@CHAPTER.form(f"cvt rnd=rni|rzi|rmi|rpi d={_WIDER} t=bf16", 2)
def to_integer(w: Writer, m: Matched) -> None:
    a = _read_float(w, m, m.operands[1], m["t"])
    target = DTYPES[m["d"]]
    call = f"{w.fn(float_to_integer)}({a}, {target!r}, {m['rnd']!r})"
    w.write(m.operands[0], call, target)


def float_to_integer(x: Array, dtype: str, mode: str) -> Array:
    """Rounded to an integer and clamped."""
    limits = np.iinfo(dtype)
    wide = _TO_INTEGER[mode](x.astype("f8"))
    nan = np.isnan(wide)
    low, high = float(limits.min), float(limits.max)
    over, under = wide >= high, wide <= low
    inside = np.where(nan | over | under, 0.0, wide).astype(dtype)
    kind = np.dtype(dtype).type
    result = np.where(over, kind(limits.max), np.where(under, kind(limits.min), inside))
    of_nan = kind(0)
    if x.dtype == np.float64 or WIDTH_BYTES[dtype] == 8:
        of_nan = kind(limits.min if dtype[0] == "i" else limits.max // 2 + 1)
    return np.where(nan, of_nan, result)


@CHAPTER.form("cvt rnd=rni|rzi|rmi|rpi ftz? sat? d=f32 t=f32", 2)
@CHAPTER.form("cvt rnd=rni|rzi|rmi|rpi sat? d=f64 t=f64", 2)
@CHAPTER.form("cvt rnd=rni|rzi|rmi|rpi sat? d=f16 t=f16", 2)
@CHAPTER.form("cvt rnd=rni|rzi|rmi|rpi d=bf16 t=bf16", 2)
def integral(w: Writer, m: Matched) -> None:
    """Rounded to an integer that stays in its floating type."""
    a = _read_float(w, m, m.operands[1], m["t"])
    name = w.temp(f"{w.fn(rounded_integral)}({a}, {m['rnd']!r})")
    _write_float(w, m, name)


def rounded_integral(x: Array, mode: str) -> Array:
    return np.copysign(_TO_INTEGER[mode](x), x)


@CHAPTER.form("cvt ftz? sat? d=f32 t=f16|f32", 2)
@CHAPTER.form("cvt ftz? d=f32 t=bf16", 2)
@CHAPTER.form("cvt ftz? sat? d=f64 t=f32", 2)
@CHAPTER.form("cvt sat? d=f64 t=f16|f64", 2)
@CHAPTER.form("cvt d=f64 t=bf16", 2)
@CHAPTER.form("cvt sat? d=f16 t=f16", 2)
@CHAPTER.form("cvt d=bf16 t=bf16", 2)
def widen(w: Writer, m: Matched) -> None:
    a = _read_float(w, m, m.operands[1], m["t"])
    if m["d"] == "f64":
        a = f"{a}.astype(f8)"
    elif m["ftz"] and m["t"] == "bf16":  # whose subnormal numbers are those of f32
        a = f"{w.fn(rounding.flush)}({a})"
    _write_float(w, m, a)


@CHAPTER.form("cvt rnd=rn|rz|rm|rp ftz? sat? d=f32 t=f64", 2)
def double_to_single(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], "f8")
    function = rounding.to_ftz_f32 if m["ftz"] else rounding.to_f32
    _write_float(w, m, f"{w.fn(function)}({a}, {m['rnd']!r})")


@CHAPTER.form("cvt rnd=rn|rz|rm|rp? d=f16 t=bf16", 2)
@CHAPTER.form("cvt rnd=rn|rz|rm|rp? d=bf16 t=f16", 2)
@CHAPTER.form("cvt rnd=rn|rz|rm|rp sat? d=f16 t=f64", 2)
@CHAPTER.form("cvt rnd=rn|rz|rm|rp d=bf16 t=f64", 2)
@CHAPTER.form("cvt rnd=rm|rp ftz? sat? d=f16 t=f32", 2)
@CHAPTER.form("cvt rnd=rm|rp ftz? d=bf16 t=f32", 2)
@CHAPTER.form("cvt rnd=rn|rz ftz? sat d=f16 t=f32", 2)
@CHAPTER.form("cvt rnd=rn|rz ftz d=f16|bf16 t=f32", 2)
def to_half(w: Writer, m: Matched) -> None:
    a = _read_float(w, m, m.operands[1], m["t"])
    _write_float(w, m, a)


@CHAPTER.form("cvt rnd=rn|rz relu? satfinite? d=f16|bf16 t=f32", 2)
@CHAPTER.form("cvt rnd=rn|rz relu? satfinite? d=f16x2|bf16x2 t=f32", 3)
def single_to_half(w: Writer, m: Matched) -> None:
    names = [_read_float(w, m, o, "f32") for o in m.operands[1:]]
    kind = m["d"].removesuffix("x2")
    flags = f"{m['rnd']!r}, {bool(m['relu'])}, {bool(m['satfinite'])}"
    bits = [f"{w.fn(single_as_half)}({name}, {kind!r}, {flags})" for name in names]
    if len(bits) == 2:
        w.write(m.operands[0], f"({bits[0]} << {w.const(16, 'u4')}) | {bits[1]}", "u4")
    else:
        w.write(m.operands[0], f"{bits[0]}.astype(u2)", "u2")


def single_as_half(x: Array, kind: str, mode: str, relu: bool, satfinite: bool) -> Array:
    """f32 as bits of a half, u4."""
    if kind == "bf16" and mode == "rn" and not (relu or satfinite):
        return bf16_bits(x)
    form = F16 if kind == "f16" else BF16
    return encode(x.astype("f8"), form, mode, satfinite=satfinite, relu=relu)


@CHAPTER.form("cvt rnd=rna|rn|rz d=tf32 t=f32", 2)
def to_tf32(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], "f4")
    w.write(m.operands[0], f"{w.fn(tf32_bits)}({a}, {m['rnd']!r})", "u4")


@CHAPTER.form("cvt rn satfinite relu? d=e4m3x2|e5m2x2 t=f32", 3)
@CHAPTER.form("cvt rn satfinite relu? d=e4m3x2|e5m2x2 t=f16x2", 2)
def to_fp8(w: Writer, m: Matched) -> None:
    kind, relu = m["d"].removesuffix("x2"), bool(m["relu"])
    if m["t"] == "f32":
        high, low = (w.read(o, "f4") for o in m.operands[1:])
    else:
        bits = w.read(m.operands[1], "u4")
        convert = w.fn(f16_value)
        high = f"{convert}(({bits} >> {w.const(16, 'u4')}).astype(u2))"
        low = f"{convert}({bits}.astype(u2))"
    pack = w.fn(pair_as_fp8)
    w.write(m.operands[0], f"{pack}({high}, {low}, {kind!r}, {relu})", "u2")


def pair_as_fp8(high: Array, low: Array, kind: str, relu: bool) -> Array:
    form = FORMATS[kind]
    upper, lower = (encode(x.astype("f8"), form, satfinite=True, relu=relu) for x in (high, low))
    return ((upper << np.uint32(8)) | lower).astype("u2")


@CHAPTER.form("cvt rn relu? d=f16x2 t=e4m3x2|e5m2x2", 2)
def from_fp8(w: Writer, m: Matched) -> None:
    bits = w.read(m.operands[1], "u2")
    call = f"{w.fn(fp8_as_halves)}({bits}, {m['t'].removesuffix('x2')!r}, {bool(m['relu'])})"
    w.write(m.operands[0], call, "u4")


def fp8_as_halves(bits: Array, kind: str, relu: bool) -> Array:
    form = FORMATS[kind]
    upper, lower = (
        encode(decode(part, form), F16, relu=relu) for part in (bits >> np.uint16(8), bits)
    )
    return (upper << np.uint32(16)) | lower


@CHAPTER.form("cvt pack sat d=u16|s16 t=s32", 3)
@CHAPTER.form("cvt pack sat d=u8|s8 t=s32 c=b32", 4)
def pack(w: Writer, m: Matched) -> None:
    """Two integers, saturated, below them what c holds."""
    target = DTYPES[m["d"]]
    bits = 8 * WIDTH_BYTES[target]
    call = w.fn(saturated)
    parts = [
        f"{call}({w.read(o, 'i4')}, {target!r}).view(u{bits // 8}).astype(u4)"
        for o in m.operands[1:3]
    ]
    low = f"({parts[0]} << {w.const(bits, 'u4')}) | {parts[1]}"
    if m["c"]:
        low = f"({w.read(m.operands[3], 'u4')} << {w.const(2 * bits, 'u4')}) | {low}"
    w.write(m.operands[0], low, "u4")
