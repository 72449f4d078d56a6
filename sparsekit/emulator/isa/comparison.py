"""PTX ISA, Comparison and Selection Instructions; Half Precision Comparison Instructions."""

from __future__ import annotations

from sparsekit.emulator.isa.half import flushed_half
from sparsekit.emulator.numeric.narrow import bf16_value, f16_value
from sparsekit.emulator.numeric.rounding import flush
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Operand, Pair

CHAPTER = Chapter("Comparison and Selection Instructions")
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_SIGNS = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED = {"neu": "==", "ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_COMBINE = {"and": "&", "or": "|", "xor": "^"}

_INTEGERS = {
    "cmp=eq|ne": "t=b16|b32|b64", "cmp=eq|ne|lt|le|gt|ge": "t=s16|s32|s64",
    "cmp=eq|ne|lt|le|gt|ge|lo|ls|hi|hs": "t=u16|u32|u64",
}  # fmt: skip
_COMPARE = "cmp=eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_FLOATS = ("ftz? t=f32", "t=f64")
_HALVES = ("ftz? t=f16", "t=bf16")
_PAIRS = ("ftz? t=f16x2", "t=bf16x2")
_TYPES = "b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64"
_BOOL = "op=and|or|xor"


def compared(comparison: str, a: str, b: str, *, is_float: bool) -> str:
    """The expression for a comparison; an unordered one is true for a NaN."""
    if comparison == "num":
        return f"~(isnan({a}) | isnan({b}))"
    if comparison == "nan":
        return f"isnan({a}) | isnan({b})"
    if comparison == "equ":
        return f"~(({a} < {b}) | ({a} > {b}))"
    if comparison in _UNORDERED:
        return f"~({a} {_UNORDERED[comparison]} {b})"
    sign = {**_SIGNS, **_UNSIGNED_SIGNS}[comparison]
    if comparison == "ne" and is_float:
        return f"({a} < {b}) | ({a} > {b})"
    return f"{a} {sign} {b}"


def _sources(w: Writer, m: Matched, kind: str) -> tuple[str, str]:
    if kind in ("f16", "bf16"):
        convert = w.fn(f16_value if kind == "f16" else bf16_value)
        names = [w.temp(f"{convert}({w.read(o, 'u2')})") for o in m.operands[1:3]]
    else:
        names = [w.read(o, DTYPES[kind]) for o in m.operands[1:3]]
    if m["ftz"]:
        flushed = w.fn(flushed_half if kind == "f16" else flush)
        names = [w.temp(f"{flushed}({name})") for name in names]
    return names[0], names[1]


def _register(chapter: Chapter) -> None:
    """Each comparison with the types that it may have, alone and combined with a predicate."""
    for op, count in (("", 3), (f" {_BOOL}", 4)):
        for names, types in _INTEGERS.items():
            chapter.form(f"setp {names}{op} {types}", count)(setp)
            chapter.form(f"set {names}{op} d=u32|s32|f32 {types}", count)(set_value)
        for types in (*_FLOATS, *_HALVES):
            chapter.form(f"setp {_COMPARE}{op} {types}", count)(setp)
        for types in _PAIRS:
            chapter.form(f"setp {_COMPARE}{op} {types}", count)(setp_halves)
        for types in _FLOATS:
            target = "d=u32|s32|f32"
            chapter.form(f"set {_COMPARE}{op} {_with(types, target)}", count)(set_value)
        for types in _HALVES:
            target = f"d=u32|s32|u16|s16|{types.partition('t=')[2]}"
            chapter.form(f"set {_COMPARE}{op} {_with(types, target)}", count)(set_value)
        for types in _PAIRS:
            target = f"d=u32|s32|{types.partition('t=')[2]}"
            chapter.form(f"set {_COMPARE}{op} {_with(types, target)}", count)(set_halves)


def _with(types: str, target: str) -> str:
    """The types of the operands with that of the result before them."""
    before, _, after = types.rpartition("t=")
    return f"{before}{target} t={after}"


def setp(w: Writer, m: Matched) -> None:
    a, b = _sources(w, m, m["t"])
    result = w.temp(compared(m["cmp"], a, b, is_float="f" in m["t"]))
    _write_predicates(w, m, m.operands[0], result)


def _write_predicates(w: Writer, m: Matched, target: Operand, result: str) -> None:
    """p and, for a pair, its opposite, each combined with the third source."""
    sign = _COMBINE.get(m["op"])
    other = w.read(m.operands[3], "?") if sign else ""
    both = f"{result} {sign} {other}" if sign else result
    if isinstance(target, Pair):
        opposite = f"~{result}"
        w.write(target.second, f"{opposite} {sign} {other}" if sign else opposite, "?")
        target = target.first
    w.write(target, both, "?")


def setp_halves(w: Writer, m: Matched) -> None:
    target = m.operands[0]
    if not isinstance(target, Pair):
        raise m.unsupported("setp of packed halves writes a pair")
    sign = _COMBINE.get(m["op"])
    other = w.read(m.operands[3], "?") if sign else ""
    for half, place in ((target.first, 0), (target.second, 1)):
        a, b = (_half(w, o, m["t"], place, bool(m["ftz"])) for o in m.operands[1:3])
        result = f"({compared(m['cmp'], a, b, is_float=True)})"
        w.write(half, f"{result} {sign} {other}" if sign else result, "?")


def _half(w: Writer, operand: Operand, kind: str, place: int, ftz: bool) -> str:
    bits = w.read(operand, "u4")
    bits = f"({bits} >> {w.const(16 * place, 'u4')}).astype(u2)"
    name = w.temp(f"{w.fn(f16_value if kind == 'f16x2' else bf16_value)}({bits})")
    return w.temp(f"{w.fn(flushed_half if kind == 'f16x2' else flush)}({name})") if ftz else name


def set_value(w: Writer, m: Matched) -> None:
    a, b = _sources(w, m, m["t"])
    result = f"({compared(m['cmp'], a, b, is_float='f' in m['t'])})"
    if m["op"]:
        result = f"({result} {_COMBINE[m['op']]} {w.read(m.operands[3], '?')})"
    true = {"f32": 0x3F80_0000, "f16": 0x3C00, "bf16": 0x3F80}.get(m["d"], -1)
    dtype = "u4" if m["d"] in ("f32", "u32", "s32") else "u2"
    w.write(m.operands[0], f"where({result}, {w.const(true, dtype)}, {w.const(0, dtype)})", dtype)


def set_halves(w: Writer, m: Matched) -> None:
    true = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(m["d"], 0xFFFF)
    parts = []
    for place in (0, 1):
        a, b = (_half(w, o, m["t"], place, bool(m["ftz"])) for o in m.operands[1:3])
        result = f"({compared(m['cmp'], a, b, is_float=True)})"
        if m["op"]:
            result = f"({result} {_COMBINE[m['op']]} {w.read(m.operands[3], '?')})"
        value = w.const(true << 16 * place, "u4")
        parts.append(f"where({result}, {value}, {w.const(0, 'u4')})")
    w.write(m.operands[0], " | ".join(parts), "u4")


@CHAPTER.form(f"selp t={_TYPES}", 4)
def selp(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = w.read(m.operands[1], dtype), w.read(m.operands[2], dtype)
    w.write(m.operands[0], f"where({w.read(m.operands[3], '?')}, {a}, {b})", dtype)


@CHAPTER.form(f"slct t={_TYPES} c=s32", 4)
@CHAPTER.form(f"slct ftz? t={_TYPES} c=f32", 4)
def slct(w: Writer, m: Matched) -> None:
    """a where c >= 0, else b; a NaN selects b."""
    dtype = DTYPES[m["t"]]
    a, b = w.read(m.operands[1], dtype), w.read(m.operands[2], dtype)
    c = w.read(m.operands[3], DTYPES[m["c"]])
    if m["ftz"]:
        c = w.temp(f"{w.fn(flush)}({c})")
    w.write(m.operands[0], f"where({c} >= 0, {a}, {b})", dtype)


_register(CHAPTER)
