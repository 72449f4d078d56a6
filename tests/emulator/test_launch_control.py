"""clusterlaunchcontrol: blocks that do the work of those they cancel."""

from __future__ import annotations

import pytest
from whole_block import kinds, run_block

from sparsekit.emulator import Schedule

SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1)]
SHARED = ".shared .align 16 .b8 answer[16]; .shared .align 8 .b64 bar;"
BODY = """.reg .b128 wide; mov.u32 r0, answer; mov.u32 r1, bar; setp.eq.u32 p0, tid, 0;
mov.u32 r9, %cluster_ctarank; mov.u32 r20, %ctaid.x; mov.u32 r21, %ctaid.y; mov.u32 r5, 0;
@p0 mbarrier.init.shared.b64 [r1], 1; @p0 fence.mbarrier_init.release.cluster;
{meet}
AGAIN: mad.lo.u32 r6, r21, 6, r20; mad.lo.u32 r6, r6, 32, tid; mad.wide.u32 l0, r6, 4, out;
st.global.u32 [l0], 7;
@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r1], 16;
setp.eq.u32 p3, r9, 0; and.pred p4, p0, p3;
@p4 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multi}.b128
[r0], [r1];
W: mbarrier.try_wait.parity.shared.b64 p1, [r1], r5; @!p1 bra W;
ld.shared.b128 wide, [r0];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p2, wide;
@!p2 bra END;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{r20, r21, r22, _}}, wide;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 r23, wide;
clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 r24, wide;
clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 r25, wide;
setp.ne.u32 p5, r23, r20; @p5 trap; setp.ne.u32 p5, r24, r21; @p5 trap;
setp.ne.u32 p5, r25, r22; @p5 trap; setp.ne.u32 p5, r25, 0; @p5 trap;
add.u32 r20, r20, r9; xor.b32 r5, r5, 1; {meet}
bra AGAIN;
END: {meet}"""


def body(cluster: int) -> str:
    meet = "bar.sync 0;"
    if cluster > 1:
        meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    multi = ".multicast::cluster::all" if cluster > 1 else ""
    return BODY.format(meet=meet, multi=multi).replace("b128\n[", "b128 [")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_block_is_done_once(cluster, schedule):
    options = {"grid": 6, "cluster": (cluster,), "shared": SHARED, "schedule": schedule}
    report, after = run_block(body(cluster), {"out": 6 * 128}, 64 // 2, **options)
    report.raise_faults()
    assert (after["out"] == 7).all()


def test_the_answer_must_be_awaited():
    wait = "W: mbarrier.try_wait.parity.shared.b64 p1, [r1], r5; @!p1 bra W;"
    text = body(1).replace(wait, "")
    assert text != body(1)
    found = kinds(text, {"out": 6 * 128}, 32, grid=6, shared=SHARED)
    assert "race" in found


def test_the_answer_is_overwritten():
    text = body(1).replace("xor.b32 r5, r5, 1; bar.sync 0;", "xor.b32 r5, r5, 1;")
    found = kinds(text, {"out": 6 * 256}, 64, grid=6, shared=SHARED)
    assert set(found) & {"race", "mbarrier"}
