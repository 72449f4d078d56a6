"""PTX ISA, Logic and Shift Instructions."""

from __future__ import annotations

from sparsekit.emulator.numeric import integers
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Immediate, Pair

CHAPTER = Chapter("Logic and Shift Instructions")
_OPERATORS = {"and": "&", "or": "|", "xor": "^"}


@CHAPTER.form("and t=pred|b16|b32|b64", 3)
@CHAPTER.form("or t=pred|b16|b32|b64", 3)
@CHAPTER.form("xor t=pred|b16|b32|b64", 3)
def logic(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = w.read(m.operands[1], dtype), w.read(m.operands[2], dtype)
    w.write(m.operands[0], f"{a} {_OPERATORS[m.form.base]} {b}", dtype)


@CHAPTER.form("not t=pred|b16|b32|b64", 2)
def logical_not(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    w.write(m.operands[0], f"~{w.read(m.operands[1], dtype)}", dtype)


@CHAPTER.form("cnot t=b16|b32|b64", 2)
def cnot(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    w.write(m.operands[0], f"({w.read(m.operands[1], dtype)} == 0).astype({dtype})", dtype)


@CHAPTER.form("lop3 t=b32", 5)
@CHAPTER.form("lop3 op=or|and t=b32", 6)
def lop3(w: Writer, m: Matched) -> None:
    *sources, table = m.operands[1:5]
    if not isinstance(table, Immediate):
        raise m.unsupported("a truth table that is no constant")
    names = ", ".join(w.read(o, "u4") for o in sources)
    result = w.temp(f"{w.fn(integers.logic3)}({names}, {table.value & 0xFF})")
    target = m.operands[0]
    if m["op"]:
        if not isinstance(target, Pair):
            raise m.unsupported("lop3 with a predicate writes a pair")
        sign = "|" if m["op"] == "or" else "&"
        other = w.read(m.operands[5], "?")
        w.write(target.second, f"({result} != 0) {sign} {other}", "?")
        target = target.first
    w.write(target, result, "u4")


@CHAPTER.form("shf side=l|r mode=clamp|wrap t=b32", 4)
def shf(w: Writer, m: Matched) -> None:
    a, b, c = (w.read(o, "u4") for o in m.operands[1:])
    how = f"left={m['side'] == 'l'}, wrap={m['mode'] == 'wrap'}"
    w.write(m.operands[0], f"{w.fn(integers.funnel)}({a}, {b}, {c}, {how})", "u4")


@CHAPTER.form("shl t=b16|b32|b64", 3)
@CHAPTER.form("shr t=b16|b32|b64|u16|u32|u64|s16|s32|s64", 3)
def shift(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, count = w.read(m.operands[1], dtype), m.operands[2]
    is_left = m.form.base == "shl"
    bits = 8 * int(dtype[1])
    if isinstance(count, Immediate) and 0 <= count.value < bits:
        sign = "<<" if is_left else ">>"
        w.write(m.operands[0], f"{a} {sign} {w.const(count.value, dtype)}", dtype)
        return
    function = integers.shift_left if is_left else integers.shift_right
    w.write(m.operands[0], f"{w.fn(function)}({a}, {w.read(count, 'u4')})", dtype)
