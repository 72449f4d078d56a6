"""f32, f64, f16 and bf16 arithmetic against exact fractions, rounded as the format says."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import pytest
from one_instruction import run
from samples import FORMATS, columns, f32_bits, floats, near, pairs, same_float, triples
from scalar_model import (
    INF,
    NAN,
    Number,
    add,
    decode,
    divide,
    encode,
    equal,
    extreme,
    finite,
    flush,
    flush_rounded,
    fma,
    less,
    multiply,
    saturate,
    square_root,
)

MODES = ("rn", "rz", "rm", "rp")


def check(body, kind, rows, model, out=None, declare="", close=None):
    """model: bit patterns to a bit pattern. close(found, wanted): for what is approximate."""
    inputs = [(kind, c) for c in columns(rows)]
    out = out or kind
    (found,) = run(body, inputs, [out], declare)
    form = FORMATS.get(out)
    for row, result in zip(rows, found, strict=True):
        wanted = model(*row)
        if close is not None:
            ok = close(result, wanted)
        else:
            ok = same_float(result, wanted, form) if form else result == wanted
        assert ok, f"{body} {[hex(x) for x in row]}: {result:#x}, not {wanted:#x}"


def rounded(kind, exact, mode="rn", ftz=False, sat=False):
    """The model of an instruction: exact takes Numbers."""
    form = FORMATS[kind]

    def model(*row):
        bits = [flush(b, form) for b in row] if ftz else row
        result = exact(*(decode(b, form) for b in bits))
        found = (flush_rounded if ftz else encode)(result, form, mode)
        return encode(saturate(decode(found, form)), form) if sat else found

    return model


def rows_of(kind, arity, count=120):
    form = FORMATS[kind]
    rng = random.Random(arity)
    close = [tuple(rng.choice(near(form, 40, s)) for s in range(arity)) for _ in range(count)]
    if arity == 2:
        return pairs(floats(form)[::3], count, form.bits) + close
    return triples(floats(form), count, form.bits) + close


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_add_sub_mul_fma(kind, mode):
    rows = rows_of(kind, 2)
    check(f"add.{mode}.{kind} d0, a, b;", kind, rows,
          rounded(kind, lambda a, b: add(a, b, mode), mode))  # fmt: skip
    check(f"sub.{mode}.{kind} d0, a, b;", kind, rows,
          rounded(kind, lambda a, b: add(a, -b, mode), mode))  # fmt: skip
    check(f"mul.{mode}.{kind} d0, a, b;", kind, rows, rounded(kind, multiply, mode))
    check(f"fma.{mode}.{kind} d0, a, b, c;", kind, rows_of(kind, 3),
          rounded(kind, lambda a, b, c: fma(a, b, c, mode), mode))  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_div_sqrt_rcp(kind, mode):
    check(f"div.{mode}.{kind} d0, a, b;", kind, rows_of(kind, 2), rounded(kind, divide, mode))
    one = [(b,) for b in floats(FORMATS[kind]) + near(FORMATS[kind], 100)]
    check(f"sqrt.{mode}.{kind} d0, a;", kind, one, rounded(kind, square_root, mode))
    check(
        f"rcp.{mode}.{kind} d0, a;", kind, one,
        rounded(kind, lambda a: divide(finite(1), a), mode),
    )  # fmt: skip


def test_flushing_and_saturation():
    rows = rows_of("f32", 2)
    for op, exact in (("add", add), ("mul", multiply)):
        check(f"{op}.ftz.f32 d0, a, b;", "f32", rows, rounded("f32", exact, ftz=True))
        check(f"{op}.sat.f32 d0, a, b;", "f32", rows, rounded("f32", exact, sat=True))
        check(f"{op}.ftz.sat.f32 d0, a, b;", "f32", rows, rounded("f32", exact, ftz=True, sat=True))
    check("fma.rn.ftz.f32 d0, a, b, c;", "f32", rows_of("f32", 3), rounded("f32", fma, ftz=True))
    check("sub.ftz.f32 d0, a, b;", "f32", rows, rounded("f32", lambda a, b: add(a, -b), ftz=True))


def on_the_edge():
    """(a, b) whose products lie less than 2^-22 below 2^-126: by i^2 2^-46 of it."""
    rows = []
    for i in (1, 2, 64, 1447, 1448, 1449, 1450, 2047, 2048, 2049, 4095):
        a, b = 0x2000_0000 | i, 0x2000_0000 - 2 * i
        rows += [(a, b), (a | 1 << 31, b)]
    rows += [(0x3F7F_FFFF, 0x0080_0000), (0xBF7F_FFFF, 0x0080_0000)]
    return [(b, a) for a, b in rows] + rows


@pytest.mark.parametrize("mode", MODES)
def test_flushing_what_rounds_to_the_smallest_normal_number(mode):
    rows = on_the_edge()
    model = rounded("f32", multiply, mode, ftz=True)
    wanted = {model(*row) & 0x7FFF_FFFF for row in rows}
    assert wanted == ({0} if mode == "rz" else {0, 0x0080_0000})
    check(f"mul.{mode}.ftz.f32 d0, a, b;", "f32", rows, model)
    check(f"mul.{mode}.ftz.sat.f32 d0, a, b;", "f32", rows,
          rounded("f32", multiply, mode, ftz=True, sat=True))  # fmt: skip
    threes = [(*row, c) for row in rows for c in (0, 1 << 31, 0x0080_0000, 0x8080_0001)]
    check(f"fma.{mode}.ftz.f32 d0, a, b, c;", "f32", threes,
          rounded("f32", lambda a, b, c: fma(a, b, c, mode), mode, ftz=True))  # fmt: skip
    over = [(a, 0x7E80_0000 + k) for a in (0x3F7F_FFFF, 0x3F80_0000, 0xBF80_0000) for k in range(4)]
    check(f"div.{mode}.ftz.f32 d0, a, b;", "f32", over, rounded("f32", divide, mode, ftz=True))
    check(
        f"rcp.{mode}.ftz.f32 d0, b;", "f32", over,
        rounded("f32", lambda a, b: divide(finite(1), b), mode, ftz=True),
    )  # fmt: skip


# Operands and results of an H200, docs/results/emulator-h200.json.
BELOW_ONE, SMALLEST, NEGATIVE = 0x3F7F_FFFF, 0x0080_0000, 0x8080_0000


@pytest.mark.parametrize("mode", MODES)
def test_flushing_as_an_h200_does(mode):
    rows = [(BELOW_ONE, SMALLEST), (BELOW_ONE, NEGATIVE), (SMALLEST, BELOW_ONE)]
    inputs = [("f32", c) for c in columns(rows)]
    (found,) = run(f"mul.{mode}.ftz.f32 d0, a, b;", inputs, ["f32"])
    assert found == [0, 1 << 31, 0]
    (found,) = run(f"fma.{mode}.ftz.f32 d0, a, b, 0f80000000;", inputs, ["f32"])
    assert found == [0, 1 << 31, 0]
    (found,) = run(f"mul.{mode}.f32 d0, a, b;", inputs, ["f32"])
    largest = SMALLEST - 1
    up, down = mode in ("rn", "rp"), mode in ("rn", "rm")
    assert found == [largest + up, 1 << 31 | largest + down, largest + up]


@pytest.mark.parametrize("how", ["approx", "full", "rn"])
def test_flushing_quotients_as_an_h200_does(how):
    (found,) = run(f"div.{how}.ftz.f32 d0, a, b;", [("f32", [BELOW_ONE]), ("f32", [0x7E80_0000])],
                   ["f32"])  # fmt: skip
    assert found == [0]


def test_fma_never_rounds_twice():
    """Sums whose double-precision value lies half way between two floats, or next to it."""
    rng = random.Random(9)
    rows = []
    for _ in range(600):
        a = f32_bits(1 + rng.getrandbits(23) / 2**23)
        b = f32_bits(1 + rng.getrandbits(12) / 2**12)
        c = f32_bits(
            math.ldexp(1 + rng.getrandbits(3) / 8, rng.choice([-30, -29, -28, -54, 24, 25]))
        )
        rows.append((a, b, c ^ rng.getrandbits(1) << 31))
    tiny = [(f32_bits(2.0**-63 * (1 + i / 64)), f32_bits(2.0**-75 * 1.5), i) for i in range(64)]
    check("fma.rn.f32 d0, a, b, c;", "f32", rows + tiny, rounded("f32", fma))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_neg_abs_copysign_testp(kind):
    form = FORMATS[kind]
    sign = 1 << (form.bits - 1)
    one = [(b,) for b in floats(form)]
    check(f"neg.{kind} d0, a;", kind, one, lambda a: a ^ sign)
    check(f"abs.{kind} d0, a;", kind, one, lambda a: a & ~sign)
    two = pairs(floats(form)[::5], 10, form.bits)
    check(f"copysign.{kind} d0, a, b;", kind, two, lambda a, b: (b & ~sign) | (a & sign))
    top = (2**form.exponent_bits - 1) << form.mantissa_bits
    tests = {
        "finite": lambda m: m < top, "infinite": lambda m: m == top, "number": lambda m: m <= top,
        "notanumber": lambda m: m > top, "normal": lambda m: 1 << form.mantissa_bits <= m < top,
        "subnormal": lambda m: 0 < m < 1 << form.mantissa_bits,
    }  # fmt: skip
    for name, model in tests.items():
        check(
            f"testp.{name}.{kind} d0, a;", kind, one, lambda a, f=model: int(f(a & ~sign)), "pred"
        )


def test_extremes():
    form = FORMATS["f32"]
    rows = rows_of("f32", 2)
    threes = rows_of("f32", 3)

    def chosen(*row, largest, nan, signs=False):
        numbers = [decode(b, form) for b in row]
        if signs:
            numbers = [-n if n.negative else n for n in numbers]
        result = numbers[0]
        for n in numbers[1:]:
            result = extreme(result, n, largest, nan)
        bits = encode(result, form)
        if signs and result.kind != NAN:
            for b in row:
                bits ^= b & 1 << 31
        return bits

    for op, largest in (("min", False), ("max", True)):
        for suffix, nan in (("", False), (".NaN", True)):
            for rs, names in ((rows, "a, b"), (threes, "a, b, c")):
                check(
                    f"{op}{suffix}.f32 d0, {names};", "f32", rs,
                    lambda *row, g=largest, n=nan: chosen(*row, largest=g, nan=n),
                )  # fmt: skip
            check(
                f"{op}{suffix}.xorsign.abs.f32 d0, a, b;", "f32", rows,
                lambda *row, g=largest, n=nan: chosen(*row, largest=g, nan=n, signs=True),
            )  # fmt: skip
        check(
            f"{op}.f64 d0, a, b;", "f64", rows_of("f64", 2),
            lambda a, b, g=largest: encode(
                extreme(decode(a, FORMATS["f64"]), decode(b, FORMATS["f64"]), g, False),
                FORMATS["f64"],
            ),
        )  # fmt: skip


def ulps(bits: int, width: int = 32) -> int:
    sign = 1 << (width - 1)
    return bits if bits < sign else sign - bits


def within(count, form):
    """At most so many representable numbers apart."""

    def close(found, wanted):
        if same_float(found, wanted, form):
            return True
        return abs(ulps(found, form.bits) - ulps(wanted, form.bits)) <= count

    return close


def test_approximations():
    """Against the mathematical function, within the error that the ISA gives (2^-20 and better)."""
    form = FORMATS["f32"]
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 10.25, -7.5, 1e-3, 100.0, 1e-30, 3e38, -3e38]
    values += [random.Random(7).uniform(-20, 20) for _ in range(100)]
    one = [(f32_bits(v),) for v in values] + [(b,) for b in (0x7F800000, 0xFF800000, 0x7FC00000)]

    def model(function):
        def apply(a):
            x = struct.unpack("<f", struct.pack("<I", a))[0]
            try:
                return f32_bits(function(x))
            except (ValueError, OverflowError):
                return special(function, x)

        return apply

    def special(function, x):
        if math.isnan(x):
            return 0x7FFFFFFF
        name = getattr(function, "__name__", "")
        table = {
            "reciprocal": lambda: 0x7F800000 if math.copysign(1, x) > 0 else 0xFF800000,
            "reciprocal_root": lambda: (0x7F800000 | f32_bits(x)) if x == 0 else 0x7FFFFFFF,
            "log2": lambda: 0xFF800000 if x == 0 else 0x7FFFFFFF,
            "power": lambda: 0x7F800000,
        }
        return table[name]() if name in table else 0x7FFFFFFF

    def reciprocal(x):
        if x == 0:
            raise ValueError
        return 1 / x

    def reciprocal_root(x):
        if x <= 0:
            raise ValueError
        return 1 / math.sqrt(x)

    def power(x):
        return 0.0 if x < -1000 else 2.0**x

    def log2(x):
        return math.log2(x)

    close = within(4, form)
    check("rcp.approx.f32 d0, a;", "f32", one, model(reciprocal), close=close)
    check("rsqrt.approx.f32 d0, a;", "f32", one, model(reciprocal_root), close=close)
    check("sqrt.approx.f32 d0, a;", "f32", one, rounded("f32", square_root), close=close)
    check("ex2.approx.f32 d0, a;", "f32", one, model(power), close=close)
    check("lg2.approx.f32 d0, a;", "f32", one, model(log2), close=close)
    small = [(f32_bits(random.Random(k).uniform(-3, 3)),) for k in range(60)]
    for name in ("sin", "cos", "tanh"):
        check(f"{name}.approx.f32 d0, a;", "f32", small, model(getattr(math, name)), close=close)
    rows = pairs([f32_bits(v) for v in values if abs(v) < 1e30], 0, 32)
    check("div.full.f32 d0, a, b;", "f32", rows, rounded("f32", divide), close=close)
    check("div.approx.f32 d0, a, b;", "f32", rows, rounded("f32", divide), close=close)
    huge = [(f32_bits(1e38), f32_bits(1.7e38)), (f32_bits(1.0), f32_bits(-3e38))]
    check("div.approx.f32 d0, a, b;", "f32", huge, lambda a, b: (a ^ b) & 1 << 31)


def test_approximate_doubles():
    rows = [(b,) for b in near(FORMATS["f64"], 60)]

    def model(a):
        x = struct.unpack("<d", struct.pack("<Q", a & ~0xFFFFFFFF))[0]
        return struct.unpack("<Q", struct.pack("<d", 1 / x))[0]

    check(
        "rcp.approx.ftz.f64 d0, a;", "f64", rows, model,
        close=lambda f, w: abs((f >> 32) - (w >> 32)) <= 1 and f & 0xFFFFFFFF == 0,
    )  # fmt: skip


def test_approximate_roots_of_doubles():
    """rsqrt.approx.f64 keeps subnormal numbers; with .ftz they are zeros, and only the upper halves
    of the operand and of the result count."""
    form = FORMATS["f64"]
    rows = [(b,) for b in floats(form) + near(form, 80)]
    rows += [(b,) for b in (0x7FEFFFFF_FFFFFFFF, 0x00100000_00000001, 0x3FF00000_FFFFFFFF)]

    def model(bits):
        root = square_root(decode(bits, form))
        return encode(divide(finite(1), root), form)

    check("rsqrt.approx.f64 d0, a;", "f64", rows, model, close=within(4, form))

    def upper(bits):
        return model(flush(bits & ~0xFFFFFFFF, form))

    def close(found, wanted):
        if same_float(found, wanted, form):
            return True
        return abs((found >> 32) - (wanted >> 32)) <= 1 and found & 0xFFFFFFFF == 0

    check("rsqrt.approx.ftz.f64 d0, a;", "f64", rows, upper, close=close)


@pytest.mark.parametrize("mode", MODES)
def test_mad(mode):
    """mad of f32 and f64 is fma: the product is not rounded."""

    def exact(a, b, c):
        return fma(a, b, c, mode)

    for kind in ("f32", "f64"):
        rows = rows_of(kind, 3)
        check(f"mad.{mode}.{kind} d0, a, b, c;", kind, rows, rounded(kind, exact, mode))
        for ftz, sat in ((True, False), (False, True), (True, True)) if kind == "f32" else ():
            text = f"mad.{mode}{'.ftz' * ftz}{'.sat' * sat}.f32 d0, a, b, c;"
            check(text, kind, rows, rounded(kind, exact, mode, ftz, sat))


def subtract(a, b):
    return add(a, -b)


def pack2(low, high, bits):
    return low | high << bits


def test_pairs_of_singles():
    form = FORMATS["f32"]
    twos, threes = rows_of("f32", 2, 60), rows_of("f32", 3, 60)
    for op, exact, rows in (
        ("add", add, twos), ("sub", subtract, twos), ("mul", multiply, twos), ("fma", fma, threes)
    ):  # fmt: skip
        half = len(rows) // 2
        both = [
            tuple(pack2(x, y, 32) for x, y in zip(first, second, strict=True))
            for first, second in zip(rows[:half], rows[half : 2 * half], strict=True)
        ]
        names = ", ".join("abc"[: len(rows[0])])
        mode = ".rn" if op == "fma" else ""
        inputs = [("b64", c) for c in columns(both)]
        (found,) = run(f"{op}{mode}.f32x2 d0, {names};", inputs, ["b64"])
        model = rounded("f32", exact)
        for row, result in zip(both, found, strict=True):
            for shift in (0, 32):
                wanted = model(*(x >> shift & 0xFFFFFFFF for x in row))
                assert same_float(result >> shift & 0xFFFFFFFF, wanted, form)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(kind):
    rows, threes = rows_of(kind, 2, 200), rows_of(kind, 3, 300)
    check(f"add.{kind} d0, a, b;", kind, rows, rounded(kind, add))
    check(f"sub.{kind} d0, a, b;", kind, rows, rounded(kind, lambda a, b: add(a, -b)))
    check(f"mul.{kind} d0, a, b;", kind, rows, rounded(kind, multiply))
    check(f"fma.rn.{kind} d0, a, b, c;", kind, threes, rounded(kind, fma))
    form = FORMATS[kind]

    def relu(a, b, c):
        n = fma(decode(a, form), decode(b, form), decode(c, form))
        return encode(finite(0) if n.negative and n.kind != NAN else n, form)

    check(f"fma.rn.relu.{kind} d0, a, b, c;", kind, threes, relu)
    for op, largest in (("min", False), ("max", True)):
        for suffix, nan in (("", False), (".NaN", True)):
            check(
                f"{op}{suffix}.{kind} d0, a, b;", kind, rows,
                lambda a, b, g=largest, n=nan: encode(
                    extreme(decode(a, form), decode(b, form), g, n), form
                ),
            )  # fmt: skip
    sign = 1 << 15
    one = [(b,) for b in floats(form)]
    check(f"neg.{kind} d0, a;", kind, one, lambda a: a ^ sign)
    check(f"abs.{kind} d0, a;", kind, one, lambda a: a & ~sign)
    if kind == "f16":
        check("add.ftz.f16 d0, a, b;", kind, rows, rounded(kind, add, ftz=True))
        edge = [(0x2000 | i, 0x2000 - 2 * i) for i in range(1, 40)]
        check("mul.ftz.f16 d0, a, b;", kind, edge, rounded(kind, multiply, ftz=True))
        check("mul.ftz.f16 d0, a, b;", kind, rows, rounded(kind, multiply, ftz=True))
        check("mul.sat.f16 d0, a, b;", kind, rows, rounded(kind, multiply, sat=True))


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_pairs_of_halves(kind):
    single = kind.removesuffix("x2")
    form = FORMATS[single]
    rows = rows_of(single, 2, 100)
    both = [
        (pack2(a, c, 16), pack2(b, d, 16))
        for (a, b), (c, d) in zip(rows, reversed(rows), strict=True)
    ]
    inputs = [("b32", c) for c in columns(both)]
    for op, exact in (("add", add), ("mul", multiply)):
        (found,) = run(f"{op}.{kind} d0, a, b;", inputs, ["b32"])
        for (a, b), result in zip(both, found, strict=True):
            for s in (0, 16):
                wanted = rounded(single, exact)(a >> s & 0xFFFF, b >> s & 0xFFFF)
                assert same_float(result >> s & 0xFFFF, wanted, form)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_precision(kind):
    half, single = FORMATS[kind], FORMATS["f32"]
    rng = random.Random(3)
    halves, singles = floats(half) + near(half, 60), floats(single) + near(single, 60)
    rows = [(rng.choice(halves), rng.choice(halves), rng.choice(singles)) for _ in range(300)]
    inputs = list(zip((kind, kind, "f32"), columns(rows), strict=True))
    for mode in MODES:
        (found,) = run(f"fma.{mode}.f32.{kind} d0, a, b, c;", inputs, ["f32"])
        (sums,) = run(f"add.{mode}.f32.{kind} d0, a, c;", inputs, ["f32"])
        for (a, b, c), result, total in zip(rows, found, sums, strict=True):
            x, y, z = decode(a, half), decode(b, half), decode(c, single)
            assert same_float(result, encode(fma(x, y, z, mode), single, mode), single)
            assert same_float(total, encode(add(x, z, mode), single, mode), single)


@pytest.mark.parametrize("mode", MODES)
def test_differences_of_pairs_of_singles(mode):
    rows = rows_of("f32", 2, 60)
    both = [
        tuple(pack2(x, y, 32) for x, y in zip(first, second, strict=True))
        for first, second in zip(rows, reversed(rows), strict=True)
    ]
    for ftz in ("", ".ftz"):
        body = f"sub.{mode}{ftz}.f32x2 d0, a, b;"
        (found,) = run(body, [("b64", c) for c in columns(both)], ["b64"])
        model = rounded("f32", lambda a, b: add(a, -b, mode), mode, bool(ftz))
        for row, result in zip(both, found, strict=True):
            for shift in (0, 32):
                wanted = model(*(x >> shift & 0xFFFFFFFF for x in row))
                assert same_float(result >> shift & 0xFFFFFFFF, wanted, FORMATS["f32"]), body


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_differences(kind):
    """A half less an f32; .sat clamps the result."""
    half, single = FORMATS[kind], FORMATS["f32"]
    rng = random.Random(4)
    halves, singles = floats(half) + near(half, 60), floats(single) + near(single, 60)
    rows = [(rng.choice(halves), rng.choice(singles)) for _ in range(300)]
    rows += [(0, 0), (0, 1 << 31), (1 << 15, 0), (1 << 15, 1 << 31)]
    inputs = list(zip((kind, "f32"), columns(rows), strict=True))
    for mode in ("", *MODES):
        for sat in ("", ".sat"):
            body = f"sub{'.' * bool(mode)}{mode}{sat}.f32.{kind} d0, a, b;"
            (found,) = run(body, inputs, ["f32"])
            for (a, b), result in zip(rows, found, strict=True):
                exact = add(decode(a, half), -decode(b, single), mode or "rn")
                wanted = encode(exact, single, mode or "rn")
                if sat:
                    wanted = encode(saturate(decode(wanted, single)), single)
                assert same_float(result, wanted, single), (body, hex(a), hex(b), hex(result))


def power_of_two(number):
    if number.kind == NAN:
        return number
    if number.kind == INF or abs(number.value) > 400:
        return finite(0) if number.negative else Number(INF)
    return finite(Fraction(2.0 ** float(number.value)))


def hyperbolic_tangent(number):
    if number.kind == NAN or number.is_zero:
        return number
    if number.kind == INF:
        return finite(-1 if number.negative else 1)
    return finite(Fraction(math.tanh(float(number.value))))


def half_values(single):
    form = FORMATS[single]
    rng = random.Random(5)
    values = floats(form) + near(form, 100) + [rng.getrandbits(16) for _ in range(200)]
    steps = [Fraction(n, 4) for n in range(-110, 80)]
    return values + [encode(finite(n), form) for n in steps]


@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2", "bf16x2"])
def test_approximations_of_halves(kind):
    """ex2: relative 2^-9.9 of f16, 2^-7 of bf16; tanh: absolute 2^-10.987 and 2^-8; and half of the
    last bit. Infinities, zeros and NaN are exact."""
    single = kind.removesuffix("x2")
    form = FORMATS[single]
    values = half_values(single)
    power = ("ex2.approx.ftz", True) if single == "bf16" else ("ex2.approx", False)
    for opcode, ftz in (power, ("tanh.approx", False)):
        exact = hyperbolic_tangent if opcode.startswith("tanh") else power_of_two
        if kind == single:
            rows = [(x,) for x in values]
            (found,) = run(f"{opcode}.{kind} d0, a;", [(kind, values)], [kind])
        else:
            rows = list(zip(values, reversed(values), strict=True))
            packed = [pack2(*row, 16) for row in rows]
            (found,) = run(f"{opcode}.{kind} d0, a;", [("b32", packed)], ["b32"])
        for row, result in zip(rows, found, strict=True):
            for place, x in enumerate(row):
                bits = result >> 16 * place & 0xFFFF
                true = exact(decode(flush(x, form) if ftz else x, form))
                wanted = flush_rounded(true, form, "rn") if ftz else encode(true, form)
                if same_float(bits, wanted, form):
                    continue
                got = decode(bits, form)
                assert got.kind == true.kind == "finite", (opcode, hex(x), hex(bits), hex(wanted))
                bound = {"f16": 2.0**-9.9, "bf16": 2.0**-7}[single] * abs(true.value)
                if exact is hyperbolic_tangent:
                    bound = {"f16": 2.0**-10.987, "bf16": 2.0**-8}[single]
                assert abs(got.value - true.value) <= bound, (opcode, hex(x), hex(bits))


COMPARISONS = {
    "eq": lambda a, b: equal(a, b), "ne": lambda a, b: not equal(a, b), "lt": less,
    "le": lambda a, b: not less(b, a), "gt": lambda a, b: less(b, a),
    "ge": lambda a, b: not less(a, b),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_comparisons(kind):
    form = FORMATS[kind]
    rows = rows_of(kind, 2, 40)

    def ordered(comparison, unordered):
        def model(a, b):
            x, y = decode(a, form), decode(b, form)
            if NAN in (x.kind, y.kind):
                return int(unordered)
            return int(COMPARISONS[comparison](x, y))

        return model

    for name in COMPARISONS:
        check(f"setp.{name}.{kind} d0, a, b;", kind, rows, ordered(name, False), "pred")
        check(f"setp.{name}u.{kind} d0, a, b;", kind, rows, ordered(name, True), "pred")

    def both_numbers(a, b):
        return int(NAN not in (decode(a, form).kind, decode(b, form).kind))

    check(f"setp.num.{kind} d0, a, b;", kind, rows, both_numbers, "pred")
    check(f"setp.nan.{kind} d0, a, b;", kind, rows, lambda a, b: 1 - both_numbers(a, b), "pred")
    if kind in ("f32", "f64"):
        check(
            f"set.lt.u32.{kind} d0, a, b;", kind, rows,
            lambda a, b: 0xFFFFFFFF * ordered("lt", False)(a, b), "b32",
        )  # fmt: skip
        check(
            f"set.geu.f32.{kind} d0, a, b;", kind, rows,
            lambda a, b: 0x3F800000 * ordered("ge", True)(a, b), "f32",
        )  # fmt: skip


EXACT = {
    "add": (2, add), "sub": (2, lambda a, b, mode: add(a, -b, mode)),
    "mul": (2, lambda a, b, mode: multiply(a, b)), "fma": (3, fma),
}  # fmt: skip


def dotted(*modifiers):
    return "".join(f".{m}" for m in modifiers if m)


def check_lanes(texts, kind, single, rows, per_register):
    """texts: (opcode, model of one element); all run in one kernel, each on all rows.

    per_register: so many rows lie side by side in a register.
    """
    bits = FORMATS[single].bits
    groups = [rows[k : k + per_register] for k in range(0, len(rows), per_register)]
    packed = [
        tuple(sum(row[k] << place * bits for place, row in enumerate(group))
              for k in range(len(rows[0])))
        for group in groups
    ]  # fmt: skip
    names = ", ".join("abc"[: len(rows[0])])
    body = " ".join(f"{opcode} d{k}, {names};" for k, (opcode, _) in enumerate(texts))
    held = kind if per_register == 1 else f"b{bits * per_register}"
    results = run(body, [(held, c) for c in columns(packed)], [held] * len(texts))
    for (opcode, model), found in zip(texts, results, strict=True):
        for group, result in zip(groups, found, strict=True):
            for place, row in enumerate(group):
                element = result >> place * bits & (2**bits - 1)
                wanted = model(*row)
                assert same_float(element, wanted, FORMATS[single]), (
                    opcode, [hex(x) for x in row], hex(element), hex(wanted)
                )  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f32x2"])
@pytest.mark.parametrize("op", EXACT)
def test_every_modifier_of_singles(kind, op):
    """Each rounding with each choice of .ftz and .sat; a pair of singles has no .sat."""
    arity, exact = EXACT[op]
    rows = rows_of("f32", arity, 40)[-160:]
    texts = [
        (f"{op}{dotted(mode, ftz, sat)}.{kind}",
         rounded("f32", lambda *x, m=mode or "rn": exact(*x, m), mode or "rn", bool(ftz),
                 bool(sat)))
        for mode in MODES + ("",) * (op != "fma")
        for ftz in ("", "ftz")
        for sat in ("", "sat")[: 1 + (kind == "f32")]
    ]  # fmt: skip
    check_lanes(texts, kind, "f32", rows, 2 if kind == "f32x2" else 1)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2", "bf16x2"])
@pytest.mark.parametrize("op", EXACT)
def test_every_modifier_of_halves(kind, op):
    """.ftz and .sat are of f16 alone, .relu is of fma without .sat."""
    single = kind.removesuffix("x2")
    form = FORMATS[single]
    arity, exact = EXACT[op]
    rows = rows_of(single, arity, 60)[-240:]
    texts = []
    for mode in ("rn", "")[: 1 + (op != "fma")]:
        for ftz in ("", "ftz")[: 1 + (single == "f16")]:
            for last in ("", *(["sat"] * (single == "f16")), *(["relu"] * (op == "fma"))):
                plain = rounded(single, lambda *x: exact(*x, "rn"), "rn", bool(ftz), last == "sat")

                def model(*row, plain=plain, relu=last == "relu"):
                    bits = plain(*row)
                    negative = decode(bits, form).negative and decode(bits, form).kind != NAN
                    return 0 if relu and negative else bits

                texts.append((f"{op}{dotted(mode, ftz, last)}.{kind}", model))
    check_lanes(texts, kind, single, rows, 2 if kind.endswith("x2") else 1)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f16x2", "bf16x2"])
@pytest.mark.parametrize("arity", [2, 3])
def test_every_modifier_of_extremes(kind, arity):
    """.xorsign takes the signs of two operands, .abs of three stands alone."""
    single = kind.removesuffix("x2")
    if arity == 3 and single != "f32":
        pytest.skip("no such instruction")
    form = FORMATS[single]
    sign = 1 << (form.bits - 1)
    texts = []
    for op in ("min", "max"):
        for ftz in ("", "ftz")[: 1 + (single != "bf16")]:
            for nan in ("", "NaN"):
                for signs in ("", "xorsign.abs" if arity == 2 else "abs"):

                    def model(*row, op=op, ftz=ftz, nan=nan, signs=signs):
                        row = [flush(b, form) if ftz else b for b in row]
                        numbers = [decode(b & ~sign if signs else b, form) for b in row]
                        result = numbers[0]
                        for number in numbers[1:]:
                            result = extreme(result, number, op == "max", bool(nan))
                        bits = encode(result, form)
                        if signs == "xorsign.abs" and result.kind != NAN:
                            bits |= (row[0] ^ row[1]) & sign
                        return bits

                    texts.append((f"{op}{dotted(ftz, nan, signs)}.{kind}", model))
    rows = rows_of(single, arity, 40)
    random.Random(3).shuffle(rows)
    check_lanes(texts, kind, single, rows[:240], 2 if kind.endswith("x2") else 1)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f16x2", "bf16x2"])
def test_signs_flushed(kind):
    single = kind.removesuffix("x2")
    form = FORMATS[single]
    sign = 1 << (form.bits - 1)
    rows = [(b,) for b in floats(form) + near(form, 40)]
    texts = []
    for ftz in ("", "ftz")[: 1 + (single != "bf16")]:
        for op, change in (("neg", lambda x: x ^ sign), ("abs", lambda x: x & ~sign)):
            texts.append((
                f"{op}{dotted(ftz)}.{kind}",
                lambda x, f=ftz, change=change: change(flush(x, form) if f else x),
            ))  # fmt: skip
    check_lanes(texts, kind, single, rows, 2 if kind.endswith("x2") else 1)


@pytest.mark.parametrize("mode", MODES)
def test_roots_flushed(mode):
    rows = [(b,) for b in floats(FORMATS["f32"]) + near(FORMATS["f32"], 40)]
    check(f"sqrt.{mode}.ftz.f32 d0, a;", "f32", rows, rounded("f32", square_root, mode, ftz=True))
    check(f"rcp.{mode}.ftz.f32 d0, a;", "f32", rows,
          rounded("f32", lambda a: divide(finite(1), a), mode, ftz=True))  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mixed_sums_saturated(kind):
    half, single = FORMATS[kind], FORMATS["f32"]
    rng = random.Random(6)
    halves, singles = floats(half) + near(half, 60), floats(single) + near(single, 60)
    rows = [(rng.choice(halves), rng.choice(halves), rng.choice(singles)) for _ in range(200)]
    modes = [(op, mode) for op in ("add", "fma") for mode in MODES] + [("add", "")]
    body = " ".join(
        f"{op}{dotted(mode)}.sat.f32.{kind} d{k}, a, {'b, ' * (op == 'fma')}c;"
        for k, (op, mode) in enumerate(modes)
    )
    results = run(body, list(zip((kind, kind, "f32"), columns(rows), strict=True)),
                  ["f32"] * len(modes))  # fmt: skip
    for (op, mode), found in zip(modes, results, strict=True):
        for (a, b, c), result in zip(rows, found, strict=True):
            x, y, z = decode(a, half), decode(b, half), decode(c, single)
            exact = fma(x, y, z, mode) if op == "fma" else add(x, z, mode or "rn")
            wanted = decode(encode(exact, single, mode or "rn"), single)
            assert result == encode(saturate(wanted), single), (op, mode, hex(a), hex(b), hex(c))


def reference(name, x):
    """The function of an approximation; infinities and NaN as the ISA's tables give them."""
    if math.isnan(x):
        return x
    if name == "rcp":
        return 1 / x if x else math.copysign(math.inf, x)
    if name == "rsqrt":
        return 1 / math.sqrt(x) if x > 0 else math.nan if x < 0 else math.copysign(math.inf, x)
    if name == "sqrt":
        return x if x == 0 else math.sqrt(x) if x > 0 else math.nan
    if name == "ex2":
        return 2.0**x if x < 128 else math.inf
    if name == "lg2":
        return -math.inf if x == 0 else math.log2(x) if x > 0 else math.nan
    return getattr(math, name)(x)


@pytest.mark.parametrize("name", ["rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos"])
def test_approximations_flushed(name):
    """Subnormal operands count as zeros, and results that would be subnormal are zeros."""
    form = FORMATS["f32"]
    small = [1, 3, 0x7FFFFF, 0x400000, 0x800000, 0x800001, 0]
    values = [s | x for x in small for s in (0, 1 << 31)]
    values += [f32_bits(x) for x in (1.0, -1.0, 2.5, -3.0, 0.01, 1e-20)]
    if name in ("rcp", "ex2"):  # whose results may be subnormal
        values += [f32_bits(x) for x in (3e38, -3e38, 1e38, -126.0, -126.5, -130.0, -148.0)]

    def model(ftz):
        def apply(bits):
            x = struct.unpack("<f", struct.pack("<I", flush(bits, form) if ftz else bits))[0]
            found = reference(name, x)
            exact = (
                finite(Fraction(found), math.copysign(1, found) < 0)
                if math.isfinite(found)
                else Number(NAN if math.isnan(found) else INF, found < 0)
            )
            wanted = encode(exact, form)
            return flush(wanted, form) if ftz else wanted

        return apply

    rows = [(x,) for x in values]
    for ftz in ("", ".ftz"):
        check(f"{name}.approx{ftz}.f32 d0, a;", "f32", rows, model(bool(ftz)),
              close=within(2, form))  # fmt: skip


def test_numbers_are_what_the_model_says():
    """The model itself, on numbers that need no rounding."""
    rng = random.Random(11)
    for _ in range(300):
        x, y = rng.uniform(-9, 9), rng.uniform(-9, 9)
        a, b = (
            decode(struct.unpack("<Q", struct.pack("<d", v))[0], FORMATS["f64"]) for v in (x, y)
        )
        for result, wanted in ((add(a, b), x + y), (multiply(a, b), x * y), (divide(a, b), x / y)):
            bits = encode(result, FORMATS["f64"])
            assert struct.unpack("<d", struct.pack("<Q", bits))[0] == wanted
    assert struct.unpack("<f", struct.pack("<I", encode(finite(3), FORMATS["f32"])))[0] == 3.0
