"""set and setp of halves and of pairs of halves, and combined with a predicate, one by one."""

from __future__ import annotations

import random

import pytest
from one_instruction import run
from samples import FORMATS, columns, floats, integers, near
from scalar_model import NAN, as_integer, decode, equal, flush, less

ORDERED = {
    "eq": equal, "ne": lambda a, b: not equal(a, b), "lt": less, "le": lambda a, b: not less(b, a),
    "gt": lambda a, b: less(b, a), "ge": lambda a, b: not less(a, b),
}  # fmt: skip
COMPARISONS = [*ORDERED, *(f"{name}u" for name in ORDERED), "num", "nan"]
COMBINED = {"and": lambda t, c: t and c, "or": lambda t, c: t or c, "xor": lambda t, c: t != c}
ONE = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F80_0000}


def holds(comparison, a, b, form, ftz=False):
    """CmpOp on two bit patterns: with u, true for a NaN; num and nan ask for one."""
    x, y = (decode(flush(bits, form) if ftz else bits, form) for bits in (a, b))
    has_nan = NAN in (x.kind, y.kind)
    if comparison in ("num", "nan"):
        return has_nan == (comparison == "nan")
    if has_nan:
        return comparison.endswith("u")
    return ORDERED[comparison[:2]](x, y)


def halves(kind, seed, count=240):
    """(a, b, predicate): edges of the format, equal operands and operands of one magnitude too."""
    rng = random.Random(seed)
    values = floats(FORMATS[kind]) + near(FORMATS[kind], 20)
    rows = [(rng.choice(values), rng.choice(values), rng.getrandbits(1)) for _ in range(count)]
    rows += [(a, a, k & 1) for k, a in enumerate(values)]
    rows += [(a, a ^ 0x8000, k & 1) for k, a in enumerate(values)]
    return rows + [(a, b, 1) for a in (1, 0x8001, 0, 0x8000, 0x3FF, 0x400) for b in (0, 1, 0x83FF)]


def packed(kind, seed):
    """(a, b, predicate) of pairs, with the rows of each half, the low one first."""
    low, high = halves(kind, seed), halves(kind, seed + 1)
    random.Random(seed).shuffle(high)
    both = list(zip(low, high, strict=True))
    rows = [(x[0] | y[0] << 16, x[1] | y[1] << 16, x[2]) for x, y in both]
    return rows, both


def inputs_of(kind, rows):
    return list(zip((kind, kind, "pred"), columns(rows), strict=True))


def flushing(kind):
    """.ftz is of f16 alone."""
    return ("", ".ftz") if kind.startswith("f16") else ("",)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_setp_of_halves(kind):
    form, rows = FORMATS[kind], halves(kind, 1)
    for ftz in flushing(kind):
        for name in COMPARISONS:
            true = [holds(name, a, b, form, bool(ftz)) for a, b, _ in rows]
            body = f"setp.{name}{ftz}.{kind} d0, a, b; " + " ".join(
                f"setp.{name}.{op}{ftz}.{kind} d{1 + 2 * k}|d{2 + 2 * k}, a, b, c;"
                for k, op in enumerate(COMBINED)
            )
            alone, *results = run(body, inputs_of(kind, rows), ["pred"] * 7)
            assert alone == [int(t) for t in true], (name, ftz)
            for k, op in enumerate(COMBINED):
                for t, (a, b, c), p, q in zip(true, rows, *results[2 * k : 2 * k + 2], strict=True):
                    assert p == COMBINED[op](t, bool(c)), (name, op, hex(a), hex(b), c)
                    assert q == COMBINED[op](not t, bool(c)), (name, op, hex(a), hex(b), c)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_setp_of_pairs_of_halves(kind):
    """p is the comparison of the low halves, q that of the high ones."""
    form = FORMATS[kind]
    rows, both = packed(kind, 2)
    signs = [(op, sign) for op in COMBINED for sign in ("", "!")]
    for ftz in flushing(kind):
        for name in COMPARISONS:
            true = [[holds(name, *r[half][:2], form, bool(ftz)) for r in both] for half in (0, 1)]
            body = f"setp.{name}{ftz}.{kind}x2 d0|d1, a, b; " + " ".join(
                f"setp.{name}.{op}{ftz}.{kind}x2 d{2 + 2 * k}|d{3 + 2 * k}, a, b, {sign}c;"
                for k, (op, sign) in enumerate(signs)
            )
            found = run(body, inputs_of("b32", rows), ["pred"] * (2 + 2 * len(signs)))
            assert found[:2] == [[int(t) for t in part] for part in true], (name, ftz)
            for k, (op, sign) in enumerate(signs):
                for half in (0, 1):
                    assert found[2 + 2 * k + half] == [
                        int(COMBINED[op](t, bool(row[2]) != bool(sign)))
                        for t, row in zip(true[half], rows, strict=True)
                    ], (name, op, sign, ftz)


def test_a_destination_may_be_the_predicate_that_is_combined():
    rows, both = packed("f16", 3)
    form = FORMATS["f16"]
    for own in ("d0", "d1"):
        body = f"and.pred {own}, c, c; setp.lt.xor.f16x2 d0|d1, a, b, {own};"
        found = run(body, inputs_of("b32", rows), ["pred", "pred"])
        for half, result in enumerate(found):
            assert result == [
                int(holds("lt", *r[half][:2], form) != bool(row[2]))
                for r, row in zip(both, rows, strict=True)
            ]
        body = f"and.pred {own}, c, c; setp.lt.and.u32 d0|d1, a, b, {own};"
        first, second = run(body, inputs_of("b32", rows), ["pred", "pred"])
        assert first == [int(a < b and bool(c)) for a, b, c in rows]
        assert second == [int(a >= b and bool(c)) for a, b, c in rows]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_set_of_halves(kind):
    """1.0 of a floating type, all ones of an integer type, or 0."""
    form, rows = FORMATS[kind], halves(kind, 4)
    targets = [
        (op, target) for op in ("", *COMBINED) for target in (kind, "u16", "s16", "u32", "s32")
    ]
    outputs = ["b32" if target[1:] == "32" else "b16" for _, target in targets]
    for ftz in flushing(kind):
        for name in COMPARISONS:
            true = [holds(name, a, b, form, bool(ftz)) for a, b, _ in rows]
            body = " ".join(
                f"set.{name}{'.' * bool(op)}{op}{ftz}.{target}.{kind} "
                f"d{k}, a, b{', !c' * bool(op)};"
                for k, (op, target) in enumerate(targets)
            )
            results = run(body, inputs_of(kind, rows), outputs)
            for (op, target), bits, found in zip(targets, outputs, results, strict=True):
                one = ONE.get(target, 2 ** int(bits[1:]) - 1)
                assert found == [
                    one * (COMBINED[op](t, not c) if op else t)
                    for t, (_, _, c) in zip(true, rows, strict=True)
                ], (name, op, ftz, target)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_set_of_pairs_of_halves(kind):
    """Each half of the result is 1.0, or 0xffff where the result is an integer, or 0."""
    form = FORMATS[kind]
    rows, both = packed(kind, 5)
    targets = [(op, target) for op in ("", *COMBINED) for target in (f"{kind}x2", "u32", "s32")]
    for ftz in flushing(kind):
        for name in COMPARISONS:
            true = [[holds(name, *half[:2], form, bool(ftz)) for half in pair] for pair in both]
            body = " ".join(
                f"set.{name}{'.' * bool(op)}{op}{ftz}.{target}.{kind}x2 "
                f"d{k}, a, b{', c' * bool(op)};"
                for k, (op, target) in enumerate(targets)
            )
            results = run(body, inputs_of("b32", rows), ["b32"] * len(targets))
            for (op, target), found in zip(targets, results, strict=True):
                one = ONE[kind] if target.endswith("x2") else 0xFFFF
                for (low, high), row, result in zip(true, rows, found, strict=True):
                    if op:
                        low, high = (COMBINED[op](t, bool(row[2])) for t in (low, high))
                    assert result == one * low | one * high << 16, (name, op, ftz, target, row)


WHOLE = ["u16", "s16", "u32", "s32", "u64", "s64", "b16", "b32", "b64", "f32", "f64"]
SAME = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def names_of(kind):
    """The comparisons that a type has."""
    names = {"b": ["eq", "ne"], "f": COMPARISONS}.get(kind[0], list(ORDERED))
    return [*names, *SAME] if kind[0] == "u" else names


def is_true(name, a, b, kind, ftz):
    if kind[0] == "f":
        return holds(name, a, b, FORMATS[kind], bool(ftz))
    x, y = as_integer(a, kind), as_integer(b, kind)
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y,
            "ge": x >= y}[SAME.get(name, name)]  # fmt: skip


def whole(kind):
    rng = random.Random(6)
    values = floats(FORMATS[kind]) if kind[0] == "f" else integers(int(kind[1:]))
    rows = [(rng.choice(values), rng.choice(values), rng.getrandbits(1)) for _ in range(120)]
    return rows + [(a, a, k & 1) for k, a in enumerate(values)]


def spellings(kind):
    return [(name, ftz) for name in names_of(kind) for ftz in ("", ".ftz")[: 1 + (kind == "f32")]]


@pytest.mark.parametrize("kind", WHOLE)
def test_set_alone_and_combined_with_a_predicate(kind):
    """1.0 of f32, all ones of an integer type, or 0."""
    rows = whole(kind)
    targets = [(op, target) for op in ("", *COMBINED) for target in ("u32", "s32", "f32")]
    for name, ftz in spellings(kind):
        true = [is_true(name, a, b, kind, ftz) for a, b, _ in rows]
        body = " ".join(
            f"set.{name}{'.' * bool(op)}{op}{ftz}.{target}.{kind} d{k}, a, b{', c' * bool(op)};"
            for k, (op, target) in enumerate(targets)
        )
        results = run(body, inputs_of(kind, rows), ["b32"] * len(targets))
        for (op, target), found in zip(targets, results, strict=True):
            one = ONE.get(target, 2**32 - 1)
            assert found == [
                one * (COMBINED[op](t, bool(c)) if op else t)
                for t, (_, _, c) in zip(true, rows, strict=True)
            ], (name, ftz, op, target)


@pytest.mark.parametrize("kind", WHOLE)
def test_setp_alone_and_combined_with_a_predicate(kind):
    """The result and its opposite, each combined with the third operand."""
    rows = whole(kind)
    for name, ftz in spellings(kind):
        true = [is_true(name, a, b, kind, ftz) for a, b, _ in rows]
        body = f"setp.{name}{ftz}.{kind} d0|d1, a, b; setp.{name}{ftz}.{kind} d2, a, b; "
        body += " ".join(
            f"setp.{name}.{op}{ftz}.{kind} d{3 + 2 * k}|d{4 + 2 * k}, a, b, c;"
            for k, op in enumerate(COMBINED)
        )
        first, opposite, only, *pairs = run(body, inputs_of(kind, rows), ["pred"] * 9)
        assert first == only == [int(t) for t in true], (name, ftz)
        assert opposite == [int(not t) for t in true]
        for k, op in enumerate(COMBINED):
            both = [
                (COMBINED[op](t, bool(c)), COMBINED[op](not t, bool(c)))
                for t, (_, _, c) in zip(true, rows, strict=True)
            ]
            assert list(zip(*pairs[2 * k : 2 * k + 2], strict=True)) == both, (name, op, ftz)


@pytest.mark.parametrize("kind", WHOLE)
def test_selection_of_every_type(kind):
    """selp by a predicate; slct by the sign of an integer or of a float: -0 counts as 0."""
    rows = whole(kind)
    (found,) = run(f"selp.{kind} d0, a, b, c;", inputs_of(kind, rows), [kind])
    assert found == [a if c else b for a, b, c in rows]
    signs = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000001, 0xFF800000, 0x7F800000,
             0x3F800000, 0xBF800000, 0x7FC00000, 0xFFC00000]  # fmt: skip
    rows = [(a, b, signs[k % len(signs)]) for k, (a, b, _) in enumerate(rows)]
    inputs = list(zip((kind, kind, "b32"), columns(rows), strict=True))
    body = f"mov.b32 x, c; slct.{kind}.s32 d0, a, b, c; slct.{kind}.f32 d1, a, b, x;"
    body += f"slct.ftz.{kind}.f32 d2, a, b, x;"
    found = run(body, inputs, [kind] * 3, declare=".reg .f32 x;")
    for k, ftz in ((0, None), (1, False), (2, True)):
        for (a, b, c), result in zip(rows, found[k], strict=True):
            if ftz is None:
                first = as_integer(c, "s32") >= 0
            else:
                first = holds("ge", c, 0, FORMATS["f32"], ftz)
            assert result == (a if first else b), (kind, k, hex(c))
