"""PTX ISA, Integer Arithmetic Instructions; Extended-Precision Integer Arithmetic Instructions."""

from __future__ import annotations

from sparsekit.emulator.numeric import integers
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer

CHAPTER = Chapter("Integer Arithmetic Instructions")
_I = "u16|u32|u64|s16|s32|s64"
_WIDE = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}
_UFUNCS = {"add": "add", "sub": "subtract"}


def _two(w: Writer, m: Matched, dtype: str) -> tuple[str, str]:
    return w.read(m.operands[1], dtype), w.read(m.operands[2], dtype)


def _three(w: Writer, m: Matched, dtype: str) -> tuple[str, str, str]:
    a, b = _two(w, m, dtype)
    return a, b, w.read(m.operands[3], dtype)


def _unsigned(m: Matched) -> str:
    """The unsigned type, for what wraps around: the bits are the same."""
    return DTYPES[m["t"]].replace("i", "u")


@CHAPTER.form(f"add t={_I}", 3)
@CHAPTER.form(f"sub t={_I}", 3)
def add(w: Writer, m: Matched) -> None:
    dtype = _unsigned(m)
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"{_UFUNCS[m.form.base]}({a}, {b})", dtype)


@CHAPTER.form("add sat t=s32", 3)
@CHAPTER.form("sub sat t=s32", 3)
def add_sat(w: Writer, m: Matched) -> None:
    a, b = _two(w, m, "i4")
    sign = "+" if m.form.base == "add" else "-"
    wide = f"{a}.astype(i8) {sign} {b}"
    w.write(m.operands[0], f"{w.fn(integers.saturated)}({wide}, 'i4')", "i4")


@CHAPTER.form("add t=u16x2|s16x2", 3)
@CHAPTER.form("min t=u16x2|s16x2", 3)
@CHAPTER.form("max t=u16x2|s16x2", 3)
def packed_halves(w: Writer, m: Matched) -> None:
    half = "u2" if m["t"] == "u16x2" else "i2"
    function = {**_UFUNCS, "min": "minimum", "max": "maximum"}[m.form.base]
    a, b = (f"ascontiguousarray({x}).view({half})" for x in _two(w, m, "u4"))
    w.write(m.operands[0], f"{function}({a}, {b}).view(u4)", "u4")


@CHAPTER.form("add cc t=u32|s32|u64|s64", 3)
@CHAPTER.form("addc cc? t=u32|s32|u64|s64", 3)
@CHAPTER.form("sub cc t=u32|s32|u64|s64", 3)
@CHAPTER.form("subc cc? t=u32|s32|u64|s64", 3)
def add_carry(w: Writer, m: Matched) -> None:
    """The carry flag CC.CF is a register of its own; sub keeps the borrow in it."""
    dtype = _unsigned(m)
    a, b = _two(w, m, dtype)
    is_add = m.form.base.startswith("add")
    first = w.temp(f"{'add' if is_add else 'subtract'}({a}, {b})")
    over = f"{first} < {a}" if is_add else f"{a} < {b}"
    result = first
    if m.form.base.endswith("c"):
        carry = w.read_carry()
        result = w.temp(f"{first} {'+' if is_add else '-'} {carry}.astype({dtype})")
        again = f"({carry} & ({result} == 0))" if is_add else f"({carry} & ({first} == 0))"
        over = f"({over}) | {again}"
    if m["cc"]:
        w.write_carry(w.temp(over))
    w.write(m.operands[0], result, dtype)


@CHAPTER.form("mul part=lo t=u16|u32|u64|s16|s32|s64", 3)
def mul_lo(w: Writer, m: Matched) -> None:
    dtype = _unsigned(m)
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"multiply({a}, {b})", dtype)


@CHAPTER.form(f"mul part=hi t={_I}", 3)
def mul_hi(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.mul_hi)}({a}, {b})", dtype)


@CHAPTER.form("mul part=wide t=u16|u32|s16|s32", 3)
def mul_wide(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.mul_wide)}({a}, {b})", _WIDE[dtype])


@CHAPTER.form(f"mad part=lo t={_I}", 4)
def mad_lo(w: Writer, m: Matched) -> None:
    dtype = _unsigned(m)
    a, b, c = _three(w, m, dtype)
    w.write(m.operands[0], f"{a} * {b} + {c}", dtype)


@CHAPTER.form(f"mad part=hi t={_I}", 4)
def mad_hi(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b, c = _three(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.mul_hi)}({a}, {b}) + {c}", dtype)


@CHAPTER.form("mad part=hi sat t=s32", 4)
def mad_hi_sat(w: Writer, m: Matched) -> None:
    a, b, c = _three(w, m, "i4")
    wide = f"{w.fn(integers.mul_hi)}({a}, {b}).astype(i8) + {c}"
    w.write(m.operands[0], f"{w.fn(integers.saturated)}({wide}, 'i4')", "i4")


@CHAPTER.form("mad part=wide t=u16|u32|s16|s32", 4)
def mad_wide(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    wide = _WIDE[dtype]
    a, b = _two(w, m, dtype)
    c = w.read(m.operands[3], wide)
    w.write(m.operands[0], f"{w.fn(integers.mul_wide)}({a}, {b}) + {c}", wide)


@CHAPTER.form("mad part=lo|hi cc t=u32|s32|u64|s64", 4)
@CHAPTER.form("madc part=lo|hi cc? t=u32|s32|u64|s64", 4)
def mad_carry(w: Writer, m: Matched) -> None:
    kind = DTYPES[m["t"]]
    dtype = kind.replace("i", "u")
    if m["part"] == "lo":
        a, b, c = _three(w, m, dtype)
        product = w.temp(f"{a} * {b}")
    else:
        a, b = _two(w, m, kind)
        c = w.read(m.operands[3], dtype)
        product = w.temp(f"{w.fn(integers.mul_hi)}({a}, {b}).view({dtype})")
    result = first = w.temp(f"{product} + {c}")
    over = f"({first} < {c})"
    if m.form.base == "madc":
        carry = w.read_carry()
        result = w.temp(f"{first} + {carry}.astype({dtype})")
        over += f" | ({carry} & ({result} == 0))"
    if m["cc"]:
        w.write_carry(w.temp(over))
    w.write(m.operands[0], result, dtype)


@CHAPTER.form("mul24 part=lo|hi t=u32|s32", 3)
@CHAPTER.form("mad24 part=lo|hi t=u32|s32", 4)
def mul24(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    product = f"{w.fn(integers.mul24)}({a}, {b}, high={m['part'] == 'hi'})"
    if m.form.base == "mad24":
        product += f" + {w.read(m.operands[3], dtype)}"
    w.write(m.operands[0], product, dtype)


@CHAPTER.form("mad24 part=hi sat t=s32", 4)
def mad24_sat(w: Writer, m: Matched) -> None:
    a, b, c = _three(w, m, "i4")
    wide = f"{w.fn(integers.mul24)}({a}, {b}, high=True).astype(i8) + {c}"
    w.write(m.operands[0], f"{w.fn(integers.saturated)}({wide}, 'i4')", "i4")


@CHAPTER.form(f"sad t={_I}", 4)
def sad(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b, c = _three(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.absolute_difference)}({a}, {b}) + {c}", dtype)


@CHAPTER.form(f"div t={_I}", 3)
def div(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.divide)}({a}, {b})", dtype)


@CHAPTER.form(f"rem t={_I}", 3)
def rem(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    w.write(m.operands[0], f"{w.fn(integers.remainder)}({a}, {b})", dtype)


@CHAPTER.form("abs t=s16|s32|s64", 2)
@CHAPTER.form("neg t=s16|s32|s64", 2)
def negate(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a = w.read(m.operands[1], dtype)
    w.write(m.operands[0], f"abs({a})" if m.form.base == "abs" else f"-{a}", dtype)


@CHAPTER.form(f"min t={_I}", 3)
@CHAPTER.form(f"max t={_I}", 3)
@CHAPTER.form("min relu t=s32", 3)
@CHAPTER.form("max relu t=s32", 3)
def extreme(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    result = f"{'minimum' if m.form.base == 'min' else 'maximum'}({a}, {b})"
    if m["relu"]:
        result = f"maximum({result}, {w.const(0, dtype)})"
    w.write(m.operands[0], result, dtype)


@CHAPTER.form("popc t=b32|b64", 2)
@CHAPTER.form("clz t=b32|b64", 2)
def count_bits(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], DTYPES[m["t"]])
    function = integers.population if m.form.base == "popc" else integers.leading_zeros
    w.write(m.operands[0], f"{w.fn(function)}({a})", "u4")


@CHAPTER.form("bfind shiftamt? t=u32|u64|s32|s64", 2)
def bfind(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], DTYPES[m["t"]])
    call = f"{w.fn(integers.find_leading)}({a}, shift_amount={bool(m['shiftamt'])})"
    w.write(m.operands[0], call, "u4")


@CHAPTER.form("fns t=b32", 4)
def fns(w: Writer, m: Matched) -> None:
    mask, base, offset = (w.read(o, "u4") for o in m.operands[1:])
    w.write(m.operands[0], f"{w.fn(integers.find_nth)}({mask}, {base}, {offset})", "u4")


@CHAPTER.form("brev t=b32|b64", 2)
def brev(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    w.write(m.operands[0], f"{w.fn(integers.reverse)}({w.read(m.operands[1], dtype)})", dtype)


@CHAPTER.form("bfe t=u32|u64|s32|s64", 4)
def bfe(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b, c = w.read(m.operands[1], dtype), *(w.read(o, "u4") for o in m.operands[2:])
    w.write(m.operands[0], f"{w.fn(integers.extract)}({a}, {b}, {c})", dtype)


@CHAPTER.form("bfi t=b32|b64", 5)
def bfi(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = _two(w, m, dtype)
    c, d = (w.read(o, "u4") for o in m.operands[3:])
    w.write(m.operands[0], f"{w.fn(integers.insert)}({a}, {b}, {c}, {d})", dtype)


@CHAPTER.form("bmsk mode=clamp|wrap t=b32", 3)
def bmsk(w: Writer, m: Matched) -> None:
    a, b = _two(w, m, "u4")
    wrap = m["mode"] == "wrap"
    w.write(m.operands[0], f"{w.fn(integers.bit_mask)}({a}, {b}, wrap={wrap})", "u4")


@CHAPTER.form("szext mode=clamp|wrap t=u32|s32", 3)
def szext(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = w.read(m.operands[1], dtype), w.read(m.operands[2], "u4")
    wrap = m["mode"] == "wrap"
    w.write(m.operands[0], f"{w.fn(integers.sign_extend)}({a}, {b}, wrap={wrap})", dtype)


@CHAPTER.form("dp4a ta=u32|s32 tb=u32|s32", 4)
def dp4a(w: Writer, m: Matched) -> None:
    signs = m["ta"] == "s32", m["tb"] == "s32"
    dtype = "i4" if any(signs) else "u4"
    a, b = _two(w, m, "u4")
    c = w.read(m.operands[3], dtype)
    w.write(m.operands[0], f"{w.fn(integers.dot)}({a}, {b}, {c}, {signs[0]}, {signs[1]})", dtype)


@CHAPTER.form("dp2a part=lo|hi ta=u32|s32 tb=u32|s32", 4)
def dp2a(w: Writer, m: Matched) -> None:
    signs = m["ta"] == "s32", m["tb"] == "s32"
    dtype = "i4" if any(signs) else "u4"
    a, b = _two(w, m, "u4")
    c = w.read(m.operands[3], dtype)
    call = f"{w.fn(integers.dot2)}({a}, {b}, {c}, {signs[0]}, {signs[1]}, high={m['part'] == 'hi'})"
    w.write(m.operands[0], call, dtype)
