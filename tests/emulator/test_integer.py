"""Integer, extended-precision, logic, shift and bit-field instructions against Python integers."""

from __future__ import annotations

import itertools
import random

import pytest
from one_instruction import run
from samples import columns, integers, pairs, triples
from scalar_model import as_integer, clamp, signed

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def width(kind: str) -> int:
    return int(kind[1:])


def check(body, kinds, rows, out, model, declare=""):
    """Run body on rows of bit patterns; model takes a row and gives the output's integer."""
    inputs = [(k, list(c)) for k, c in zip(kinds, columns(rows), strict=True)]
    (found,) = run(body, inputs, [out], declare)
    bits = 1 if out == "pred" else width(out)
    for row, result in zip(rows, found, strict=True):
        wanted = int(model(*row)) % 2**bits
        assert result == wanted, f"{body} {[hex(x) for x in row]}: {result:#x}, not {wanted:#x}"


def two(kind, count=40):
    return pairs(integers(width(kind)), count, width(kind))


def values(kind, *bits):
    return [as_integer(b, kind) for b in bits]


def quotient(a, b):
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


@pytest.mark.parametrize("kind", TYPES)
def test_add_sub_mul(kind):
    rows = two(kind)
    check(f"add.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a + b)
    check(f"sub.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a - b)
    check(f"mul.lo.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a * b)

    def high(a, b):
        x, y = values(kind, a, b)
        return x * y >> width(kind)

    check(f"mul.hi.{kind} d0, a, b;", [kind] * 2, rows, kind, high)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind):
    wide = f"{kind[0]}{2 * width(kind)}"

    def product(a, b):
        x, y = values(kind, a, b)
        return x * y

    check(f"mul.wide.{kind} d0, a, b;", [kind] * 2, two(kind), wide, product)
    rows = [(a, b, (a * 7 + b) << 3) for a, b in two(kind)]
    check(
        f"mad.wide.{kind} d0, a, b, c;", [kind, kind, wide], rows, wide,
        lambda a, b, c: product(a, b) + c,
    )  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_mad_sad(kind):
    rows = triples(integers(width(kind)), 100, width(kind))

    def high(a, b, c):
        x, y, z = values(kind, a, b, c)
        return (x * y >> width(kind)) + z

    check(f"mad.lo.{kind} d0, a, b, c;", [kind] * 3, rows, kind, lambda a, b, c: a * b + c)
    check(f"mad.hi.{kind} d0, a, b, c;", [kind] * 3, rows, kind, high)

    def sad(a, b, c):
        x, y, z = values(kind, a, b, c)
        return z + (y - x if x < y else x - y)

    check(f"sad.{kind} d0, a, b, c;", [kind] * 3, rows, kind, sad)


def test_saturating():
    rows = two("s32")
    for op, sign in (("add", 1), ("sub", -1)):
        check(
            f"{op}.sat.s32 d0, a, b;", ["s32"] * 2, rows, "s32",
            lambda a, b, sign=sign: clamp(signed(a, 32) + sign * signed(b, 32), "s32"),
        )  # fmt: skip
    rows = triples(integers(32), 100, 32)

    def mad(a, b, c):
        x, y, z = values("s32", a, b, c)
        return clamp((x * y >> 32) + z, "s32")

    check("mad.hi.sat.s32 d0, a, b, c;", ["s32"] * 3, rows, "s32", mad)


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_24_bit_products(kind):
    rows = triples(integers(32), 60, 32)

    def low24(x):
        return signed(x, 24) if kind == "s32" else x & 0xFFFFFF

    for part, shift in (("lo", 0), ("hi", 16)):
        check(
            f"mul24.{part}.{kind} d0, a, b;", [kind] * 3, rows, kind,
            lambda a, b, c, s=shift: low24(a) * low24(b) >> s,
        )  # fmt: skip
        check(
            f"mad24.{part}.{kind} d0, a, b, c;", [kind] * 3, rows, kind,
            lambda a, b, c, s=shift: (low24(a) * low24(b) >> s) + c,
        )  # fmt: skip


def test_24_bit_product_with_a_saturated_sum():
    """Bits 47..16 of the product, and a sum clamped to s32."""
    rows = triples(integers(32), 300, 32)
    rows += [(0x7FFFFF, 0x7FFFFF, c) for c in (0x7FFFFFFF, 0x40000000, 0x3FFFFFFF, 0x80000000)]
    rows += [(0x800000, 0x7FFFFF, c) for c in (0x80000000, 0xC0000000, 0xBFFFFFFF, 0x7FFFFFFF)]

    def model(a, b, c):
        return clamp((signed(a, 24) * signed(b, 24) >> 16) + as_integer(c, "s32"), "s32")

    wanted = [model(*row) for row in rows]
    assert 2**31 - 1 in wanted
    assert -(2**31) in wanted
    check("mad24.hi.sat.s32 d0, a, b, c;", ["s32"] * 3, rows, "s32", model)


@pytest.mark.parametrize("kind", TYPES)
def test_div_rem_min_max(kind):
    rows = [(a, b) for a, b in two(kind) if b]
    lowest = 1 << (width(kind) - 1)
    rows = [r for r in rows if not (kind[0] == "s" and r == (lowest, 2 ** width(kind) - 1))]
    check(
        f"div.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: quotient(*values(kind, a, b))
    )

    def remainder(a, b):
        x, y = values(kind, a, b)
        return x - y * quotient(x, y)

    check(f"rem.{kind} d0, a, b;", [kind] * 2, rows, kind, remainder)
    for op in (min, max):
        check(
            f"{op.__name__}.{kind} d0, a, b;", [kind] * 2, two(kind), kind,
            lambda a, b, op=op: op(values(kind, a, b)),
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_neg_abs(kind):
    rows = [(a,) for a in integers(width(kind))]
    check(f"neg.{kind} d0, a;", [kind], rows, kind, lambda a: -a)
    check(f"abs.{kind} d0, a;", [kind], rows, kind, lambda a: abs(as_integer(a, kind)))


def test_relu_and_packed():
    rows = two("s32")
    for name, extreme in (("min", min), ("max", max)):
        check(
            f"{name}.relu.s32 d0, a, b;", ["s32"] * 2, rows, "s32",
            lambda a, b, f=extreme: max(0, f(signed(a, 32), signed(b, 32))),
        )  # fmt: skip

    def halves(op, kind):
        def model(a, b):
            parts = [
                op(as_integer(a >> s, kind), as_integer(b >> s, kind)) % 65536 for s in (0, 16)
            ]
            return parts[0] | parts[1] << 16

        return model

    for kind in ("u16", "s16"):
        check(f"add.{kind}x2 d0, a, b;", ["b32"] * 2, rows, "b32", halves(lambda x, y: x + y, kind))
        check(f"min.{kind}x2 d0, a, b;", ["b32"] * 2, rows, "b32", halves(min, kind))
        check(f"max.{kind}x2 d0, a, b;", ["b32"] * 2, rows, "b32", halves(max, kind))


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_carry_chains(kind):
    bits = width(kind)
    rows = [(*x, *y) for x, y in zip(two(kind), reversed(two(kind)), strict=True)]
    body = f"add.cc.{kind} d0, a, c; addc.{kind} d1, b, d;"
    sub = f"sub.cc.{kind} d0, a, c; subc.{kind} d1, b, d;"
    inputs = [(kind, c) for c in columns(rows)]
    for text, sign in ((body, 1), (sub, -1)):
        low, high = run(text, inputs, [kind, kind])
        for (a, b, c, d), x, y in zip(rows, low, high, strict=True):
            wanted = ((a | b << bits) + sign * (c | d << bits)) % 2 ** (2 * bits)
            assert x | y << bits == wanted
    mad = f"mad.lo.cc.{kind} d0, a, b, c; madc.hi.{kind} d1, a, b, d;"
    low, high = run(mad, inputs, [kind, kind])
    for (a, b, c, d), x, y in zip(rows, low, high, strict=True):
        assert x | y << bits == (a * b + (c | d << bits)) % 2 ** (2 * bits)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_every_link_of_a_carry_chain(kind):
    """Sums, differences and products of three words; the flag after the last word too."""
    bits = width(kind)
    rng = random.Random(8)
    values = integers(bits)
    rows = [tuple(rng.choice(values) for _ in range(6)) for _ in range(200)]
    inputs = [(kind, c) for c in columns(rows)]
    out = [kind] * 4
    body = """{0}.cc.{1} d0, a, d; {0}c.cc.{1} d1, b, e; {0}c.cc.{1} d2, c, f; {0}c.{1} d3, 0, 0;"""

    def joined(*words):
        return sum(word << k * bits for k, word in enumerate(words))

    for op, sign in (("add", 1), ("sub", -1)):
        found = run(body.format(op, kind), inputs, out)
        for row, words in zip(rows, zip(*found, strict=True), strict=True):
            total = joined(*row[:3]) + sign * joined(*row[3:])
            assert joined(*words) == total % 2 ** (4 * bits), (op, [hex(x) for x in row])
    for first, second in itertools.product(("lo", "hi"), repeat=2):
        # a b + (c, d), e times f in the second word, then what the flag holds
        text = f"mad.{first}.cc.{kind} d0, a, b, c; madc.{second}.cc.{kind} d1, e, f, d;"
        text += f"madc.lo.{kind} d2, 0, 0, 0; mad.lo.cc.{kind} d3, a, b, c;"
        text += f"madc.hi.{kind} d3, e, f, 0;"
        found = run(text, inputs, out)

        def part(which, x, y):
            product = as_integer(x, kind) * as_integer(y, kind)
            return (product >> bits if which == "hi" else product) % 2**bits

        for (a, b, c, d, e, f), words in zip(rows, zip(*found, strict=True), strict=True):
            total = joined(part(first, a, b), part(second, e, f)) + joined(c, d)
            assert joined(*words[:3]) == total, (first, second, kind)
            carry = part("lo", a, b) + c >> bits
            assert words[3] == (part("hi", e, f) + carry) % 2**bits


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counts(bits):
    rng = random.Random(1)
    rows = [(a,) for a in [*integers(bits), *(rng.getrandbits(bits) >> k for k in range(bits))]]
    kind = f"b{bits}"
    check(f"popc.{kind} d0, a;", [kind], rows, "u32", lambda a: a.bit_count())
    check(f"clz.{kind} d0, a;", [kind], rows, "u32", lambda a: bits - a.bit_length())
    check(f"brev.{kind} d0, a;", [kind], rows, kind, lambda a: int(f"{a:0{bits}b}"[::-1], 2))

    def leading(a, is_signed, shift):
        value = ~a % 2**bits if is_signed and a >> (bits - 1) else a
        if value == 0:
            return 0xFFFFFFFF
        position = value.bit_length() - 1
        return bits - 1 - position if shift else position

    for sign in ("u", "s"):
        for suffix in ("", ".shiftamt"):
            check(
                f"bfind{suffix}.{sign}{bits} d0, a;", [kind], rows, "u32",
                lambda a, sign=sign, suffix=suffix: leading(a, sign == "s", bool(suffix)),
            )  # fmt: skip


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind):
    bits = width(kind)
    rng = random.Random(2)
    edges = [0, 1, 5, 31, 32, 33, 63, 64, 65, 255, 256 + 4]
    rows = [(rng.getrandbits(bits), rng.choice(edges), rng.choice(edges)) for _ in range(300)]

    def extract(a, b, c):  # the loop of the ISA's text
        pos, length = b & 0xFF, c & 0xFF
        top = bits - 1
        sbit = 0
        if kind[0] == "s" and length:
            sbit = a >> min(pos + length - 1, top) & 1
        result = 0
        for i in range(bits):
            bit = a >> (pos + i) & 1 if i < length and pos + i <= top else sbit
            result |= bit << i
        return result

    check(f"bfe.{kind} d0, a, b, c;", [f"b{bits}", "b32", "b32"], rows, f"b{bits}", extract)
    if kind[0] == "s":
        return
    rows = [(rng.getrandbits(bits), *row) for row in rows]

    def insert(a, b, c, d):
        pos, length = c & 0xFF, d & 0xFF
        result = b
        for i in range(length):
            if pos + i < bits:
                result = result & ~(1 << (pos + i)) | (a >> i & 1) << (pos + i)
        return result

    check(f"bfi.b{bits} d0, a, b, c, d;", [f"b{bits}"] * 2 + ["b32"] * 2, rows, f"b{bits}", insert)


def test_masks_and_extension():
    edges = [0, 1, 5, 31, 32, 33, 63, 64, 300]
    rows = [(a, b) for a in edges for b in edges]

    def mask(a, b, wrap):
        if wrap:
            a, b = a & 31, b & 31
        return ((1 << min(b, 32)) - 1) << a if a < 32 else 0

    for mode in ("clamp", "wrap"):
        check(
            f"bmsk.{mode}.b32 d0, a, b;", ["b32"] * 2, rows, "b32",
            lambda a, b, mode=mode: mask(a, b, mode == "wrap"),
        )  # fmt: skip
    rng = random.Random(3)
    rows = [(rng.getrandbits(32), b) for b in edges for _ in range(4)]

    def extend(a, b, kind, wrap):
        n = b & 31 if wrap else min(b, 32)
        if n == 0:
            return 0
        low = a & ((1 << n) - 1)
        return signed(low, n) if kind == "s32" else low

    for mode in ("clamp", "wrap"):
        for kind in ("u32", "s32"):
            check(
                f"szext.{mode}.{kind} d0, a, b;", ["b32"] * 2, rows, "b32",
                lambda a, b, k=kind, mode=mode: extend(a, b, k, mode == "wrap"),
            )  # fmt: skip


def test_find_nth_set():
    rng = random.Random(4)
    rows = [
        (rng.getrandbits(32), rng.randrange(32), rng.choice([0, 1, 2, 5, 40, -1, -3, -40]))
        for _ in range(200)
    ]

    def nth(mask, base, offset):  # the loop of the ISA's text
        offset = signed(offset, 32)
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        pos, count, inc = base, abs(offset) - 1, 1 if offset > 0 else -1
        while 0 <= pos < 32:
            if mask >> pos & 1:
                if count == 0:
                    return pos
                count -= 1
            pos += inc
        return 0xFFFFFFFF

    check("fns.b32 d0, a, b, c;", ["b32"] * 3, rows, "b32", nth)


@pytest.mark.parametrize(("ta", "tb"), [("u", "u"), ("u", "s"), ("s", "u"), ("s", "s")])
def test_dot_products(ta, tb):
    rows = triples(integers(32), 60, 32)

    def dot4(a, b, c):
        return c + sum(
            as_integer(a >> 8 * i, f"{ta}8") * as_integer(b >> 8 * i, f"{tb}8") for i in range(4)
        )

    check(f"dp4a.{ta}32.{tb}32 d0, a, b, c;", ["b32"] * 3, rows, "b32", dot4)

    def dot2(a, b, c, high):
        first = 2 if high else 0
        return c + sum(
            as_integer(a >> 16 * i, f"{ta}16") * as_integer(b >> 8 * (first + i), f"{tb}8")
            for i in range(2)
        )

    for part in ("lo", "hi"):
        check(
            f"dp2a.{part}.{ta}32.{tb}32 d0, a, b, c;", ["b32"] * 3, rows, "b32",
            lambda a, b, c, part=part: dot2(a, b, c, part == "hi"),
        )  # fmt: skip


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits):
    kind = f"b{bits}"
    rows = two(kind)
    check(f"and.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a & b)
    check(f"or.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a | b)
    check(f"xor.{kind} d0, a, b;", [kind] * 2, rows, kind, lambda a, b: a ^ b)
    check(f"not.{kind} d0, a;", [kind] * 2, rows, kind, lambda a, b: ~a)
    check(f"cnot.{kind} d0, a;", [kind] * 2, rows, kind, lambda a, b: a == 0)


def test_logic_of_predicates():
    rows = [(a, b) for a in (0, 1) for b in (0, 1)]
    for op, model in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b)):
        check(f"{op}.pred d0, a, b;", ["pred"] * 2, rows, "pred", model)
    check("xor.pred d0, a, b;", ["pred"] * 2, rows, "pred", lambda a, b: a ^ b)
    check("not.pred d0, a;", ["pred"] * 2, rows, "pred", lambda a, b: 1 - a)
    check("and.pred d0, a, !b;", ["pred"] * 2, rows, "pred", lambda a, b: a & (1 - b))


@pytest.mark.parametrize("table", [0, 0xFF, 0x80, 0xE8, 0x96, 0x1B, 0xCA])
def test_lop3(table):
    rows = triples(integers(32), 30, 32)

    def look_up(a, b, c):
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
            for i in range(32)
        )

    check(f"lop3.b32 d0, a, b, c, {table};", ["b32"] * 3, rows, "b32", look_up)
    kinds = ["b32"] * 3 + ["pred"]
    rows = [(*row, i % 2) for i, row in enumerate(rows)]
    for op in ("or", "and"):
        body = f"lop3.{op}.b32 x|d0, a, b, c, {table}, d;"
        check(
            body, kinds, rows, "pred",
            lambda a, b, c, q, op=op: (look_up(a, b, c) != 0) | q
            if op == "or" else (look_up(a, b, c) != 0) & q,
            declare=".reg .b32 x;",
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64"])
def test_shifts(kind):
    bits = width(kind)
    counts = [0, 1, 7, bits - 1, bits, bits + 1, 300, 2**32 - 1]
    rows = [(a, n) for a in integers(bits) for n in counts]
    if kind[0] == "b":
        check(f"shl.{kind} d0, a, b;", [kind, "u32"], rows, kind, lambda a, n: a << min(n, bits))
    value = "s" if kind[0] == "s" else "u"
    check(
        f"shr.{kind} d0, a, b;", [kind, "u32"], rows, kind,
        lambda a, n: as_integer(a, f"{value}{bits}") >> min(n, bits),
    )  # fmt: skip
    for n in (0, 3, bits - 1, bits, 77):
        check(
            f"shr.{kind} d0, a, {n};", [kind, "u32"], rows, kind,
            lambda a, _, n=n: as_integer(a, f"{value}{bits}") >> n,
        )  # fmt: skip


def test_funnel_shifts():
    rng = random.Random(5)
    rows = [
        (rng.getrandbits(32), rng.getrandbits(32), rng.choice([0, 1, 8, 31, 32, 33, 64, 100]))
        for _ in range(120)
    ]

    def funnel(a, b, c, left, wrap):
        n = c & 31 if wrap else min(c, 32)
        return (b << n | a >> (32 - n)) if left else (b << (32 - n) | a >> n)

    for side in ("l", "r"):
        for mode in ("clamp", "wrap"):
            check(
                f"shf.{side}.{mode}.b32 d0, a, b, c;", ["b32"] * 3, rows, "b32",
                lambda a, b, c, s=side, mode=mode: funnel(a, b, c, s == "l", mode == "wrap"),
            )  # fmt: skip
