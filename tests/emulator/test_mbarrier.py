"""mbarrier: phases against a scalar model, and each check with its clean twin."""

from __future__ import annotations

import random

import numpy as np
import pytest
from whole_block import clean, kinds, run_block

from sparsekit.emulator import Schedule

SHARED = (
    ".shared .align 8 .b64 bar; .shared .align 8 .b64 second; .shared .align 16 .b8 cells[512];"
)
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]
INIT = """mov.u32 r0, bar; mov.u32 r5, cells; setp.eq.u32 p0, tid, 0;
@p0 mbarrier.init.shared.b64 [r0], {}; bar.sync 0;"""


class Model:
    """An mbarrier as the ISA tells of it: counts, transactions, phases."""

    def __init__(self, expected: int) -> None:
        self.expected = self.pending = expected
        self.tx = self.phase = 0

    def settle(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected

    def arrive(self, count: int = 1, tx: int = 0, drop: bool = False) -> tuple[int, int]:
        before = (self.phase, self.pending)
        self.tx += tx
        self.pending -= count
        self.expected -= count if drop else 0
        self.settle()
        return before

    def complete(self, tx: int) -> None:
        self.tx -= tx
        self.settle()


@pytest.mark.parametrize("seed", range(6))
def test_counts_and_phases(seed):
    """One thread does random things to an mbarrier and tests it after each."""
    rng = random.Random(seed)
    model = Model(rng.randint(2, 9))
    lines = [f"mov.u32 r0, bar; mbarrier.init.shared.b64 [r0], {model.expected};"]
    wanted = []
    for step in range(24):
        allowed = ["expect"] + ["complete"] * (model.tx > 0) + ["last"] * (model.pending > 0)
        if model.pending > 1:
            allowed += ["arrive", "expecting", "noComplete"] + ["drop"] * (model.expected > 2)
        action = rng.choice(allowed)
        count = rng.randint(1, max(model.pending - 1, 1))
        if action == "expect":
            lines.append("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [r0], 16;")
            model.tx += 16
            before = 0
        elif action == "complete":
            lines.append("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [r0], 16;")
            model.complete(16)
            before = 0
        elif action == "last":
            lines.append(f"mbarrier.arrive.shared.b64 l0, [r0], {model.pending};")
            before = model.arrive(model.pending)[1]
        elif action == "expecting":
            lines.append("mbarrier.arrive.expect_tx.shared.b64 l0, [r0], 48;")
            before = model.arrive(1, 48)[1]
        elif action == "drop":
            lines.append("mbarrier.arrive_drop.release.cta.shared::cta.b64 l0, [r0];")
            before = model.arrive(drop=True)[1]
        else:
            name = "arrive.noComplete" if action == "noComplete" else "arrive"
            lines.append(f"mbarrier.{name}.shared.b64 l0, [r0], {count};")
            before = model.arrive(count)[1]
        if action in ("expect", "complete"):
            lines.append("mov.b64 l0, 0;")
        wanted.append(before)
        lines.append(
            f"mbarrier.pending_count.b64 r1, l0; st.global.u32 [out+{8 * step}], r1;"
            f"mbarrier.test_wait.parity.shared.b64 p1, [r0], 0; selp.u32 r2, 1, 0, p1;"
            f"mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p2, [r0], 1;"
            f"selp.u32 r3, 2, 0, p2; add.u32 r2, r2, r3; st.global.u32 [out+{8 * step + 4}], r2;"
        )
        wanted.append(1 if model.phase % 2 else 2)
    lines.append("mbarrier.inval.shared.b64 [r0];")
    if model.tx:
        lines.insert(-1, f"mbarrier.complete_tx.shared.b64 [r0], {model.tx};")
    out = clean("\n".join(lines), {"out": 24 * 8}, 1, shared=SHARED)["out"]
    assert out.tolist() == wanted


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_waiting_by_state_and_by_parity(schedule):
    body = (
        INIT.format(64)
        + """
    mad.lo.u32 r1, tid, 4, r5; xor.b32 r2, tid, 32; mad.lo.u32 r2, r2, 4, r5;
    st.shared.u32 [r1], tid; mbarrier.arrive.shared::cta.b64 l0, [r0];
    A: mbarrier.try_wait.shared::cta.b64 p1, [r0], l0; @!p1 bra A;
    ld.shared.u32 r3, [r2]; mbarrier.arrive.release.cta.shared::cta.b64 _, [r0];
    B: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p1, [r0], 1, 1000; @!p1 bra B;
    st.shared.u32 [r1], r3; mbarrier.arrive.b64 l0, [l3];
    C: mbarrier.test_wait.b64 p1, [l3], l0; @!p1 bra C;
    ld.shared.u32 r4, [r2]; mad.wide.u32 l1, tid, 8, out; st.global.v2.u32 [l1], {r3, r4};"""
    )
    body = "mov.u64 l3, bar; cvta.shared.u64 l3, l3;" + body
    out = clean(body, {"out": 64 * 8}, 64, shared=SHARED, schedule=schedule)["out"]
    assert out.reshape(64, 2).tolist() == [[t ^ 32, t] for t in range(64)]


HANDOVER = (
    INIT
    + """
mad.lo.u32 r1, tid, 4, r5; setp.lt.u32 p1, tid, 32; @!p1 bra TAKE;
st.shared.u32 [r1], tid; {arrive} bra END;
TAKE: mbarrier.try_wait.parity{order}.shared::cta.b64 p2, [r0], {parity}; {loop}
ld.shared.u32 r3, [r1+-128]; END:"""
)


def handover(schedule=SCHEDULES[0], **parts):
    whole = {
        "arrive": "mbarrier.arrive.shared.b64 _, [r0];", "order": "", "parity": 0,
        "loop": "@!p2 bra TAKE;", "count": 32, **parts,
    }  # fmt: skip
    text = HANDOVER.replace("{}", str(whole.pop("count"))).format(**whole)
    return run_block(text, {}, 64, shared=SHARED, schedule=schedule)[0].faults


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_a_barrier_orders(schedule):
    assert handover(schedule) == ()
    relaxed = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [r0];"
    assert {f.kind for f in handover(schedule, arrive=relaxed)} == {"race"}
    assert {f.kind for f in handover(schedule, order=".relaxed.cta")} == {"race"}
    before, after = "fence.acq_rel.cta; " + relaxed, "@!p2 bra TAKE; fence.acq_rel.cta;"
    assert handover(schedule, arrive=before) == ()  # a fence and a relaxed arrival release
    assert handover(schedule, order=".relaxed.cta", loop=after) == ()
    found = {f.kind for f in handover(schedule, parity=1)}  # the phase before the first
    assert found & {"race", "deadlock"}  # the deadlock where the right phase is over already


def test_a_wait_that_is_not_repeated():
    """A try may end without success; a random schedule makes it."""
    found = [handover(Schedule("random", seed), loop="") for seed in range(40)]
    assert any("race" in {f.kind for f in faults} for faults in found)


def test_deadlocks_say_who_waits_for_what():
    (fault,) = handover(count=33)
    assert fault.kind == "deadlock"
    for part in ("warps 1 of block (0, 0, 0) wait at the mbarrier at 0x400", "phase 0, parity 0",
                 "lacks 1 of 33 arrivals"):  # fmt: skip
        assert part in fault.message
    (fault,) = handover(
        arrive="mbarrier.arrive.expect_tx.shared.b64 _, [r0], 8;"
        "mbarrier.complete_tx.shared.b64 [r0], 6;"
    )
    assert fault.kind == "deadlock"
    assert "has all arrivals, and 64 bytes have not come" in fault.message
    (fault,) = handover(
        arrive="mbarrier.arrive.expect_tx.shared.b64 _, [r0], 8;"
        "mbarrier.complete_tx.shared.b64 [r0], 9;"
    )
    assert "32 bytes have come that were not expected" in fault.message
    text = INIT.format(1) + "W: mbarrier.test_wait.parity.shared.b64 p1, [r0], 0; @!p1 bra W;"
    assert kinds(text, {}, shared=SHARED) == ["deadlock"]  # polling is waiting too


def test_use_before_initialisation():
    assert kinds("mov.u32 r0, bar; mbarrier.arrive.shared.b64 _, [r0];", {}, shared=SHARED) == [
        "mbarrier"
    ]
    body = (
        INIT.format(64).replace("bar.sync 0;", "{}")
        + "setp.ge.u32 p1, tid, 32; @p1 bra L; bar.warp.sync -1; "
        + "L: mbarrier.arrive.shared.b64 _, [r0];"
    )
    assert kinds(body.format("bar.sync 0;"), {}, 64, shared=SHARED) == []
    for schedule in SCHEDULES:
        report, _ = run_block(body.format(""), {}, 64, shared=SHARED, schedule=schedule)
        assert {f.kind for f in report.faults} == {"mbarrier"}


def test_misuse():
    def found(text, threads=32):
        report, _ = run_block(INIT.format(32) + text, {}, threads, shared=SHARED)
        return [f.message for f in report.faults if f.kind == "mbarrier"]

    awaited = "@p0 mbarrier.expect_tx.shared.b64 [r0], 16; bar.sync 0; "
    arrive = "mbarrier.arrive.shared.b64 _, [r0];"
    assert found(arrive) == []
    assert "16 bytes did not come" in found(awaited + arrive)[0]
    assert "lacks 0 of 32" in found(awaited + arrive + arrive)[0]
    assert "33 arrivals" in found("mbarrier.arrive.shared.b64 _, [r0], 33;")[0]
    assert "initialised again" in found("@p0 mbarrier.init.shared.b64 [r0], 32;")[0]
    again = "@p0 mbarrier.inval.shared.b64 [r0]; @p0 mbarrier.init.shared.b64 [r0], 32;"
    assert found(again) == []
    assert (
        "there is no mbarrier"
        in found("@p0 mbarrier.inval.shared.b64 [r0]; bar.sync 0;" + arrive)[0]
    )
    assert "0 arrivals" in found("@p0 mbarrier.init.shared.b64 [r0+8], 0;")[0]
    assert "parity of 2" in found("mbarrier.test_wait.parity.shared.b64 p1, [r0], 2;")[0]
    last = "mbarrier.arrive.noComplete.shared.b64 l0, [r0], 1;"
    assert "must not complete" in found(last)[0]
    assert kinds("mov.u32 r0, bar; mbarrier.init.shared.b64 [r0+4], 1;", {}, 1, shared=SHARED) == [
        "alignment"
    ]
    outside = "mov.u64 l0, 64; mbarrier.init.b64 [l0], 1;"
    assert kinds(outside, {}, 1, shared=SHARED) == ["bounds"]


OVERRUN = """mov.u32 r0, bar; mov.u32 r5, second; setp.eq.u32 p0, tid, 0;
@p0 mbarrier.init.shared.b64 [r0], 1; @p0 mbarrier.init.shared.b64 [r5], 64; bar.sync 0;
setp.ge.u32 p3, tid, 32; mov.u32 r1, 0; @p3 bra TAKE;
GIVE: setp.eq.u32 p2, r1, 0; and.b32 r2, r1, 1; xor.b32 r2, r2, 1; {guard}
W: mbarrier.try_wait.parity.shared.b64 p1, [r5], r2; @!p1 bra W;
@p0 mbarrier.arrive.shared.b64 _, [r0]; add.u32 r1, r1, 1; setp.lt.u32 p1, r1, 4;
@p1 bra GIVE; bra END;
TAKE: and.b32 r2, r1, 1;
V: mbarrier.try_wait.parity.shared.b64 p1, [r0], r2; @!p1 bra V;
mbarrier.arrive.shared.b64 _, [r5]; add.u32 r1, r1, 1; setp.lt.u32 p1, r1, 4; @p1 bra TAKE;
END:"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_phase_overrun(schedule):
    options = {"shared": SHARED, "schedule": schedule}
    good = OVERRUN.format(guard="")
    assert kinds(good, {}, 96, **options) == []
    # one of the two warps that take is not waited for
    found = run_block(good.replace("[r5], 64;", "[r5], 32;"), {}, 96, **options)[0].faults
    assert found
    assert found[0].kind in ("mbarrier", "deadlock")
    if schedule.kind == "lazy":
        assert "phase overrun" in found[0].message


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(
    "arrival",
    [
        "@p0 cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r0];",
        "@p0 mbarrier.arrive.relaxed.cta.shared.b64 _, [r0];",
    ],
)
def test_arrivals_that_release_nothing_come_after_what_they_follow(schedule, arrival):
    """One that follows a wait for those that take ends no phase before they have seen the last."""
    options = {"shared": SHARED, "schedule": schedule}
    good = OVERRUN.format(guard="").replace("@p0 mbarrier.arrive.shared.b64 _, [r0];", arrival)
    assert arrival in good
    assert kinds(good, {}, 96, **options) == []
    assert kinds(good.replace("[r5], 64;", "[r5], 32;"), {}, 96, **options)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_arrival_of_copies_passes_on_no_stores(schedule):
    """What its thread has stored before is not ordered by it: only the copies are."""
    body = (
        INIT.format(32)
        + """
    mad.lo.u32 r1, tid, 4, r5; setp.ge.u32 p1, tid, 32; @p1 bra TAKE; st.shared.u32 [r1], tid;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r0]; bra END;
    TAKE: mbarrier.try_wait.parity.shared.b64 p2, [r0], 0; @!p2 bra TAKE;
    ld.shared.u32 r2, [r1+-128]; END:"""
    )
    options = {"shared": SHARED, "schedule": schedule}
    assert "race" in kinds(body, {}, 64, **options)
    ordered = body.replace("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [r0]",
                           "mbarrier.arrive.shared.b64 _, [r0]")  # fmt: skip
    assert kinds(ordered, {}, 64, **options) == []


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("noinc", [".noinc", ""])
def test_arrivals_of_copies(schedule, noinc):
    """cp.async.mbarrier.arrive: the copies before it have ended when the phase has."""
    body = (
        INIT.format(64 if noinc else 32)
        + """
    mad.lo.u32 r1, tid, 16, r5; mad.wide.u32 l0, tid, 16, source; setp.ge.u32 p1, tid, 32;
    @p1 bra TAKE; {copy} cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [r0];
    mbarrier.arrive.shared.b64 _, [r0]; bra END;
    TAKE: mbarrier.try_wait.parity.shared.b64 p2, [r0], 0; @!p2 bra TAKE;
    ld.shared.v4.u32 {{r1, r2, r3, r4}}, [r1+-512]; mad.wide.u32 l1, tid, 16, out;
    st.global.v4.u32 [l1+-512], {{r1, r2, r3, r4}}; END:"""
    )
    copy = "cp.async.cg.shared.global [r1], [l0], 16;"
    source = np.arange(128, dtype=np.uint32)
    options = {"shared": SHARED, "schedule": schedule}
    arrays = {"source": source, "out": 512}
    text = body.format(copy=copy, noinc=noinc)
    out = clean(text, arrays, 64, **options)["out"]
    assert out.tolist() == source.tolist()
    late = text.replace(copy, "").replace(
        " mbarrier.arrive.shared", copy + "mbarrier.arrive.shared"
    )
    assert "race" in kinds(late, arrays, 64, **options)
    found = kinds(text.replace(f"cp.async.mbarrier.arrive{noinc}.shared::cta.b64 [r0];", ""),
                  arrays, 64, **options)  # fmt: skip
    assert "race" in found or found == ["deadlock"]


REMOTE = """
mov.u32 r0, bar; mov.u32 r5, cells; mov.u32 r9, %cluster_ctarank; setp.eq.u32 p0, tid, 0;
@p0 mbarrier.init.shared.b64 [r0], 64; {fence} barrier.cluster.arrive{order}; barrier.cluster.wait;
xor.b32 r8, r9, 1; mapa.shared::cluster.u32 r1, r0, r8; mad.lo.u32 r2, tid, 4, r5;
mapa.shared::cluster.u32 r3, r2, r8; mad.lo.u32 r4, cta, 100, tid; st.shared::cluster.u32 [r3], r4;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r1];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p1, [r0], 0; @!p1 bra W;
ld.shared.u32 r6, [r2]; mad.lo.u32 r7, cta, 64, tid; mad.wide.u32 l0, r7, 4, out;
st.global.u32 [l0], r6;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_arrivals_in_a_cluster(schedule):
    options = {"shared": SHARED, "schedule": schedule, "grid": 4, "cluster": (2,)}

    def run(fence="fence.mbarrier_init.release.cluster;", order=".relaxed", text=REMOTE):
        return run_block(text.format(fence=fence, order=order), {"out": 1024}, 64, **options)

    report, after = run()
    report.raise_faults()
    out = after["out"].reshape(4, 64)
    assert out.tolist() == [[100 * (cta ^ 1) + t for t in range(64)] for cta in range(4)]
    assert run(fence="", order="")[0].faults == ()
    assert {f.kind for f in run(fence="")[0].faults} == {"mbarrier"}
    relaxed = REMOTE.replace("arrive.release.cluster", "arrive.relaxed.cluster")
    assert "race" in {f.kind for f in run(text=relaxed)[0].faults}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_mbarrier_ends_after_all_waits(schedule):
    body = INIT.format(64) + (
        "mbarrier.arrive.shared.b64 _, [r0];"
        "W: mbarrier.try_wait.parity.shared.b64 p1, [r0], 0; @!p1 bra W; {} "
        "@p0 mbarrier.inval.shared.b64 [r0];"
    )
    options = {"shared": SHARED, "schedule": schedule}
    assert kinds(body.format("bar.sync 0;"), {}, 64, **options) == []
    report, _ = run_block(body.format(""), {}, 64, **options)
    assert {f.kind for f in report.faults} == {"mbarrier"}
