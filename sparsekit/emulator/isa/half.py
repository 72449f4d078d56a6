"""PTX ISA, Half Precision Floating Point Instructions; Mixed Precision Floating Point Instructions.

f16 and bf16, alone and in pairs. Halves are computed in double precision, rounded to odd where
that is not exact, and rounded once to the format.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.isa.floating import chosen_extreme, result
from sparsekit.emulator.numeric import approximate, rounding
from sparsekit.emulator.numeric.narrow import BF16, F16, bf16_value, encode, f16_value, quantised
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Operand

CHAPTER = Chapter("Half Precision Floating Point Instructions")
_F16, _BF16 = "t=f16|f16x2", "t=bf16|bf16x2"
_SMALLEST_NORMAL = 2.0**-14


def _read(w: Writer, operand: Operand, kind: str) -> str:
    """An operand as f32, both halves of a pair in turn."""
    convert = w.fn(f16_value if kind.startswith("f16") else bf16_value)
    if kind.endswith("x2"):
        return w.temp(f"{convert}(ascontiguousarray({w.read(operand, 'u4')}).view(u2))")
    return w.temp(f"{convert}({w.read(operand, 'u2')})")


def _sources(w: Writer, m: Matched) -> list[str]:
    names = [_read(w, o, m["t"]) for o in m.operands[1:]]
    if not m["ftz"]:
        return names
    flush = flushed_half if m["t"].startswith("f16") else rounding.flush
    return [w.temp(f"{w.fn(flush)}({name})") for name in names]


def _write(w: Writer, m: Matched, wide: str) -> None:
    """Round a double to the form's type and write it."""
    kind = m["t"]
    name = kind.removesuffix("x2")
    flags = f"{bool(m['sat'])}, {bool(m['relu'])}, {bool(m['ftz'])}"
    bits = f"{w.fn(rounded_half)}({wide}, {name!r}, {flags})"
    if kind.endswith("x2"):
        w.write(m.operands[0], f"{bits}.view(u4)", "u4")
    else:
        w.write(m.operands[0], bits, "u2")


def flushed_half(x: Array) -> Array:
    """Values that are subnormal as f16 become zeros."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def rounded_half(x: Array, kind: str, sat: bool, relu: bool, ftz: bool) -> Array:
    """Doubles as bits of f16 or bf16 (u2)."""
    if sat:
        x = np.where(x > 0, np.minimum(x, 1.0), 0.0)
    form = F16 if kind == "f16" else BF16
    bits = encode(x, form, relu=relu)
    if ftz:  # tiny as in rounding.flush_result: rounded where steps are those of normal numbers
        tiny = np.abs(quantised(2.0 * x, form)) < 2.0 * 2.0 ** (1 - form.bias)
        bits = np.where(tiny, bits & np.uint32(0x8000), bits)
    return bits.astype("u2")


def half_fma(a: Array, b: Array, c: Array) -> Array:
    """a b + c of halves as a double rounded to odd."""
    return rounding.odd_sum(a.astype("f8") * b, c.astype("f8"))


def half_sum(a: Array, b: Array) -> Array:
    return rounding.odd_sum(a.astype("f8"), b.astype("f8"))


@CHAPTER.form(f"add rn? ftz? sat? {_F16}", 3)
@CHAPTER.form(f"sub rn? ftz? sat? {_F16}", 3)
@CHAPTER.form(f"mul rn? ftz? sat? {_F16}", 3)
@CHAPTER.form(f"add rn? {_BF16}", 3)
@CHAPTER.form(f"sub rn? {_BF16}", 3)
@CHAPTER.form(f"mul rn? {_BF16}", 3)
def arithmetic(w: Writer, m: Matched) -> None:
    a, b = _sources(w, m)
    if m.form.base == "mul":
        _write(w, m, f"{a}.astype(f8) * {b}")
    else:
        sign = "-" if m.form.base == "sub" else ""
        _write(w, m, f"{w.fn(half_sum)}({a}, {sign}{b})")


@CHAPTER.form(f"fma rn ftz? sat? {_F16}", 4)
@CHAPTER.form(f"fma rn ftz? relu {_F16}", 4)
@CHAPTER.form(f"fma rn relu? {_BF16}", 4)
def fma(w: Writer, m: Matched) -> None:
    a, b, c = _sources(w, m)
    _write(w, m, f"{w.fn(half_fma)}({a}, {b}, {c})")


@CHAPTER.form(f"neg ftz? {_F16}", 2)
@CHAPTER.form(f"abs ftz? {_F16}", 2)
@CHAPTER.form(f"neg {_BF16}", 2)
@CHAPTER.form(f"abs {_BF16}", 2)
def negate(w: Writer, m: Matched) -> None:
    (a,) = _sources(w, m)
    wide = f"abs({a})" if m.form.base == "abs" else f"-{a}"
    _write(w, m, f"({wide}).astype(f8)")


@CHAPTER.form(f"min ftz? nan=NaN? xor=xorsign? abs? {_F16}", 3)
@CHAPTER.form(f"max ftz? nan=NaN? xor=xorsign? abs? {_F16}", 3)
@CHAPTER.form(f"min nan=NaN? xor=xorsign? abs? {_BF16}", 3)
@CHAPTER.form(f"max nan=NaN? xor=xorsign? abs? {_BF16}", 3)
def extreme(w: Writer, m: Matched) -> None:
    _write(w, m, f"{chosen_extreme(w, m, _sources(w, m))}.astype(f8)")


@CHAPTER.form(f"ex2 approx {_F16}", 2)
@CHAPTER.form(f"ex2 approx ftz {_BF16}", 2)
@CHAPTER.form("tanh approx t=f16|f16x2|bf16|bf16x2", 2)
def approximated(w: Writer, m: Matched) -> None:
    (a,) = _sources(w, m)
    function = approximate.ex2 if m.form.base == "ex2" else approximate.tanh
    _write(w, m, f"{w.fn(function, f'approximate_{m.form.base}')}({a}).astype(f8)")


@CHAPTER.form("add rnd=rn|rz|rm|rp? sat? d=f32 t=f16|bf16", 3)
@CHAPTER.form("sub rnd=rn|rz|rm|rp? sat? d=f32 t=f16|bf16", 3)
@CHAPTER.form("fma rnd=rn|rz|rm|rp sat? d=f32 t=f16|bf16", 4)
def mixed(w: Writer, m: Matched) -> None:
    """The last operand and the result are f32, the others halves."""
    *halves, last = m.operands[1:]
    names = [_read(w, o, m["t"]) for o in halves]
    c, mode = w.read(last, "f4"), m["rnd"] or "rn"
    if m.form.base == "fma":
        call = f"{w.fn(rounding.fma_f32)}({', '.join(names)}, {c}, {mode!r})"
    else:
        sign = "-" if m.form.base == "sub" else ""
        call = f"{w.fn(rounding.add_f32)}({names[0]}, {sign}{c}, {mode!r})"
    result(w, m, call, "f4")
