"""shfl, vote, match, redux, elect, activemask against loops over lanes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from samples import FORMATS, near, same_float
from scalar_model import decode, encode, extreme
from whole_block import clean, kinds

from sparsekit.emulator import UnsupportedError

RNG = random.Random(0)
WORDS = np.array([RNG.getrandbits(32) for _ in range(64)], np.uint32)
IN_OUT = "mad.wide.u32 l0, tid, 4, source; mad.wide.u32 l1, tid, 4, target; ld.global.u32 r0, [l0];"
STORE = "st.global.u32 [l1], r1;"


def shuffled(values, mode, b, c):
    """The semantics of the ISA's text, lane by lane."""
    clamp, segmask = c & 31, c >> 8 & 31
    out, valid = [], []
    for lane in range(32):
        max_lane = (lane & segmask) | (clamp & ~segmask & 31)
        min_lane = lane & segmask
        if mode == "up":
            j = lane - b
            ok = j >= max_lane
        elif mode == "down":
            j = lane + b
            ok = j <= max_lane
        elif mode == "bfly":
            j = lane ^ b
            ok = j <= max_lane
        else:
            j = min_lane | (b & ~segmask & 31)
            ok = j <= max_lane
        out.append(values[j if ok else lane])
        valid.append(int(ok))
    return out, valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(
    ("b", "c"), [(1, 31), (5, 0x1C1F), (16, 31), (3, 0x181F), (2, 0), (7, 0x1F), (31, 0x100F)]
)
def test_shfl(mode, b, c):
    clamp = c & ~0x1F if mode == "up" else c
    body = f"{IN_OUT} shfl.sync.{mode}.b32 r1|p0, r0, {b}, {clamp}, 0xffffffff; {STORE}"
    body += "selp.u32 r2, 1, 0, p0; mad.wide.u32 l2, tid, 4, flags; st.global.u32 [l2], r2;"
    after = clean(body, {"source": WORDS, "target": 256, "flags": 256}, 64)
    for warp in range(2):
        part = slice(32 * warp, 32 * warp + 32)
        out, valid = shuffled(list(WORDS[part]), mode, b, clamp)
        assert list(after["target"][part]) == out
        assert list(after["flags"][part]) == valid


def test_shfl_by_a_lane_of_its_own():
    body = f"{IN_OUT} sub.u32 r3, 31, lane; shfl.sync.idx.b32 r1, r0, r3, 31, -1; {STORE}"
    after = clean(body, {"source": WORDS, "target": 256}, 64)
    assert list(after["target"]) == [*WORDS[31::-1], *WORDS[:31:-1]]


def test_votes():
    body = f"""{IN_OUT} and.b32 r2, r0, 1; setp.eq.u32 p0, r2, 1; mov.u32 r1, 0;
    vote.sync.ballot.b32 r3, p0, -1; vote.sync.any.pred p1, p0, -1; vote.sync.all.pred p2, p0, -1;
    vote.sync.uni.pred p3, p0, -1; vote.sync.any.pred p4, !p0, 0xffffffff;
    selp.u32 r4, 1, 0, p1; selp.u32 r5, 2, 0, p2; selp.u32 r6, 4, 0, p3; selp.u32 r7, 8, 0, p4;
    or.b32 r4, r4, r5; or.b32 r6, r6, r7; or.b32 r1, r4, r6; {STORE}
    mad.wide.u32 l2, tid, 4, ballots; st.global.u32 [l2], r3; """
    values = np.concatenate([WORDS[:32], WORDS[:32] | 1, WORDS[:32] & ~np.uint32(1)])
    after = clean(body, {"source": values, "target": 384, "ballots": 384}, 96)
    for warp in range(3):
        odd = [int(v) & 1 for v in values[32 * warp : 32 * warp + 32]]
        wanted = any(odd) | all(odd) << 1 | (all(odd) or not any(odd)) << 2 | (not all(odd)) << 3
        assert set(after["target"][32 * warp : 32 * warp + 32]) == {wanted}
        ballot = sum(bit << k for k, bit in enumerate(odd))
        assert set(after["ballots"][32 * warp : 32 * warp + 32]) == {ballot}


@pytest.mark.parametrize(
    ("op", "kind", "model"),
    [
        ("add", "u32", lambda v: sum(v)), ("add", "s32", lambda v: sum(v)),
        ("min", "u32", min), ("max", "u32", max),
        ("min", "s32", lambda v: min(x - (x >> 31 << 32) for x in v)),
        ("max", "s32", lambda v: max(x - (x >> 31 << 32) for x in v)),
        ("and", "b32", lambda v: np.bitwise_and.reduce(v)),
        ("or", "b32", lambda v: np.bitwise_or.reduce(v)),
        ("xor", "b32", lambda v: np.bitwise_xor.reduce(v)),
    ],
)  # fmt: skip
def test_redux(op, kind, model):
    body = f"{IN_OUT} redux.sync.{op}.{kind} r1, r0, 0xffffffff; {STORE}"
    after = clean(body, {"source": WORDS, "target": 256}, 64)
    half = f"""{IN_OUT} setp.lt.u32 p0, lane, 16; mov.u32 r1, 0; @!p0 bra L;
    redux.sync.{op}.{kind} r1, r0, 0xffff; L: {STORE}"""
    part = clean(half, {"source": WORDS, "target": 256}, 64)
    for warp in range(2):
        values = [int(v) for v in WORDS[32 * warp : 32 * warp + 32]]
        assert set(after["target"][32 * warp : 32 * warp + 32]) == {int(model(values)) % 2**32}
        first = part["target"][32 * warp : 32 * warp + 32]
        assert set(first[:16]) == {int(model(values[:16])) % 2**32}
        assert set(first[16:]) == {0}


def test_redux_of_floats():
    values = np.array([RNG.uniform(-9, 9) for _ in range(32)], np.float32)
    for op, model in (("min", min), ("max", max)):
        for suffix, view in (("", lambda x: x), (".abs", abs)):
            body = f"{IN_OUT} mov.b32 f0, r0; redux.sync.{op}{suffix}.f32 f1, f0, -1;"
            after = clean(body + "mov.b32 r1, f1;" + STORE, {"source": values, "target": 128})
            assert set(after["target"].view(np.float32)) == {model(view(v) for v in values)}


def test_match_elect_activemask():
    values = np.array([k % 5 for k in range(32)] + [7] * 32, np.uint32)
    body = f"""{IN_OUT} match.any.sync.b32 r1, r0, -1; {STORE}
    match.all.sync.b32 r2|p0, r0, -1; selp.u32 r3, 1, 0, p0; elect.sync r4|p1, -1;
    selp.u32 r5, 1, 0, p1; setp.gt.u32 p2, lane, 9; mov.u32 r6, 0; @p2 activemask.b32 r6;
    mad.wide.u32 l2, tid, 16, more; st.global.v4.u32 [l2], {{r2, r3, r5, r6}};"""
    after = clean(body, {"source": values, "target": 256, "more": 1024}, 64)
    same = [sum(1 << k for k in range(32) if k % 5 == lane % 5) for lane in range(32)]
    assert list(after["target"]) == same + [2**32 - 1] * 32
    more = after["more"].reshape(64, 4)
    assert list(more[:, 0]) == [0] * 32 + [2**32 - 1] * 32
    assert list(more[:, 1]) == [0] * 32 + [1] * 32
    assert list(more[:, 2]) == ([1] + [0] * 31) * 2
    upper = 2**32 - 2**10
    assert list(more[:, 3]) == [0 if k % 32 <= 9 else upper for k in range(64)]


def test_lanes_that_do_not_take_part():
    half = """setp.lt.u32 p0, lane, 16; @!p0 bra L; shfl.sync.bfly.b32 r1, tid, STEP, 31, MASK;
    L: bar.warp.sync 0xffffffff;"""

    def found(mask, step=1):
        return kinds(half.replace("MASK", mask).replace("STEP", str(step)), {})

    assert found("0xffff") == []
    assert found("-1") == ["divergence"]
    assert found("0x1ffff") == ["divergence"]
    assert found("0xff") == ["divergence"]  # lane 8 executes and is not named
    assert found("0xffff", 16) == ["divergence"]  # reads a lane that does not take part
    guarded = "setp.lt.u32 p0, lane, 16; @p0 vote.sync.any.pred p1, p0, -1; bar.warp.sync -1;"
    assert kinds(guarded, {}) == ["divergence"]
    assert kinds("setp.lt.u32 p0, lane, 16; @p0 exit; vote.sync.any.pred p1, p0, -1;", {}) == []


def test_match_of_64_bits():
    """Values that differ in their upper halves alone differ."""
    upper = np.array([k % 3 for k in range(32)] + [7] * 32, np.uint64) << np.uint64(32)
    body = """mad.wide.u32 l0, tid, 8, source; ld.global.u64 l1, [l0];
    match.any.sync.b64 r1, l1, -1; match.all.sync.b64 r2|p0, l1, -1; selp.u32 r3, 1, 0, p0;
    mad.wide.u32 l2, tid, 16, out; st.global.v4.u32 [l2], {r1, r2, r3, r3};"""
    out = clean(body, {"source": upper | np.uint64(5), "out": 1024}, 64)["out"].reshape(64, 4)
    same = [sum(1 << k for k in range(32) if k % 3 == lane % 3) for lane in range(32)]
    assert out[:, 0].tolist() == same + [2**32 - 1] * 32
    assert out[:, 1].tolist() == [0] * 32 + [2**32 - 1] * 32
    assert out[:, 2].tolist() == [0] * 32 + [1] * 32


def test_match_any_gives_no_predicate():
    with pytest.raises(UnsupportedError, match="no predicate"):
        clean("match.any.sync.b32 r1|p0, tid, -1;", {}, 32)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("signs", ["", ".abs"])
@pytest.mark.parametrize("nan", ["", ".NaN"])
def test_redux_of_floats_with_nan(op, signs, nan):
    """A NaN in one warp of three, and in all lanes of another; -0 is less than +0 in the third."""
    form = FORMATS["f32"]
    rng = random.Random(6)
    numbers = near(form, 40)
    values = [[rng.choice(numbers) for _ in range(32)], [0x7FC00000] * 32,
              [rng.choice([0, 1 << 31]) for _ in range(32)]]  # fmt: skip
    values[0][13] = 0xFFC00001
    body = f"""mad.wide.u32 l0, tid, 4, source; ld.global.f32 f0, [l0];
    redux.sync.{op}{signs}{nan}.f32 f1, f0, -1; mad.wide.u32 l1, tid, 4, out;
    st.global.f32 [l1], f1;"""
    source = np.array(values, np.uint32).reshape(-1)
    out = clean(body, {"source": source, "out": np.zeros(96, np.uint32)}, 96)["out"]
    for warp, row in enumerate(values):
        result = None
        for bits in row:
            number = decode(bits & 0x7FFFFFFF if signs else bits, form)
            result = number if result is None else extreme(result, number, op == "max", bool(nan))
        for found in out[32 * warp : 32 * warp + 32].tolist():
            assert same_float(found, encode(result, form), form), (op, signs, nan, hex(found))
