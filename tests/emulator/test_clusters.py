"""Clusters of blocks: ranks, each other's shared memory, their barrier."""

from __future__ import annotations

import pytest
from whole_block import run_block

from sparsekit.emulator import Schedule
from sparsekit.errors import UsageError

CELLS = ".shared .align 16 .b8 cells[512];"
SCHEDULES = [Schedule("lazy"), Schedule("random", 1), Schedule("random", 2)]
EXCHANGE = """
mov.u32 r0, cells; mad.lo.u32 r1, tid, 4, r0; mov.u32 r5, %cluster_ctarank;
mad.lo.u32 r6, cta, 100, tid; st.shared.u32 [r1], r6; {meet}
xor.b32 r7, r5, 1; mapa.shared::cluster.u32 r2, r1, r7; ld.shared::cluster.u32 r3, [r2];
mov.u64 l1, cells; cvta.shared.u64 l1, l1; mapa.u64 l2, l1, r7; mad.wide.u32 l2, tid, 4, l2;
ld.u32 r4, [l2]; {part}
mad.lo.u32 r8, cta, 64, tid; mad.wide.u32 l0, r8, 8, out; st.global.v2.u32 [l0], {{r3, r4}};
"""
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def run(schedule, meet=MEET, part=MEET, grid=6, **options):
    body = EXCHANGE.format(meet=meet, part=part)
    report, after = run_block(
        body, {"out": grid * 64 * 8}, 64, shared=CELLS, grid=grid, cluster=(2,),
        schedule=schedule, **options,
    )  # fmt: skip
    return [f.kind for f in report.faults], after["out"].reshape(grid, 64, 2)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_blocks_read_each_other(schedule):
    found, out = run(schedule)
    assert found == []
    for cta in range(6):
        for t in range(64):
            assert list(out[cta, t]) == [(cta ^ 1) * 100 + t] * 2


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_without_the_barrier_it_is_a_race(schedule):
    assert "race" in run(schedule, meet="bar.sync 0;")[0]
    relaxed = MEET.replace("arrive", "arrive.relaxed")
    assert "race" in run(schedule, meet=relaxed)[0]
    assert run(schedule, meet="fence.acq_rel.cluster; " + relaxed)[0] == []


def test_misuse_and_deadlock():
    lazy = Schedule("lazy")
    assert run(lazy, meet="barrier.cluster.wait;")[0] == ["barrier"]
    twice = "barrier.cluster.arrive; barrier.cluster.arrive;"
    assert run(lazy, meet=twice)[0] == ["barrier"]
    stuck = "setp.eq.u32 p0, r5, 1; @p0 bra L; " + MEET + " bra E; L: bar.sync 3, 128; E:"
    assert run(lazy, meet=stuck)[0] == ["deadlock"]


def test_a_block_that_exits_is_not_awaited():
    body = "mov.u32 r5, %cluster_ctarank; setp.eq.u32 p0, r5, 1; @p0 exit; " + MEET
    assert run_block(body, {}, 32, grid=4, cluster=(2,))[0].faults == ()


def test_registers_of_a_cluster():
    body = """
    mov.u32 r0, %cluster_ctarank; mov.u32 r1, %cluster_nctarank; mov.u32 r2, %clusterid.x;
    mov.u32 r3, %nclusterid.x; mov.u32 r4, %cluster_ctaid.x; mov.u32 r5, %is_explicit_cluster;
    mad.wide.u32 l0, cta, 32, out; st.global.v4.u32 [l0], {r0, r1, r2, r3};
    st.global.v2.u32 [l0+16], {r4, r5}; mov.u32 r6, cells; mapa.shared::cluster.u32 r7, r6, 1;
    getctarank.shared::cluster.u32 r8, r7; st.global.u32 [l0+24], r8;
    cvt.u64.u32 l7, r7; getctarank.shared::cluster.u64 r12, l7; setp.ne.u32 p7, r12, r8; @p7 trap;
    cvta.shared::cluster.u64 l7, l7; getctarank.u64 r12, l7; setp.ne.u32 p7, r12, r8; @p7 trap;
    """
    report, after = run_block(body, {"out": 8 * 32}, 1, grid=8, cluster=(4,), shared=CELLS)
    report.raise_faults()
    out = after["out"].reshape(8, 8)
    assert [list(row[:7]) for row in out] == [
        [cta % 4, 4, cta // 4, 2, cta % 4, 1, 1] for cta in range(8)
    ]


def test_far_addresses_are_checked():
    body = (
        "mov.u32 r0, cells; mapa.shared::cluster.u32 r1, r0, {}; st.shared::cluster.u32 [r1+{}], 1;"
    )
    options = {"grid": 2, "cluster": (2,), "shared": CELLS}

    def found(rank, offset):
        text = body.format(rank, offset)
        return [f.kind for f in run_block(text, {}, 1, checks=("bounds",), **options)[0].faults]

    assert found(1, 0) == []
    assert found(2, 0) == ["bounds"]
    assert found(1, 512) == ["bounds"]


def test_a_grid_that_is_no_whole_clusters():
    with pytest.raises(UsageError, match="no multiple of cluster"):
        run_block("ret;", {}, 32, grid=3, cluster=(2,))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_block_that_exits_too_early(schedule):
    """Others may still access its shared memory, or arrive at its mbarriers."""
    assert "exited-block" in run(schedule, part="")[0]
    body = """mov.u32 r0, cells; mov.u32 r5, %cluster_ctarank; setp.eq.u32 p0, tid, 0;
    @p0 mbarrier.init.shared.b64 [r0], 1; barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 r7, r5, 1; mapa.shared::cluster.u32 r2, r0, r7;
    @p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r2]; {}"""
    wait = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p1, [r0], 0; @!p1 bra W;"
    options = {"grid": 4, "cluster": (2,), "shared": CELLS, "schedule": schedule}
    for end in (wait, MEET):
        assert run_block(body.format(end), {}, 32, **options)[0].faults == ()
    report, _ = run_block(body.format(""), {}, 32, **options)
    assert {f.kind for f in report.faults} == {"exited-block"}
