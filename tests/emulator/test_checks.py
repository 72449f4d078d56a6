"""Each check with a planted fault and with its clean twin."""

from __future__ import annotations

import numpy as np
import pytest
from whole_block import kinds, run_block

from sparsekit.emulator import CHECKS, STRICT_CHECKS, FaultError, Schedule
from sparsekit.emulator.clocks import Clocks
from sparsekit.errors import UsageError

CELLS = ".shared .align 16 .b8 cells[1024];"
EACH = "mov.u32 r0, cells; mad.lo.u32 r1, tid, 4, r0;"
OTHER = "xor.b32 r2, tid, 32; mad.lo.u32 r3, r2, 4, r0;"
DATA = np.arange(64, dtype=np.uint32)
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]


def one(body, arrays, threads=32, **options):
    """The only fault of a run."""
    (fault,) = run_block(body, arrays, threads, **options)[0].faults
    return fault


# ---- bounds and alignment


def test_global_bounds():
    body = "mad.wide.u32 l0, tid, 4, source; ld.global.u32 r1, [l0{}];"
    assert kinds(body.format("+128"), {"source": DATA}) == []
    fault = one(body.format("+132"), {"source": DATA})
    assert (fault.kind, fault.thread) == ("bounds", (31, 0, 0))
    assert "0 bytes past the end of source [256 bytes" in fault.message
    fault = one(body.format("+-4"), {"source": DATA})
    assert "4 bytes before source" in fault.message
    fault = one("mov.b64 l0, 0; st.global.u32 [l0], tid;", {"source": DATA})
    assert "in no allocation" in fault.message
    fault = one("cvt.u32.u64 r1, source; cvt.u64.u32 l0, r1; ld.u32 r2, [l0];", {"source": DATA})
    assert fault.kind == "bounds"  # a pointer cut to 32 bits


def test_a_vector_may_not_reach_out():
    body = "mad.wide.u32 l0, tid, 16, source; ld.global.v4.u32 {r1, r2, r3, r4}, [l0];"
    assert kinds(body, {"source": DATA}, 16) == []
    assert kinds(body, {"source": DATA[:62]}, 16) == ["bounds"]
    assert kinds(body, {"source": DATA}, 17) == ["bounds"]


def test_lanes_that_do_not_take_part_may_point_anywhere():
    body = """mad.wide.u32 l0, tid, 4000, source; setp.eq.u32 p0, tid, 0;
    @p0 ld.global.u32 r1, [l0]; @p0 st.global.u32 [l0], r1; @p0 bra A; ret;
    A: ld.global.u32 r2, [l0];"""
    assert kinds(body, {"source": DATA}) == []


def test_shared_bounds():
    body = EACH + "st.shared.u32 [r1+{}], tid;"
    assert kinds(body.format(896), {}, shared=CELLS) == []
    fault = one(body.format(900), {}, shared=CELLS)
    assert fault.kind == "bounds"
    assert "of shared memory" in fault.message
    assert kinds("mov.u32 r1, 0; ld.shared.u32 r2, [r1];", {}, shared=CELLS) == ["bounds"]
    dynamic = ".extern .shared .align 16 .b8 cells[];"
    body = ".extern .shared .align 16 .b8 pool[];"
    code = EACH.replace("cells", "pool") + "st.shared.u32 [r1], tid;"
    assert kinds(code, {}, module=body, shared_bytes=128) == []
    assert kinds(code, {}, module=body, shared_bytes=124) == ["bounds"]
    del dynamic


def test_neighbouring_blocks_do_not_share():
    body = EACH + "st.shared.u32 [r1+1024], tid;"
    assert kinds(body, {}, shared=CELLS, grid=4) == ["bounds"]


def test_alignment():
    assert kinds("ld.global.u32 r1, [source+2];", {"source": DATA}, 1) == ["alignment"]
    assert kinds("ld.global.v2.u32 {r1, r2}, [source+4];", {"source": DATA}, 1) == ["alignment"]
    assert kinds("ld.global.v2.u32 {r1, r2}, [source+8];", {"source": DATA}, 1) == []
    body = EACH + "st.shared.u32 [r1], tid; ld.shared.u16 h1, [r1+{}];"
    assert kinds(body.format(2), {}, shared=CELLS) == []
    assert kinds(body.format(1), {}, shared=CELLS) == ["alignment"]


def test_local_bounds():
    own = ".local .align 4 .b8 own[16];"
    body = "mov.u64 l0, own; st.local.u32 [l0+{}], tid;"
    assert kinds(body.format(12), {}, shared=own) == []
    assert kinds(body.format(16), {}, shared=own) == ["bounds"]


def test_constants_cannot_be_written():
    module = ".const .align 4 .u32 fixed = 3;"
    body = "mov.u64 l0, fixed; cvta.const.u64 l0, l0; st.u32 [l0], 4;"
    assert kinds(body, {}, 1, module=module) == ["bounds"]


# ---- uninitialised memory and registers


def test_uninitialised_global():
    body = "st.global.u32 [out], 1; ld.global.u32 r1, [out+{}];"
    assert kinds(body.format(0), {"out": 8}, 1) == []
    fault = one(body.format(4), {"out": 8}, 1)
    assert fault.kind == "uninitialised"
    assert "byte 4 of out" in fault.message


def test_uninitialised_shared():
    body = EACH + "setp.ne.u32 p0, tid, {}; @p0 st.shared.u32 [r1], tid; ld.shared.u32 r2, [r1];"
    assert kinds(body.format(99), {}, shared=CELLS) == []
    fault = one(body.format(17), {}, shared=CELLS)
    assert (fault.kind, fault.thread) == ("uninitialised", (17, 0, 0))


def test_undefined_register():
    body = "setp.lt.u32 p0, tid, {}; @!p0 bra L; mov.u32 r1, 1; L: add.u32 r2, r1, 1;"
    assert kinds(body.format(99), {}) == []
    fault = one(body.format(7), {})
    assert (fault.kind, fault.thread) == ("undefined-register", (7, 0, 0))
    assert "r1" in fault.message


# ---- races in shared memory


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_write_then_read_by_another_warp(schedule):
    body = EACH + OTHER + "st.shared.u32 [r1], tid; {} ld.shared.u32 r4, [r3];"
    options = {"shared": CELLS, "schedule": schedule}
    assert kinds(body.format("bar.sync 0;"), {}, 64, **options) == []
    for instead in ("", "bar.warp.sync -1;"):
        # where the reader happens to be first, it reads what nobody has written yet
        found = set(kinds(body.format(instead), {}, 64, **options))
        assert "race" in found
        assert found <= {"race", "uninitialised"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_read_then_write_by_another_warp(schedule):
    body = (
        EACH
        + OTHER
        + "st.shared.u32 [r1], tid; bar.sync 0; ld.shared.u32 r4, [r3]; {} st.shared.u32 [r1], r4;"
    )
    options = {"shared": CELLS, "schedule": schedule}
    assert kinds(body.format("bar.sync 0;"), {}, 64, **options) == []
    report, _ = run_block(body.format(""), {}, 64, **options)
    assert {f.kind for f in report.faults} == {"race"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_two_warps_write_one_cell(schedule):
    body = "mov.u32 r0, cells; {} st.shared.u32 [r0], tid;"
    options = {"shared": CELLS, "schedule": schedule}
    assert kinds(body.format("setp.lt.u32 p0, warp, 1; @p0"), {}, 64, **options) == []
    assert kinds(body.format(""), {}, 64, **options) == ["race"]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_two_warps_write_the_same_value(schedule):
    """As Triton does where warps hold copies of a tensor; a fault only when asked for."""
    body = "mov.u32 r0, cells; mad.lo.u32 r1, lane, 4, r0; st.shared.u32 [r1], {};"
    options = {"shared": CELLS, "schedule": schedule}
    assert kinds(body.format("lane"), {}, 64, **options) == []
    assert kinds(body.format("tid"), {}, 64, **options) == ["race"]
    strict = [*CHECKS, *STRICT_CHECKS]
    for checks in (strict, ["same-value-race"]):
        assert kinds(body.format("lane"), {}, 64, checks=checks, **options) == ["same-value-race"]
    vector = "mad.lo.u32 r1, lane, 16, r0; st.shared.v4.u32 [r1], {lane, 1, 2, OTHER};"
    body = "mov.u32 r0, cells; " + vector
    assert kinds(body.replace("OTHER", "3"), {}, 64, **options) == []
    assert kinds(body.replace("OTHER", "warp"), {}, 64, **options) == ["race"]


def test_bytes_of_one_word_are_apart():
    body = """mov.u32 r0, cells; mad.lo.u32 r1, warp, {}, r0; cvt.u16.u32 h0, tid;
    st.shared.u8 [r1], h0;"""
    assert kinds(body.format(1), {}, 96, shared=CELLS) == []
    assert kinds(body.format(0), {}, 96, shared=CELLS) == ["race"]


def test_a_barrier_of_some_orders_only_those():
    """Warp 2 does not take part in the barrier of warps 0 and 1."""
    body = (
        EACH
        + """st.shared.u32 [r1], tid; setp.eq.u32 p0, warp, 2; @p0 bra READ; bar.sync 1, 64;
    READ: mad.lo.u32 r3, lane, 4, r0; setp.eq.u32 p1, warp, {}; @p1 ld.shared.u32 r4, [r3];"""
    )
    assert kinds(body.format(1), {}, 96, shared=CELLS) == []
    fault = one(body.format(2), {}, 96, shared=CELLS)
    assert fault.kind == "race"
    assert "warp 2 reads" in fault.message
    assert "warp 0 wrote in PTX line" in fault.message


def test_order_passes_on():
    """0 to 1 at one barrier, 1 to 2 at another: 2 may read what 0 wrote."""
    body = (
        EACH
        + """setp.eq.u32 p0, warp, 1; @p0 bra ONE; setp.eq.u32 p0, warp, 2; @p0 bra TWO;
    st.shared.u32 [r1], tid; bar.arrive 1, 64; ret;
    ONE: bar.sync 1, 64; bar.arrive 2, 64; ret;
    TWO: {} mad.lo.u32 r3, lane, 4, r0; ld.shared.u32 r4, [r3]; {}"""
    )
    assert kinds(body.format("bar.sync 2, 64;", ""), {}, 96, shared=CELLS) == []
    late = run_block(body.format("", "bar.sync 2, 64;"), {}, 96, shared=CELLS)[0]
    assert "race" in {f.kind for f in late.faults}


def test_atomics_do_not_race_with_each_other():
    start = "mov.u32 r0, cells; setp.eq.u32 p0, tid, 0; @p0 st.shared.u32 [r0], 0; bar.sync 0;"
    body = start + "atom.shared.add.u32 r1, [r0], tid; {} ld.shared.u32 r2, [r0];"
    assert kinds(body.format("bar.sync 0;"), {}, 64, shared=CELLS) == []
    assert kinds(body.format(""), {}, 64, shared=CELLS) == ["race"]
    assert (
        kinds(body.format("").replace("ld.shared", "ld.volatile.shared"), {}, 64, shared=CELLS)
        == []
    )


def test_a_flag_orders_also_where_races_are_not_looked_for():
    """Whether an mbarrier is used after its initialisation hangs on the same order."""
    body = """mov.u32 r0, cells; setp.ge.u32 p0, tid, 32; @p0 bra WAIT;
    setp.ne.u32 p1, tid, 0; @p1 bra END; mbarrier.init.shared.b64 [r0], 1;
    st{order}.shared.u32 [r0+16], 1; bra END;
    WAIT: setp.ne.u32 p1, tid, 32; @p1 bra END;
    SPIN: ld.acquire.cta.shared.u32 r2, [r0+16]; setp.ne.u32 p2, r2, 1; @p2 bra SPIN;
    mbarrier.arrive.shared.b64 l0, [r0]; END:"""
    for checks in (CHECKS, set(CHECKS) - {"race"}, {"mbarrier"}):
        options = {"shared": CELLS, "checks": set(checks) - {"uninitialised"}}
        assert kinds(body.format(order=".release.cta"), {}, 64, **options) == []
        assert kinds(body.format(order=".relaxed.cta"), {}, 64, **options) == ["mbarrier"]


def test_without_checks_nothing_counts_time(monkeypatch):
    """The clocks of the checks can run full; without checks no launch is too long."""

    def tick(clocks: Clocks) -> None:
        raise AssertionError("time has passed")

    monkeypatch.setattr(Clocks, "tick", tick)
    body = """mov.u32 r0, cells; setp.ne.u32 p0, tid, 0; @!p0 mbarrier.init.shared.b64 [r0], 128;
    bar.sync 0; cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; fence.proxy.async; membar.gl;
    wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    cp.async.mbarrier.arrive.noinc.shared.b64 [r0];"""
    assert kinds(body, {}, 128, shared=CELLS, checks=()) == []


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_flag_with_release_and_acquire(schedule):
    body = (
        EACH
        + """mov.u32 r9, cells; add.u32 r9, r9, 512; setp.eq.u32 p0, warp, 1; @p0 bra WAIT;
    setp.eq.u32 p1, tid, 0; @p1 st.shared.u32 [r0], 7; {release}
    @p1 st{order}.shared.u32 [r9], 1; ret;
    WAIT: ld{acquire}.shared.u32 r3, [r9]; setp.ne.u32 p2, r3, 1; @p2 bra WAIT; {fence}
    ld.shared.u32 r4, [r0];"""
    )
    options = {"shared": CELLS, "schedule": schedule, "checks": ("race",)}

    def found(release="", order=".release.cta", acquire=".acquire.cta", fence=""):
        text = body.format(release=release, order=order, acquire=acquire, fence=fence)
        return kinds(text, {}, 64, **options)

    assert found() == []
    assert found("membar.cta;", ".volatile", ".volatile", "fence.acq_rel.cta;") == []
    assert found("", ".volatile", ".volatile", "fence.acq_rel.cta;") == ["race"]
    assert found("membar.cta;", ".volatile", ".volatile") == ["race"]
    assert found(order=".relaxed.cta") == ["race"]


# ---- asynchronous copies


COPY = """mov.u32 r0, cells; mad.lo.u32 r1, tid, 16, r0; mad.wide.u32 l0, tid, 16, source;
cp.async.cg.shared.global [r1], [l0], 16; {commit} {wait} {barrier}
xor.b32 r2, tid, {other}; mad.lo.u32 r3, r2, 16, r0; ld.shared.v4.u32 {{r4, r5, r6, r7}}, [r3];
mad.wide.u32 l1, tid, 16, target; st.global.v4.u32 [l1], {{r4, r5, r6, r7}};"""
BIG = np.arange(256, dtype=np.uint32)


def copied(schedule, commit="cp.async.commit_group;", wait="cp.async.wait_group 0;",
           barrier="bar.sync 0;", other=32):  # fmt: skip
    body = COPY.format(commit=commit, wait=wait, barrier=barrier, other=other)
    report, after = run_block(
        body, {"source": BIG, "target": 1024}, 64, shared=CELLS, schedule=schedule
    )
    return [f.kind for f in report.faults], list(after["target"].reshape(64, 4)[:, 0])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_copies_are_awaited(schedule):
    found, values = copied(schedule)
    assert (found, values) == ([], [4 * (t ^ 32) for t in range(64)])
    assert copied(schedule, other=0, barrier="")[0] == []
    assert copied(schedule, commit="", wait="cp.async.wait_all;")[0] == []
    assert copied(schedule, wait="")[0] == ["race"]
    assert copied(schedule, commit="")[0] == ["race"]
    assert copied(schedule, wait="cp.async.wait_group 1;")[0] == ["race"]
    assert "race" in copied(schedule, barrier="")[0]


def test_lazy_copies_arrive_late_and_eager_ones_at_once():
    lazy, eager = (copied(Schedule(kind), wait="")[1] for kind in ("lazy", "eager"))
    assert eager == [4 * (t ^ 32) for t in range(64)]
    assert lazy == [0xA5A5A5A5] * 64


def test_copies_check_their_source_and_fill_with_zeros():
    body = """mov.u32 r0, cells; mad.lo.u32 r1, tid, 16, r0; mad.wide.u32 l0, tid, 16, source;
    {} cp.async.wait_all; bar.sync 0; ld.shared.v4.u32 {{r4, r5, r6, r7}}, [r1];
    mad.wide.u32 l1, tid, 16, target; st.global.v4.u32 [l1], {{r4, r5, r6, r7}};"""
    short = {"source": BIG[:16], "target": 512}
    whole = "cp.async.ca.shared.global [r1], [l0], 16;"
    assert kinds(body.format(whole), short, shared=CELLS) == ["bounds"]
    some = """setp.lt.u32 p0, tid, 4; selp.u32 r9, 16, 0, p0;
    cp.async.cg.shared.global.L2::128B [r1], [l0], 16, r9;"""
    report, after = run_block(body.format(some), short, shared=CELLS)
    assert report.ok
    assert list(after["target"]) == [*range(16), *[0] * 112]
    part = "mov.u32 r9, 6; cp.async.cg.shared.global [r1], [l0], 16, r9;"
    report, after = run_block(body.format(part), {"source": BIG, "target": 512}, shared=CELLS)
    assert list(after["target"][4:8]) == [4, 5, 0, 0]
    ignored = "setp.ge.u32 p0, tid, 4; cp.async.cg.shared.global [r1], [l0], 16, p0;"
    report, after = run_block(body.format(ignored), short, shared=CELLS)
    assert report.ok
    assert list(after["target"]) == [*range(16), *[0] * 112]
    guarded = """setp.lt.u32 p0, tid, 4; @!p0 st.shared.v4.u32 [r1], {9, 9, 9, 9};
    @p0 cp.async.cg.shared.global [r1], [l0], 16;"""
    report, after = run_block(body.format(guarded), short, shared=CELLS)
    assert report.ok
    assert list(after["target"]) == [*range(16), *[9] * 112]
    too_many = "mov.u32 r9, 17; cp.async.cg.shared.global [r1], [l0], 16, r9;"
    assert kinds(body.format(too_many), {"source": BIG, "target": 512}, shared=CELLS) == ["bounds"]


def test_a_copy_keeps_what_it_was_given():
    """Registers that are overwritten while it is in flight do not change it, in a loop or not."""
    body = """mov.u32 r0, cells; mad.lo.u32 r1, tid, 16, r0; mad.wide.u32 l0, tid, 16, source;
    mov.u32 r9, 16; mov.u32 r8, 0;
    AGAIN: cp.async.cg.shared.global [r1], [l0], 16, r9; add.u32 r1, r1, 512; mov.u32 r9, 0;
    add.u64 l0, l0, 512; add.u32 r8, r8, 1; setp.lt.u32 p0, r8, 2; @p0 bra AGAIN;
    cp.async.wait_all; mad.lo.u32 r1, tid, 16, r0; ld.shared.u32 r4, [r1];
    ld.shared.u32 r5, [r1+512]; mad.wide.u32 l1, tid, 8, target; st.global.v2.u32 [l1], {r4, r5};"""
    for schedule in SCHEDULES:
        arrays = {"source": BIG, "target": 256}
        report, after = run_block(body, arrays, shared=CELLS, schedule=schedule)
        report.raise_faults()
        assert list(after["target"]) == [x for t in range(32) for x in (4 * t, 0)]


def test_a_copy_must_not_overtake_a_reader():
    body = """mov.u32 r0, cells; mad.lo.u32 r1, tid, 16, r0; mad.wide.u32 l0, tid, 16, source;
    st.shared.u32 [r1], tid; bar.sync 0; xor.b32 r2, tid, 32; mad.lo.u32 r3, r2, 16, r0;
    ld.shared.u32 r4, [r3]; {} cp.async.cg.shared.global [r1], [l0], 16; cp.async.wait_all;"""
    assert kinds(body.format("bar.sync 0;"), {"source": BIG}, 64, shared=CELLS) == []
    assert kinds(body.format(""), {"source": BIG}, 64, shared=CELLS) == ["race"]


# ---- races between blocks


@pytest.mark.parametrize("threads", [32, 1024])
def test_blocks_that_write_one_place(threads):
    """Also across batches: blocks of 1024 threads run four at a time."""
    body = "mad.lo.u32 r1, cta, {}, tid; mad.wide.u32 l0, r1, 4, out; st.global.u32 [l0], tid;"
    size = 4 * threads * 9
    assert kinds(body.format(threads), {"out": size}, threads, grid=9) == []
    fault = one(body.format(threads - 1), {"out": size}, threads, grid=9)
    assert fault.kind == "global-race"
    assert "and nothing orders the two" in fault.message


def test_blocks_that_read_what_another_writes():
    body = """setp.eq.u32 p0, cta, 3; mad.wide.u32 l0, tid, 4, out; @p0 st.global.u32 [l0], tid;
    @!p0 ld.global.u32 r2, [l0{}];"""
    cells = np.zeros(64, np.uint32)
    assert kinds(body.format("+128"), {"out": cells}, grid=6) == []
    assert kinds(body.format(""), {"out": cells}, grid=6) == ["global-race"]


SPLIT = """
mad.lo.u32 r1, cta, 32, tid; mad.wide.u32 l0, r1, 4, parts; st.global.u32 [l0], r1;
bar.sync 0; {release} setp.eq.u32 p0, tid, 0; mov.u32 r2, 0;
@p0 atom{order}.gpu.global.add.u32 r2, [count], 1; shfl.sync.idx.b32 r2, r2, 0, 31, -1;
setp.ne.u32 p1, r2, 5; @p1 ret; {acquire}
mov.u32 r3, 0; mov.u32 r4, 0;
SUM: mad.lo.u32 r5, r3, 32, tid; mad.wide.u32 l1, r5, 4, parts; ld.global.u32 r6, [l1];
add.u32 r4, r4, r6; add.u32 r3, r3, 1; setp.lt.u32 p2, r3, 6; @p2 bra SUM;
mad.wide.u32 l2, tid, 4, out; st.global.u32 [l2], r4;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_last_block_sums_up(schedule):
    """Split and merge in one launch, in order by fences about an atomic counter."""

    def found(release="", order=".relaxed", acquire=""):
        body = SPLIT.format(release=release, order=order, acquire=acquire)
        arrays = {"parts": 6 * 128, "count": np.zeros(1, np.uint32), "out": 128}
        report, after = run_block(body, arrays, grid=6, schedule=schedule)
        assert list(after["out"]) == [sum(32 * b + t for b in range(6)) for t in range(32)]
        return [f.kind for f in report.faults]

    assert found("membar.gl;", ".relaxed", "membar.gl;") == []
    assert found("", ".acq_rel") == []
    assert found("fence.acq_rel.gpu;", ".acquire") == []
    assert found("", ".relaxed") == ["global-race"]
    assert found("membar.gl;", ".relaxed") == ["global-race"]
    assert found("", ".relaxed", "membar.gl;") == ["global-race"]
    assert found("membar.cta;", ".relaxed", "membar.gl;") == ["global-race"]


# ---- choosing checks


STORED = "mov.u32 r0, cells; setp.eq.u32 p0, tid, 0; @p0 st.shared.v4.u32 [r0], {tid, 1, 2, 3}; "
OUT = (
    "@p0 cp.async.bulk.global.shared::cta.bulk_group [out], [r0], 16; "
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
)


def test_each_check_can_be_switched_off():
    planted = {
        "alignment": ("ld.global.u32 r1, [source+2];", {"source": DATA}, {}),
        "uninitialised": ("ld.global.u32 r1, [source];", {"source": 64}, {}),
        "race": (EACH + OTHER + "st.shared.u32 [r1], tid; ld.shared.u32 r4, [r3];", {}, {}),
        "global-race": ("st.global.u32 [source], 1;", {"source": 64}, {"grid": 2}),
        "undefined-register": (
            "setp.lt.u32 p0, tid, 7; @!p0 bra L; mov.u32 r1, 1; L: add.u32 r2, r1, 1;", {}, {}
        ),
        "barrier": ("bar.arrive 1, 128;", {}, {}),
        "divergence": (
            "setp.lt.u32 p0, lane, 9; @p0 bra L; vote.sync.any.pred p1, p0, -1; "
            "L: bar.warp.sync -1;",
            {}, {},
        ),
        "bounds": ("ld.global.u32 r1, [source+80];", {"source": DATA[:16]}, {}),
        "mbarrier": (
            "mov.u32 r0, cells; setp.eq.u32 p0, tid, 0; @p0 mbarrier.init.shared.b64 [r0], 64; "
            "setp.lt.u32 p1, tid, 32; @p1 bar.warp.sync -1; mbarrier.arrive.shared.b64 _, [r0];",
            {}, {},
        ),
        "proxy-fence": (STORED + OUT, {"out": 16}, {}),
        "copy-proxy-fence": (
            "mov.u32 r0, cells; setp.eq.u32 p0, tid, 0; "
            "@p0 cp.async.ca.shared.global [r0], [source], 16; cp.async.wait_all; " + OUT,
            {"out": 16, "source": DATA}, {},
        ),
        "descriptor": (
            "mov.u32 r0, cells; mov.u32 r9, 1; mapa.shared::cluster.u32 r1, r0, r9; "
            "setp.eq.u32 p0, tid, 0; setp.eq.u32 p1, cta, 0; and.pred p2, p0, p1; "
            "@p0 mbarrier.init.shared.b64 [r0], 1; barrier.cluster.arrive; barrier.cluster.wait; "
            "@p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r1+16], "
            "[source], 16, [r0]; @p2 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 16; "
            "@!p2 bra L; W: mbarrier.try_wait.parity.shared.b64 p3, [r0], 0; @!p3 bra W; L: "
            "barrier.cluster.arrive; barrier.cluster.wait;",
            {"source": DATA}, {"grid": 2, "cluster": (2,)},
        ),
        "exited-block": (
            "mov.u32 r0, cells; mov.u32 r9, 1; mapa.shared::cluster.u32 r1, r0, r9; "
            "setp.ne.u32 p0, cta, 0; @p0 bra L; st.shared::cluster.u32 [r1], 1; L:",
            {}, {"grid": 2, "cluster": (2,), "threads": 32},
        ),
        "tensor-memory": (
            "mov.u32 r0, cells; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0], 32;",
            {}, {"threads": 32},
        ),
        "wgmma": (
            EACH + "st.shared.u32 [r1], tid; fence.proxy.async; bar.sync 0; shr.u32 r2, r0, 4; "
            "cvt.u64.u32 l0, r2; or.b64 l0, l0, 0x800080000; mov.u32 r5, 0; mov.u32 r6, 0; "
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f0, f1, f2, f3}, "
            "{r5, r5, r6, r6}, l0, 0, 1, 1, 0;",
            {}, {"threads": 128},
        ),
    }  # fmt: skip
    assert set(planted) == set(CHECKS)
    for name, (body, arrays, options) in planted.items():
        options = {"shared": CELLS, "threads": 64, **options}
        assert kinds(body, arrays, **options) == [name]
        assert kinds(body, arrays, checks=[name], **options) == [name]
        others = [c for c in CHECKS if c != name]
        assert kinds(body, arrays, checks=others, **options) == [], name
        assert kinds(body, arrays, checks=(), **options) == [], name


def test_without_the_bounds_check_the_others_survive():
    body = EACH + "st.shared.u32 [r1+2000], tid; ld.shared.u32 r2, [r1+2000];"
    checks = [c for c in CHECKS if c != "bounds"]
    for chosen in (checks, ()):
        # what is outside of the memories of all blocks cannot be ignored
        assert "bounds" not in kinds(body, {}, 64, shared=CELLS, checks=chosen)


def test_unknown_names():
    with pytest.raises(UsageError, match="unknown check 'speed'"):
        kinds("ret;", {}, checks=["speed"])
    with pytest.raises(UsageError, match="unknown schedule"):
        Schedule("slow")


def test_faults_say_where():
    body = ".loc 1 41 10\n ld.global.u32 r1, [source+8];"
    module = '.file 1 "kernel.cu"'
    report, _ = run_block(body, {"source": DATA[:2]}, 1, module=module)
    (fault,) = report.faults
    assert fault.source == "kernel.cu:41:10"
    assert fault.instruction == "ld.global.u32 r1, [source+8];"
    assert fault.cta == fault.thread == (0, 0, 0)
    text = str(fault)
    for part in (
        "bounds: reads 4 bytes",
        f"PTX line {fault.line}",
        "kernel.cu:41:10",
        "thread 0,0,0",
    ):
        assert part in text
    with pytest.raises(FaultError, match="bounds"):
        report.raise_faults()


def test_all_races_of_a_run_are_reported():
    body = (
        EACH
        + OTHER
        + """st.shared.u32 [r1], tid; ld.shared.u32 r4, [r3];
    ld.shared.u32 r5, [r3]; bar.sync 0; st.shared.u32 [r1+256], tid; ld.shared.u32 r6, [r3+256];"""
    )
    assert kinds(body, {}, 64, shared=CELLS) == ["race"] * 3
