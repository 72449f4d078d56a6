"""PTX ISA, Floating Point Instructions: single and double precision, and pairs of singles."""

from __future__ import annotations

from collections.abc import Callable

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.numeric import approximate, rounding
from sparsekit.emulator.numeric.extremes import maximum_of, minimum_of, with_xor_of_signs
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer

CHAPTER = Chapter("Floating Point Instructions")
_ROUNDINGS = "rnd=rn|rz|rm|rp"
_PLAIN = {"add": "add", "sub": "subtract", "mul": "multiply"}
_F32 = {"add": rounding.add_f32, "mul": rounding.mul_f32, "div": rounding.div_f32}
_F32_FTZ = {"add": rounding.add_f32, "mul": rounding.mul_ftz_f32, "div": rounding.div_ftz_f32}
"""Sums that are tiny are exact: flushing them is all."""
_F64 = {"add": rounding.add_f64, "mul": rounding.mul_f64, "div": rounding.div_f64}


def _rounded(m: Matched, base: str) -> Callable[..., Array]:
    """The function of (a, b, mode) for add, mul or div of the form's type."""
    if m["t"] == "f64":
        return _F64[base]
    return (_F32_FTZ if m["ftz"] else _F32)[base]


def sources(w: Writer, m: Matched, dtype: str, count: int) -> list[str]:
    """The source operands, subnormal ones flushed with .ftz."""
    names = [w.read(o, dtype) for o in m.operands[1 : 1 + count]]
    return [w.temp(f"{w.fn(rounding.flush)}({name})") for name in names] if m["ftz"] else names


def result(w: Writer, m: Matched, expression: str, dtype: str) -> None:
    """Write a result, flushed with .ftz and clamped with .sat."""
    if m["ftz"]:
        expression = f"{w.fn(rounding.flush)}({expression})"
    if m["sat"]:
        expression = f"{w.fn(rounding.saturate)}({expression})"
    w.write(m.operands[0], expression, dtype)


@CHAPTER.form(f"add {_ROUNDINGS}? ftz? sat? t=f32", 3)
@CHAPTER.form(f"sub {_ROUNDINGS}? ftz? sat? t=f32", 3)
@CHAPTER.form(f"mul {_ROUNDINGS}? ftz? sat? t=f32", 3)
@CHAPTER.form(f"add {_ROUNDINGS}? t=f64", 3)
@CHAPTER.form(f"sub {_ROUNDINGS}? t=f64", 3)
@CHAPTER.form(f"mul {_ROUNDINGS}? t=f64", 3)
def arithmetic(w: Writer, m: Matched) -> None:
    dtype, base, mode = DTYPES[m["t"]], m.form.base, m["rnd"] or "rn"
    a, b = sources(w, m, dtype, 2)
    if mode == "rn" and not (base == "mul" and m["ftz"]):
        result(w, m, f"{_PLAIN[base]}({a}, {b})", dtype)
        return
    if base == "sub":
        base, b = "add", f"-{b}"
    result(w, m, f"{w.fn(_rounded(m, base))}({a}, {b}, {mode!r})", dtype)


@CHAPTER.form(f"fma {_ROUNDINGS} ftz? sat? t=f32", 4)
@CHAPTER.form(f"fma {_ROUNDINGS} t=f64", 4)
@CHAPTER.form(f"mad {_ROUNDINGS} ftz? sat? t=f32", 4)
@CHAPTER.form(f"mad {_ROUNDINGS} t=f64", 4)
def fma(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b, c = sources(w, m, dtype, 3)
    if dtype == "f4" and m["rnd"] == "rn" and not m["ftz"]:
        result(w, m, f"{w.fn(rounding.fma_rn_f32)}({a}, {b}, {c})", dtype)
        return
    single = rounding.fma_ftz_f32 if m["ftz"] else rounding.fma_f32
    function = single if dtype == "f4" else rounding.fma_f64
    result(w, m, f"{w.fn(function)}({a}, {b}, {c}, {m['rnd']!r})", dtype)


@CHAPTER.form(f"add {_ROUNDINGS}? ftz? t=f32x2", 3)
@CHAPTER.form(f"sub {_ROUNDINGS}? ftz? t=f32x2", 3)
@CHAPTER.form(f"mul {_ROUNDINGS}? ftz? t=f32x2", 3)
@CHAPTER.form(f"fma {_ROUNDINGS} ftz? t=f32x2", 4)
def packed_singles(w: Writer, m: Matched) -> None:
    count = len(m.operands) - 1
    names = [f"ascontiguousarray({w.read(o, 'u8')}).view(f4)" for o in m.operands[1:]]
    if m["ftz"]:
        names = [f"{w.fn(rounding.flush)}({name})" for name in names]
    base, mode = m.form.base, m["rnd"] or "rn"
    if count == 3:
        function = rounding.fma_ftz_f32 if m["ftz"] else rounding.fma_f32
        call = f"{w.fn(function)}({', '.join(names)}, {mode!r})"
    elif mode == "rn" and not (base == "mul" and m["ftz"]):
        call = f"{_PLAIN[base]}({', '.join(names)})"
    else:
        if base == "sub":
            base, names[1] = "add", f"-{names[1]}"
        call = f"{w.fn(_rounded(m, base))}({', '.join(names)}, {mode!r})"
    if m["ftz"]:
        call = f"{w.fn(rounding.flush)}({call})"
    w.write(m.operands[0], f"{call}.view(u8)", "u8")


@CHAPTER.form("div full ftz? t=f32", 3)
@CHAPTER.form("div approx ftz? t=f32", 3)
@CHAPTER.form(f"div {_ROUNDINGS} ftz? t=f32", 3)
@CHAPTER.form(f"div {_ROUNDINGS} t=f64", 3)
def div(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a, b = sources(w, m, dtype, 2)
    if m["rnd"]:
        result(w, m, f"{w.fn(_rounded(m, 'div'))}({a}, {b}, {m['rnd']!r})", dtype)
        return
    quotient = f"{w.fn(approximate.div, 'div_approx')}({a}, {b})" if m["approx"] else f"{a} / {b}"
    if m["ftz"]:
        quotient = f"{w.fn(rounding.flush_quotient)}({quotient}, {a}, {b})"
    result(w, m, quotient, dtype)


@CHAPTER.form("rcp approx ftz? t=f32", 2)
@CHAPTER.form("sqrt approx ftz? t=f32", 2)
@CHAPTER.form("rsqrt approx ftz? t=f32", 2)
@CHAPTER.form("sin approx ftz? t=f32", 2)
@CHAPTER.form("cos approx ftz? t=f32", 2)
@CHAPTER.form("lg2 approx ftz? t=f32", 2)
@CHAPTER.form("ex2 approx ftz? t=f32", 2)
@CHAPTER.form("tanh approx t=f32", 2)
def approximated(w: Writer, m: Matched) -> None:
    (a,) = sources(w, m, "f4", 1)
    function = getattr(approximate, m.form.base)
    result(w, m, f"{w.fn(function, f'approximate_{m.form.base}')}({a})", "f4")


@CHAPTER.form("rcp approx ftz t=f64", 2)
@CHAPTER.form("rsqrt approx ftz? t=f64", 2)
def approximated_double(w: Writer, m: Matched) -> None:
    plain = approximate.rsqrt_ftz_f64 if m["ftz"] else approximate.rsqrt_f64
    function = approximate.rcp_f64 if m.form.base == "rcp" else plain
    w.write(m.operands[0], f"{w.fn(function)}({w.read(m.operands[1], 'f8')})", "f8")


@CHAPTER.form(f"rcp {_ROUNDINGS} ftz? t=f32", 2)
@CHAPTER.form(f"rcp {_ROUNDINGS} t=f64", 2)
@CHAPTER.form(f"sqrt {_ROUNDINGS} ftz? t=f32", 2)
@CHAPTER.form(f"sqrt {_ROUNDINGS} t=f64", 2)
def rounded(w: Writer, m: Matched) -> None:
    dtype, mode = DTYPES[m["t"]], m["rnd"]
    (a,) = sources(w, m, dtype, 1)
    if m.form.base == "rcp":
        call = f"{w.fn(_rounded(m, 'div'))}({w.const(1.0, dtype)}, {a}, {mode!r})"
        result(w, m, call, dtype)
        return
    root = rounding.sqrt_f32 if dtype == "f4" else rounding.sqrt_f64
    result(w, m, f"{w.fn(root)}({a}, {mode!r})", dtype)


@CHAPTER.form("abs ftz? t=f32", 2)
@CHAPTER.form("neg ftz? t=f32", 2)
@CHAPTER.form("abs t=f64", 2)
@CHAPTER.form("neg t=f64", 2)
def negate(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    (a,) = sources(w, m, dtype, 1)
    w.write(m.operands[0], f"abs({a})" if m.form.base == "abs" else f"-{a}", dtype)


@CHAPTER.form("min ftz? nan=NaN? xor=xorsign? abs? t=f32", (3, 4))
@CHAPTER.form("max ftz? nan=NaN? xor=xorsign? abs? t=f32", (3, 4))
@CHAPTER.form("min t=f64", 3)
@CHAPTER.form("max t=f64", 3)
def extreme(w: Writer, m: Matched) -> None:
    """The other operand where one is NaN; NaN with .NaN. -0 counts as less than +0."""
    dtype = DTYPES[m["t"]]
    names = sources(w, m, dtype, len(m.operands) - 1)
    w.write(m.operands[0], chosen_extreme(w, m, names), dtype)


def chosen_extreme(w: Writer, m: Matched, names: list[str]) -> str:
    """The expression for min or max of two or three vectors with the form's modifiers."""
    if bool(m["abs"]) != bool(m["xor"]) if len(names) == 2 else m["xor"]:
        raise m.unsupported("xorsign and abs stand together; of three operands abs alone")
    original = names
    if m["abs"]:
        names = [w.temp(f"abs({name})") for name in names]
    function = w.fn(maximum_of if m.form.base == "max" else minimum_of)
    call = names[0]
    for name in names[1:]:
        call = f"{function}({call}, {name}, {bool(m['nan'])})"
    if m["xor"]:
        sign = w.fn(with_xor_of_signs)
        call = f"{sign}({call}, {', '.join(original)})"
    return call


@CHAPTER.form("testp op=finite|infinite|number|notanumber|normal|subnormal t=f32|f64", 2)
def testp(w: Writer, m: Matched) -> None:
    a = w.read(m.operands[1], DTYPES[m["t"]])
    tiny = "1.1754943508222875e-38" if m["t"] == "f32" else "2.2250738585072014e-308"
    expression = {
        "finite": f"isfinite({a})", "infinite": f"isinf({a})",
        "number": f"~isnan({a})", "notanumber": f"isnan({a})",
        "normal": f"isfinite({a}) & (abs({a}) >= {tiny})",
        "subnormal": f"(abs({a}) < {tiny}) & ({a} != 0)",
    }[m["op"]]  # fmt: skip
    w.write(m.operands[0], expression, "?")


@CHAPTER.form("copysign t=f32|f64", 3)
def copysign(w: Writer, m: Matched) -> None:
    """The sign of a with the magnitude of b."""
    dtype = DTYPES[m["t"]]
    a, b = sources(w, m, dtype, 2)
    w.write(m.operands[0], f"copysign({b}, {a})", dtype)
