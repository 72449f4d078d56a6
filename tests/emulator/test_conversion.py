"""cvt between all types, against exact numbers."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from one_instruction import BYTES, run
from samples import FORMATS, columns, floats, integers, near, same_float
from scalar_model import (
    E4M3,
    E5M2,
    F16,
    F32,
    INF,
    NAN,
    TF32,
    as_integer,
    clamp,
    decode,
    encode,
    finite,
    flush,
    flush_rounded,
    round_integer,
    saturate,
)

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")


def width(kind):
    return int(kind[1:])


def is_narrowing(source, target):
    """Whether a type lacks values of another: else there is no .sat."""
    lowest, highest = (1 << (width(source) - 1), (1 << (width(source) - 1)) - 1)
    if source[0] == "u":
        lowest, highest = 0, (1 << width(source)) - 1
    return any(clamp(x, target) != x for x in (as_integer(lowest, source), highest))


def integers_of(kind):
    """The types that a floating one is converted from and to: bf16 none of 8 bits."""
    return INTEGERS[2:] if kind == "bf16" else INTEGERS


@pytest.mark.parametrize("source", INTEGERS)
def test_between_integers(source):
    values = integers(width(source))
    for target in INTEGERS:
        for sat in ("", ".sat")[: 1 + is_narrowing(source, target)]:
            (found,) = run(f"cvt{sat}.{target}.{source} d0, a;", [(source, values)], [target])
            for bits, result in zip(values, found, strict=True):
                value = as_integer(bits, source)
                if sat:
                    value = clamp(value, target)
                mask = 256 ** BYTES[target] - 1
                assert result == value & mask, (target, source, sat, hex(bits))


@pytest.mark.parametrize("source", INTEGERS)
def test_from_integers(source):
    rng = random.Random(1)
    bits = width(source)
    values = integers(bits) + [rng.getrandbits(bits) >> rng.randrange(bits) for _ in range(60)]
    values += [2**k + d for k in range(24, bits) for d in (-1, 0, 1)]
    for target in FLOATS:
        if source not in integers_of(target):
            continue
        form = FORMATS[target]
        ftzs = ("", ".ftz")[: 1 + (target == "f32")]  # no integer becomes a subnormal number
        spellings = [(mode, ftz) for mode in ("rn", "rz", "rm", "rp") for ftz in ftzs]
        body = " ".join(
            f"cvt.{mode}{ftz}.{target}.{source} d{k}, a;" for k, (mode, ftz) in enumerate(spellings)
        )
        results = run(body, [(source, values)], [target] * len(spellings))
        for (mode, ftz), found in zip(spellings, results, strict=True):
            for x, result in zip(values, found, strict=True):
                wanted = encode(finite(as_integer(x, source)), form, mode)
                assert result == wanted, (target, source, mode, ftz, hex(x), hex(result))


def integer_of(number, mode, source, target):
    """The ISA's table: clamped; NaN is 0 or the top bit."""
    size = width(target)
    if number.kind == NAN:
        return 1 << (size - 1) if source == "f64" or size == 64 else 0
    if number.kind == INF:
        value = -(2**70) if number.negative else 2**70
    else:
        value = round_integer(number.value, mode)
    return clamp(value, target)


@pytest.mark.parametrize("source", FLOATS)
def test_to_integers(source):
    form = FORMATS[source]
    values = floats(form) + near(form, 80)
    values += [encode(finite(n), form) for n in (127, 128, 255, 256, -1, 2**31, 2**63, -(2**63))]
    for target in integers_of(source):
        ftzs = ("", ".ftz")[: 1 + (source == "f32")]
        spellings = [(mode, ftz) for mode in ("rni", "rzi", "rmi", "rpi") for ftz in ftzs]
        body = " ".join(
            f"cvt.{mode}{ftz}.{target}.{source} d{k}, a;" for k, (mode, ftz) in enumerate(spellings)
        )
        results = run(body, [(source, values)], [target] * len(spellings))
        for (mode, ftz), found in zip(spellings, results, strict=True):
            for x, result in zip(values, found, strict=True):
                number = decode(flush(x, form) if ftz else x, form)
                wanted = integer_of(number, mode[:2], source, target)
                assert result == wanted & (256 ** BYTES[target] - 1), (target, mode, ftz, hex(x))


@pytest.mark.parametrize("kind", FLOATS)
def test_integers_that_stay_floats(kind):
    form = FORMATS[kind]
    values = floats(form) + near(form, 80)
    ftzs = ("", ".ftz")[: 1 + (kind == "f32")]
    for mode, ftz in [(m, f) for m in ("rni", "rzi", "rmi", "rpi") for f in ftzs]:
        (found,) = run(f"cvt.{mode}{ftz}.{kind}.{kind} d0, a;", [(kind, values)], [kind])
        for x, result in zip(values, found, strict=True):
            number = decode(flush(x, form) if ftz else x, form)
            if number.kind == "finite":
                whole = round_integer(number.value, mode[:2])
                number = finite(whole, number.negative)
            assert same_float(result, encode(number, form), form), (mode, hex(x), hex(result))


@pytest.mark.parametrize("source", FLOATS)
def test_between_floats(source):
    form = FORMATS[source]
    values = floats(form) + near(form, 60)
    for target in FLOATS:
        modes = [""] if target == "f64" or target == source else ["rn", "rz", "rm", "rp"]
        if target == "f32" and source != "f64":
            modes = [""]
        for mode in modes:
            dotted = f".{mode}" if mode else ""
            body = f"cvt{dotted}.{target}.{source} d0, a;"
            (found,) = run(body, [(source, values)], [target])
            for x, result in zip(values, found, strict=True):
                wanted = encode(decode(x, form), FORMATS[target], mode or "rn")
                assert same_float(result, wanted, FORMATS[target]), (body, hex(x), hex(result))


def test_modifiers():
    values = floats(F32) + near(F32, 40)
    inputs = [("f32", values)]
    (found,) = run("cvt.sat.f32.f32 d0, a;", inputs, ["f32"])
    assert found == [encode(saturate(decode(x, F32)), F32) for x in values]
    (found,) = run("cvt.ftz.f64.f32 d0, a;", inputs, ["f64"])
    for x, result in zip(values, found, strict=True):
        wanted = encode(decode(flush(x, F32), F32), FORMATS["f64"])
        assert same_float(result, wanted, FORMATS["f64"])
    for kind in ("f16", "bf16"):
        form = FORMATS[kind]
        for mode in ("rn", "rz"):
            (plain,) = run(f"cvt.{mode}.relu.{kind}.f32 d0, a;", inputs, [kind])
            (limited,) = run(f"cvt.{mode}.satfinite.{kind}.f32 d0, a;", inputs, [kind])
            for x, relu, limit in zip(values, plain, limited, strict=True):
                number = decode(x, F32)
                positive = finite(0) if number.negative and number.kind != NAN else number
                assert same_float(relu, encode(positive, form, mode), form), hex(x)
                assert same_float(limit, encode(number, form, mode, satfinite=True), form), hex(x)


def saturated(number, form, mode="rn"):
    """.sat of a floating-point result: [0, 1], and +0 of a NaN."""
    return encode(saturate(decode(encode(number, form, mode), form)), form)


SATURATED = ("f16", "f32", "f64")  # bf16 has no .sat


@pytest.mark.parametrize("source", SATURATED)
def test_saturated_floats(source):
    form = FORMATS[source]
    values = floats(form) + near(form, 80) + [1 << (form.bits - 2), form.bias << form.mantissa_bits]
    for target in SATURATED:
        exact = target in ("f64", source) or (target == "f32" and source != "f64")
        modes = [""] if exact else ["rn", "rz", "rm", "rp"]
        ftzs = ("", ".ftz") if "f32" in (source, target) else ("",)
        for mode in modes:
            for ftz in ftzs:
                body = f"cvt{'.' * bool(mode)}{mode}{ftz}.sat.{target}.{source} d0, a;"
                (found,) = run(body, [(source, values)], [target])
                for x, result in zip(values, found, strict=True):
                    number = decode(flush(x, form) if ftz and source == "f32" else x, form)
                    wanted = saturated(number, FORMATS[target], mode or "rn")
                    if ftz and target == "f32":
                        rounded = flush_rounded(number, F32, mode or "rn")
                        wanted = saturated(decode(rounded, F32), F32)
                    assert result == wanted, (body, hex(x), hex(result), hex(wanted))


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_singles_of_halves_flushed(source):
    """.ftz is of f32: a subnormal bf16 is a subnormal f32, a subnormal f16 is not."""
    values = floats(FORMATS[source])
    (found,) = run(f"cvt.ftz.f32.{source} d0, a;", [(source, values)], ["f32"])
    for x, result in zip(values, found, strict=True):
        wanted = flush(encode(decode(x, FORMATS[source]), F32), F32)
        assert same_float(result, wanted, F32), (hex(x), hex(result))


@pytest.mark.parametrize("kind", SATURATED)
def test_saturated_integers_that_stay_floats(kind):
    form = FORMATS[kind]
    values = floats(form) + near(form, 80)
    values += [encode(finite(n), form) for n in (Fraction(1, 2), Fraction(3, 2), Fraction(-1, 2))]
    for mode in ("rni", "rzi", "rmi", "rpi"):
        (found,) = run(f"cvt.{mode}.sat.{kind}.{kind} d0, a;", [(kind, values)], [kind])
        for x, result in zip(values, found, strict=True):
            number = decode(x, form)
            if number.kind == "finite":
                number = finite(round_integer(number.value, mode[:2]), number.negative)
            assert result == encode(saturate(number), form), (mode, hex(x), hex(result))


@pytest.mark.parametrize("source", INTEGERS)
def test_saturated_floats_of_integers(source):
    values = integers(width(source))
    for target in SATURATED:
        for mode in ("rn", "rz", "rm", "rp"):
            body = f"cvt.{mode}.sat.{target}.{source} d0, a;"
            (found,) = run(body, [(source, values)], [target])
            for x, result in zip(values, found, strict=True):
                wanted = saturated(finite(as_integer(x, source)), FORMATS[target], mode)
                assert result == wanted, (body, hex(x), hex(result))


@pytest.mark.parametrize("source", SATURATED)
def test_saturated_integers_of_floats(source):
    """.sat changes nothing: the result is clamped in any case."""
    form = FORMATS[source]
    values = floats(form) + near(form, 40)
    for target in INTEGERS:
        body = f"cvt.rni.sat.{target}.{source} d0, a;"
        (found,) = run(body, [(source, values)], [target])
        for x, result in zip(values, found, strict=True):
            wanted = integer_of(decode(x, form), "rn", source, target)
            assert result == wanted & (256 ** BYTES[target] - 1), (body, hex(x), hex(result))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_two_singles_to_a_pair(kind):
    rng = random.Random(2)
    values = floats(F32) + near(F32, 100)
    rows = [(rng.choice(values), rng.choice(values)) for _ in range(300)]
    form = FORMATS[kind]
    inputs = [("f32", c) for c in columns(rows)]
    spellings = [
        (mode, relu, limit)
        for mode in ("rn", "rz") for relu in ("", ".relu") for limit in ("", ".satfinite")
    ]  # fmt: skip
    for mode, relu, limit in spellings:
        body = f"cvt.{mode}{relu}{limit}.{kind}x2.f32 d0, a, b; "
        body += f"cvt.{mode}{relu}{limit}.{kind}.f32 d1, a;"
        found, single = run(body, inputs, ["b32", "b16"])
        for (a, b), result, alone in zip(rows, found, single, strict=True):
            high, low = (
                encode(positive(decode(x, F32), relu), form, mode, satfinite=bool(limit))
                for x in (a, b)
            )
            assert same_float(result >> 16, high, form), (body, hex(a))
            assert same_float(result & 0xFFFF, low, form), (body, hex(b))
            assert same_float(alone, high, form), (body, hex(a))


def positive(number, relu):
    """.relu: what is negative becomes +0, a NaN stays one."""
    return finite(0) if relu and number.negative and number.kind != NAN else number


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves_of_singles_flushed(kind):
    """.ftz is of the single: a subnormal half stays."""
    form = FORMATS[kind]
    values = floats(F32) + near(F32, 40)
    values += [encode(finite(Fraction(k, 2**24)), F32) for k in (1, 3, 1023)]
    modes = ("rn", "rz", "rm", "rp")
    body = " ".join(f"cvt.{mode}.ftz.{kind}.f32 d{k}, a;" for k, mode in enumerate(modes))
    for mode, found in zip(modes, run(body, [("f32", values)], [kind] * 4), strict=True):
        for x, result in zip(values, found, strict=True):
            wanted = encode(decode(flush(x, F32), F32), form, mode)
            assert same_float(result, wanted, form), (mode, hex(x), hex(result))


def test_tf32():
    values = floats(F32) + near(F32, 100)
    for mode in ("rna", "rn", "rz"):
        (found,) = run(f"cvt.{mode}.tf32.f32 d0, a;", [("f32", values)], ["b32"])
        for x, result in zip(values, found, strict=True):
            number = decode(x, F32)
            if number.kind == NAN:
                assert result == (x & 0xFFFFE000 if mode == "rna" else 0x7FFFFFFF)
            else:
                assert result == encode(number, TF32, mode) << 13, (mode, hex(x), hex(result))


def test_tf32_of_nan_is_cut():
    """As an H200 does, docs/results/emulator-h200.json: the first becomes infinity. The others are
    what ptxas makes of it: no rounding of what is not finite, and the low 13 bits off."""
    values = [0x7F800001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234, 0x7FFFFFFF, 0xFF801FFF]
    (found,) = run("cvt.rna.tf32.f32 d0, a;", [("f32", values)], ["b32"])
    wanted = [0x7F800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FFFE000, 0xFF800000]
    assert found == wanted


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_flushing_doubles(mode):
    """The bounds that ptxas compares with: a double that 24 bits round to 2^-126 stays."""
    near_smallest = [0x380FFFFF_00000000 + low for low in (
        0xDFFFFFFF, 0xE0000000, 0xE0000001, 0xEFFFFFFF, 0xF0000000, 0xF0000001, 0xFFFFFFFF
    )]  # fmt: skip
    values = [*near_smallest, 0x38100000_00000000, 0x38100000_00000001]
    values += [x | 1 << 63 for x in values]
    (found,) = run(f"cvt.{mode}.ftz.f32.f64 d0, a;", [("f64", values)], ["f32"])
    for x, result in zip(values, found, strict=True):
        assert result == flush_rounded(decode(x, FORMATS["f64"]), F32, mode), (hex(x), hex(result))
    stays = [result & 0x7FFFFFFF == 0x00800000 for result in found[:7]]
    least = {"rn": 4, "rp": 2}.get(mode, 7)  # of positive numbers
    assert stays == [k >= least for k in range(7)]


@pytest.mark.parametrize(("kind", "form"), [("e4m3", E4M3), ("e5m2", E5M2)])
def test_fp8(kind, form):
    rng = random.Random(3)
    values = (
        floats(F32) + near(F32, 100) + [encode(finite(n), F32) for n in (448, 464, 57344, 61440)]
    )
    rows = [(rng.choice(values), rng.choice(values)) for _ in range(300)]
    inputs = [("f32", c) for c in columns(rows)]
    halves = [rng.getrandbits(32) for _ in range(200)]
    pairs = list(range(0, 65536, 29))
    for relu in ("", ".relu"):

        def byte_of(bits, source, relu=relu):
            return encode(positive(decode(bits, source), relu), form, satfinite=True)

        (found,) = run(f"cvt.rn.satfinite{relu}.{kind}x2.f32 d0, a, b;", inputs, ["b16"])
        for (a, b), result in zip(rows, found, strict=True):
            for x, byte in ((a, result >> 8), (b, result & 0xFF)):
                assert byte == byte_of(x, F32), (relu, hex(x), hex(byte))
        (found,) = run(f"cvt.rn.satfinite{relu}.{kind}x2.f16x2 d0, a;", [("b32", halves)], ["b16"])
        for x, result in zip(halves, found, strict=True):
            for half, byte in ((x >> 16, result >> 8), (x & 0xFFFF, result & 0xFF)):
                assert byte == byte_of(half, F16), (relu, hex(half), hex(byte))
        (found,) = run(f"cvt.rn{relu}.f16x2.{kind}x2 d0, a;", [("b16", pairs)], ["b32"])
        for x, result in zip(pairs, found, strict=True):
            for byte, half in ((x >> 8, result >> 16), (x & 0xFF, result & 0xFFFF)):
                wanted = encode(positive(decode(byte, form), relu), F16)
                assert same_float(half, wanted, F16), (relu, hex(byte), hex(half))


def test_pack():
    rng = random.Random(4)
    rows = [(rng.getrandbits(32) >> rng.randrange(32), rng.getrandbits(20), rng.getrandbits(32))
            for _ in range(100)]  # fmt: skip
    inputs = [("b32", c) for c in columns(rows)]
    for kind in ("u16", "s16"):
        (found,) = run(f"cvt.pack.sat.{kind}.s32 d0, a, b;", inputs, ["b32"])
        for (a, b, _), result in zip(rows, found, strict=True):
            high, low = (clamp(as_integer(x, "s32"), kind) & 0xFFFF for x in (a, b))
            assert result == high << 16 | low
    for kind in ("u8", "s8"):
        (found,) = run(f"cvt.pack.sat.{kind}.s32.b32 d0, a, b, c;", inputs, ["b32"])
        for (a, b, c), result in zip(rows, found, strict=True):
            high, low = (clamp(as_integer(x, "s32"), kind) & 0xFF for x in (a, b))
            assert result == (c << 16 | high << 8 | low) & 0xFFFFFFFF
