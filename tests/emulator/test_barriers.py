"""Barriers: rendezvous, named ones, arrivals, reductions, misuse and deadlock."""

from __future__ import annotations

import numpy as np
import pytest
from whole_block import clean, kinds, run_block

from sparsekit.emulator import Schedule

SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 3), Schedule("random", 4)]
CELLS = ".shared .align 16 .b8 cells[4096];"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_neighbours_see_what_was_written(schedule):
    body = """
    mov.u32 r0, cells; mad.lo.u32 r1, tid, 4, r0; st.shared.u32 [r1], tid; bar.sync 0;
    xor.b32 r2, tid, 32; mad.lo.u32 r3, r2, 4, r0; ld.shared.u32 r4, [r3]; bar.sync 0;
    add.u32 r4, r4, 1; st.shared.u32 [r1], r4; barrier.sync 0; ld.shared.u32 r5, [r3];
    mad.wide.u32 l0, tid, 4, out; st.global.u32 [l0], r5;
    """
    after = clean(body, {"out": 512}, 128, shared=CELLS, schedule=schedule)
    assert list(after["out"]) == [t + 1 for t in range(128)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_producers_and_consumers(schedule):
    """bar.arrive on one side, bar.sync on the other, on two barriers, over a ring of one cell."""
    body = """
    mov.u32 r0, cells; mov.u32 r9, 0; mov.u32 r8, 0; setp.ge.u32 p0, warp, 1; @p0 bra TAKE;
    GIVE: setp.eq.u32 p1, r9, 0; @p1 bra FREE; bar.sync 2, 64;
    FREE: mad.lo.u32 r1, lane, 4, r0; mad.lo.u32 r2, r9, 100, lane; st.shared.u32 [r1], r2;
    bar.arrive 1, 64; add.u32 r9, r9, 1; setp.lt.u32 p2, r9, 5; @p2 bra GIVE; bar.sync 2, 64; ret;
    TAKE: bar.sync 1, 64; xor.b32 r3, lane, 31; mad.lo.u32 r1, r3, 4, r0; ld.shared.u32 r2, [r1];
    add.u32 r8, r8, r2; bar.arrive 2, 64; add.u32 r9, r9, 1; setp.lt.u32 p2, r9, 5; @p2 bra TAKE;
    mad.wide.u32 l0, lane, 4, out; st.global.u32 [l0], r8;
    """
    after = clean(body, {"out": 128}, 64, shared=CELLS, schedule=schedule)
    assert list(after["out"]) == [1000 + 5 * (31 - t) for t in range(32)]


def test_barrier_number_from_a_register():
    """Pairs of warps meet at barriers of their own."""
    body = """
    mov.u32 r0, cells; mad.lo.u32 r1, tid, 4, r0; st.shared.u32 [r1], tid; shr.u32 r2, warp, 1;
    add.u32 r2, r2, 3; bar.sync r2, 64; xor.b32 r3, tid, 32; mad.lo.u32 r3, r3, 4, r0;
    ld.shared.u32 r4, [r3]; mad.wide.u32 l0, tid, 4, out; st.global.u32 [l0], r4;
    """
    after = clean(body, {"out": 512}, 128, shared=CELLS)
    assert list(after["out"]) == [t ^ 32 for t in range(128)]


def test_reductions():
    body = """
    setp.lt.u32 p0, tid, 40; bar.red.popc.u32 r1, 0, p0; bar.red.and.pred p1, 1, 96, p0;
    bar.red.or.pred p2, 2, !p0; barrier.red.popc.aligned.u32 r5, 0, !p0;
    selp.u32 r2, 1000, 0, p1; selp.u32 r3, 2000, 0, p2; add.u32 r1, r1, r2; add.u32 r1, r1, r3;
    mad.lo.u32 r1, r5, 10000, r1; mad.wide.u32 l0, tid, 4, out; st.global.u32 [l0], r1;
    """
    after = clean(body, {"out": 384}, 96)
    assert set(after["out"]) == {40 + 2000 + 560000}


VOTES = {
    "none": lambda t: False, "all": lambda t: True, "first": lambda t: t == 0,
    "all but the last": lambda t: t < 63, "odd": lambda t: t % 2 == 1, "warp": lambda t: t >= 32,
}  # fmt: skip


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("base", ["bar", "bar.cta", "barrier", "barrier.cta"])
def test_reductions_of_named_barriers(base, vote):
    """The first 64 of 96 threads meet, each with a predicate; every one of them has the result."""
    bits = [VOTES[vote](t) for t in range(64)]
    votes = np.array([*bits, *[not bits[0]] * 32], np.uint32)
    aligned = [".aligned", ""] if base.startswith("barrier") else [""]
    for tail in aligned:
        body = f"""mad.wide.u32 l0, tid, 4, votes; ld.global.u32 r0, [l0]; setp.ne.u32 p0, r0, 0;
        setp.ge.u32 p1, warp, 2; @p1 bra END; {base}.red.and{tail}.pred p2, 3, 64, p0;
        {base}.red.or{tail}.pred p3, 4, 64, p0; {base}.red.and{tail}.pred p4, 3, 64, !p0;
        {base}.red.or{tail}.pred p5, 4, 64, !p0; {base}.red.popc{tail}.u32 r1, 5, 64, p0;
        selp.u32 r2, 1, 0, p2; selp.u32 r3, 2, 0, p3; selp.u32 r4, 4, 0, p4;
        selp.u32 r5, 8, 0, p5; add.u32 r2, r2, r3; add.u32 r4, r4, r5; add.u32 r2, r2, r4;
        mad.lo.u32 r2, r1, 16, r2; mad.wide.u32 l1, tid, 4, out; st.global.u32 [l1], r2; END:"""
        after = clean(body, {"votes": votes, "out": np.full(96, 7, np.uint32)}, 96)
        wanted = all(bits) | any(bits) << 1 | (not any(bits)) << 2 | (not all(bits)) << 3
        assert list(after["out"]) == [wanted + 16 * sum(bits)] * 64 + [7] * 32


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("form", ["", ".cta"])
@pytest.mark.parametrize("aligned", ["", ".aligned"])
def test_barrier_arrive(schedule, form, aligned):
    """One warp writes and goes on; the other waits for it before it reads."""
    body = f"""mov.u32 r0, cells; mad.lo.u32 r1, lane, 4, r0; setp.eq.u32 p0, warp, 0;
    @p0 bra TAKE; add.u32 r2, lane, 100; st.shared.u32 [r1], r2;
    barrier{form}.arrive{aligned} 1, 64; bra END;
    TAKE: barrier{form}.sync{aligned} 1, 64; xor.b32 r3, lane, 31; mad.lo.u32 r4, r3, 4, r0;
    ld.shared.u32 r5, [r4]; mad.wide.u32 l0, lane, 4, out; st.global.u32 [l0], r5; END:"""
    after = clean(body, {"out": 128}, 64, shared=CELLS, schedule=schedule)
    assert list(after["out"]) == [131 - t for t in range(32)]


def test_threads_that_have_exited_are_not_awaited():
    body = "setp.lt.u32 p0, tid, 40; @p0 exit; bar.sync 0; mov.u32 r1, 1;"
    assert kinds(body, {}, 96) == []


def test_lanes_of_a_warp_may_reach_a_barrier_apart():
    body = """and.b32 r0, tid, 1; setp.eq.u32 p0, r0, 0; @p0 bra EVEN; barrier.sync 0; bra END;
    EVEN: barrier.sync 0; END: mov.u32 r1, 1;"""
    assert kinds(body, {}, 64) == []


def test_deadlock_says_who_waits_where():
    body = "setp.eq.u32 p0, warp, 2; @p0 bra OTHER; bar.sync 1, 96; ret; OTHER: bar.sync 2, 96;"
    report, _ = run_block(body, {}, 96)
    (fault,) = report.faults
    assert fault.kind == "deadlock"
    assert "warps 0-1 of block (0, 0, 0) wait at barrier 1" in fault.message
    assert "64 of 96 threads have arrived" in fault.message
    assert "warps 2 of block (0, 0, 0) wait at barrier 2" in fault.message
    gone = "setp.eq.u32 p0, warp, 1; @p0 exit; bar.sync 3, 64;"
    (fault,) = run_block(gone, {}, 64)[0].faults
    assert "warps 1 have exited" in fault.message


def test_misuse():
    mismatch = "setp.eq.u32 p0, warp, 0; @p0 bra A; bar.sync 1, 96; ret; A: bar.sync 1, 64;"
    assert kinds(mismatch, {}, 96) == ["barrier"]
    assert kinds("bar.arrive 1, 64; bar.sync 1, 64;", {}, 32) == ["barrier"]  # twice by one warp
    assert kinds("bar.arrive 1, 64;", {}, 32) == ["barrier"]  # left over
    assert kinds("bar.arrive 1, 32;", {}, 32) == []
    assert kinds("bar.sync 1, 40;", {}, 32) == ["barrier"]
    assert kinds("mov.u32 r1, 16; bar.sync r1;", {}, 32) == ["barrier"]


def test_divergent_aligned_barrier():
    body = """setp.lt.u32 p0, lane, 9; @p0 bra A; bar.sync 0; bra END; A: bar.sync 0;
    END: mov.u32 r1, 1;"""
    assert kinds(body, {}, 32) == ["divergence"]


def test_many_blocks_at_once():
    body = """
    mov.u32 r0, cells; mad.lo.u32 r1, tid, 4, r0; add.u32 r6, tid, cta; st.shared.u32 [r1], r6;
    bar.sync 0; xor.b32 r2, tid, 32; mad.lo.u32 r3, r2, 4, r0; ld.shared.u32 r4, [r3];
    mad.lo.u32 r5, cta, 64, tid; mad.wide.u32 l0, r5, 4, out; st.global.u32 [l0], r4;
    """
    after = clean(body, {"out": 100 * 256}, 64, grid=100, shared=CELLS)
    assert list(after["out"]) == [(t ^ 32) + b for b in range(100) for t in range(64)]


def test_bar_warp_sync_in_diverged_code():
    body = """
    mov.u32 r0, cells; mad.lo.u32 r1, lane, 4, r0; setp.lt.u32 p0, lane, 8; @!p0 bra END;
    st.shared.u32 [r1], lane; bar.warp.sync 255; xor.b32 r2, lane, 7; mad.lo.u32 r3, r2, 4, r0;
    ld.shared.u32 r4, [r3]; mad.wide.u32 l0, lane, 4, out; st.global.u32 [l0], r4;
    END: bar.warp.sync 0xffffffff;
    """
    after = clean(body, {"out": np.zeros(8, np.uint32)}, 32, shared=CELLS)
    assert list(after["out"]) == [7 - t for t in range(8)]
