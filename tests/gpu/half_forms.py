"""Instructions on halves, and on doubles whose halves are words: what a GPU is asked to decide.

Each is what a FunctionForm is made of: name, code, type of the result, whether it is exact.
"""

from __future__ import annotations

from itertools import product

Parts = tuple[str, str, str, bool]
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "ltu", "num")


def half_forms() -> list[Parts]:
    return [*_compared(), *_in_memory(), *_roots(), *_converted()]


def _compared() -> list[Parts]:
    """.ftz of f16 takes f16's own subnormal numbers for zeros; bf16 has no .ftz here."""
    found = []
    for name, kind in product(_COMPARISONS, ("ftz.f16", "f16", "bf16")):
        half = kind.removeprefix("ftz.")
        bits = "selp.b32 d, 1, 0, p;"
        one = f"cvt.u16.u32 h0, a; cvt.u16.u32 h1, b; setp.{name}.{kind} p, h0, h1; {bits}"
        two = f"setp.{name}.{kind}x2 p|q, a, b; {bits} @q or.b32 d, d, 2;"
        found += [
            (f"setp.{name}.{kind}", one, "bits", True),
            (f"setp.{name}.{kind}x2", two, "bits", True),
            (f"set.{name}.{kind}x2.{half}x2",
             f"set.{name}.{kind}x2.{half}x2 d, a, b;", f"{half}x2", True),
        ]  # fmt: skip
    return found


def _in_memory() -> list[Parts]:
    """Of two zeros -0 is the smaller."""
    forms = []
    for op, half in product(("min", "max", "add"), ("f16", "bf16")):
        name = f"red.relaxed.gpu.global.{op}.noftz.v2.{half}"
        code = (
            "st.global.b32 [target], a; mov.b32 {h0, h1}, b; "
            f"{name} [target], {{h0, h1}}; ld.global.b32 d, [target];"
        )
        forms.append((name, code, f"{half}x2", True))
    return forms


def _roots() -> list[Parts]:
    """rsqrt of the double with b above a. With .ftz its upper word alone matters, the lower one of
    a result is 0, and a subnormal number gives infinity; without it, a number."""
    name, ftz = "rsqrt.approx.f64", "rsqrt.approx.ftz.f64"
    pair = "mov.b64 pair, {a, b};"
    upper = "mov.b64 {c, d}, pair;"
    infinite = "testp.infinite.f64 p, pair; selp.b32 d, 1, 0, p;"
    lower = "mov.b64 {d, c}, pair; testp.notanumber.f64 p, pair; @p mov.b32 d, 0;"
    again = f"{upper} mov.b64 pair, {{0, b}}; {ftz} pair, pair; mov.b64 {{a, c}}, pair;"
    forms = [
        (f"{how}, {part}", f"{pair} {how} pair, pair; {code}", "bits", True)
        for how, part, code in (
            (ftz, "lower word of a number", lower), (ftz, "whether infinite", infinite),
            (name, "whether infinite", infinite),
            (ftz, "with the lower word and without", f"{again} xor.b32 d, d, c;"),
        )
    ]  # fmt: skip
    return forms + [
        (f"{how}, upper word", f"{pair} {how} pair, pair; {upper}", "f64 upper", False)
        for how in (name, ftz)
    ]


def _converted() -> list[Parts]:
    names = [f"cvt{ftz}.f32.{half}" for ftz in ("", ".ftz") for half in ("bf16", "f16")]
    return [(name, f"cvt.u16.u32 h0, a; {name} d, h0;", "f32", True) for name in names]
