"""Branches, loops, calls: divergence and reconvergence, exits, indirect jumps."""

from __future__ import annotations

import numpy as np
import pytest
from one_instruction import HEADER
from whole_block import clean, kinds, run_block

from sparsekit.emulator import Memory, Schedule, UnsupportedError, launch, load

OUT = "mad.wide.u32 l0, tid, 4, out; st.global.u32 [l0], r1;"
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_nested_divergence_comes_together(schedule):
    """if/else in if/else; the ballot afterwards must see whole warps."""
    body = f"""
    and.b32 r0, tid, 3; setp.lt.u32 p0, r0, 2; mov.u32 r1, 0; @p0 bra LOW;
    setp.eq.u32 p1, r0, 2; @p1 bra TWO; add.u32 r1, r1, 300; bra HIGH_END;
    TWO: add.u32 r1, r1, 200; HIGH_END: add.u32 r1, r1, 1; bra END;
    LOW: setp.eq.u32 p1, r0, 0; @!p1 bra ONE; add.u32 r1, r1, 10; bra LOW_END;
    ONE: add.u32 r1, r1, 100; LOW_END: add.u32 r1, r1, 2;
    END: vote.sync.ballot.b32 r2, p0, -1; popc.b32 r2, r2; add.u32 r1, r1, r2; {OUT}
    """
    after = clean(body, {"out": 512}, 128, schedule=schedule)
    assert list(after["out"]) == [x + 16 for x in (12, 102, 201, 301)] * 32


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_loops_of_different_length(schedule):
    """Each lane sums to its own number; break out of the middle."""
    body = f"""
    mov.u32 r1, 0; mov.u32 r2, 0;
    LOOP: setp.gt.u32 p0, r2, tid; @p0 bra DONE; add.u32 r1, r1, r2;
    setp.gt.u32 p1, r1, 900; @p1 bra DONE; add.u32 r2, r2, 1; bra LOOP;
    DONE: {OUT}
    """

    def model(tid):
        total = 0
        for i in range(tid + 1):
            total += i
            if total > 900:
                break
        return total

    after = clean(body, {"out": 384}, 96, schedule=schedule)
    assert list(after["out"]) == [model(t) for t in range(96)]


def test_swapped_registers_in_a_loop():
    """The values at a loop's end are taken before any of them is overwritten."""
    body = f"""
    mov.u32 r1, tid; add.u32 r2, tid, 100; mov.u32 r3, 0; mov.u32 r6, 7;
    LOOP: mov.u32 r4, r1; mov.u32 r1, r2; mov.u32 r2, r4; mov.u32 r5, r6; mov.u32 r6, r3;
    add.u32 r3, r3, 1; setp.lt.u32 p0, r3, 5; @p0 bra LOOP; add.u32 r1, r1, r5; {OUT}
    """
    assert list(clean(body, {"out": 128})["out"]) == [t + 100 + 3 for t in range(32)]


def test_predicated_writes_keep_other_lanes():
    body = f"""
    mov.u32 r1, 5; setp.lt.u32 p0, tid, 7; @p0 add.u32 r1, r1, tid; @!p0 mul.lo.u32 r1, r1, 3;
    @p0 mov.u32 r1, r1; setp.gt.u32 p1, tid, 29; @p1 mov.u32 r1, 0; {OUT}
    """
    wanted = [5 + t if t < 7 else 0 if t > 29 else 15 for t in range(32)]
    assert list(clean(body, {"out": 128})["out"]) == wanted


def test_early_exits():
    body = f"""
    and.b32 r0, tid, 1; setp.eq.u32 p0, r0, 0; mov.u32 r1, 1; @p0 exit;
    setp.gt.u32 p1, tid, 20; @p1 ret; mov.u32 r1, 2; {OUT}
    """
    after = clean(body, {"out": np.zeros(32, np.uint32)})
    assert list(after["out"]) == [2 if t % 2 and t <= 20 else 0 for t in range(32)]


def test_blocks_that_are_no_whole_warps():
    body = f"mov.u32 r1, 1; bar.sync 0; activemask.b32 r1; {OUT}"
    after = clean(body, {"out": 40 * 4}, 40)
    assert list(after["out"]) == [2**32 - 1] * 32 + [255] * 8


def test_indirect_branch():
    body = f"""
    and.b32 r0, tid, 3; mov.u32 r1, 9;
    TABLE: .branchtargets A, B, C, A;
    brx.idx r0, TABLE;
    A: mov.u32 r1, 1; bra END; B: mov.u32 r1, 2; bra END; C: mov.u32 r1, 3;
    END: {OUT}
    """
    assert list(clean(body, {"out": 128})["out"]) == [1, 2, 3, 1] * 8
    assert kinds(body.replace("A, B, C, A", "A, B"), {"out": 128}) == ["trap"]


CALLS = """
.func (.param .b32 result) twice(.param .b32 x, .param .align 8 .b8 box[16])
{ .reg .b32 r<4>; .reg .b64 l<2>; ld.param.u32 r0, [x]; ld.param.u64 l0, [box+8];
  cvt.u32.u64 r1, l0; mad.lo.u32 r2, r0, 2, r1; st.param.b32 [result+0], r2; ret; }
.func (.param .b32 result) outer(.param .b32 x)
{ .reg .b32 r<4>; .reg .b64 l<2>; .reg .pred p; ld.param.u32 r0, [x];
  setp.gt.u32 p, r0, 15; @p bra BIG;
  { .param .b32 a; .param .align 8 .b8 b[16]; .param .b32 c; mov.u64 l0, 1000;
    st.param.b32 [a+0], r0; st.param.b64 [b+8], l0; call.uni (c), twice, (a, b);
    ld.param.b32 r1, [c+0]; }
  st.param.b32 [result+0], r1; ret;
  BIG: st.param.b32 [result+0], 7; ret; }
"""


def test_functions_have_names_of_their_own():
    """Shared variables of one name in two functions, and parameters by a computed address."""
    module = """
    .func (.param .b32 r) left(.param .align 4 .b8 box[8])
    { .reg .b32 a, b; .reg .b64 p; .shared .align 4 .u32 cell; mov.b64 p, box;
      ld.param.u32 a, [p+4]; st.shared.u32 [cell], a; ld.shared.u32 b, [cell];
      st.param.b32 [r+0], b; ret; }
    .func (.param .b32 r) right(.param .align 4 .b8 box[8])
    { .reg .b32 a, b; .shared .align 4 .u32 cell; ld.param.u32 a, [box];
      st.shared.u32 [cell], a; st.param.b32 [r+0], a; ret; }
    """
    call = """{{ .param .align 4 .b8 b[8]; .param .b32 c; st.param.b32 [b+0], 5;
    st.param.b32 [b+4], 6; call.uni (c), {0}, (b); ld.param.b32 {1}, [c+0]; }}"""
    body = call.format("left", "r2") + call.format("right", "r3") + "mad.lo.u32 r1, r2, 10, r3;"
    after = clean(body + OUT, {"out": 4}, 1, module=module)
    assert list(after["out"]) == [65]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_calls(schedule):
    body = f"""
    mov.u32 r1, 0; setp.lt.u32 p0, tid, 30;
    {{ .param .b32 a; .param .b32 c; st.param.b32 [a+0], tid; st.param.b32 [c+0], 55;
      @p0 call (c), outer, (a); ld.param.b32 r1, [c+0]; }} {OUT}
    """
    after = clean(body, {"out": 128}, module=CALLS, schedule=schedule)
    wanted = [2 * t + 1000 if t <= 15 else 7 if t < 30 else 55 for t in range(32)]
    assert list(after["out"]) == wanted


def test_indirect_calls():
    module = """
    .global .align 4 .u32 note[64];
    .func one() { .reg .b32 r<2>; .reg .b64 l; mov.u32 r0, %tid.x; mad.wide.u32 l, r0, 4, 0;
      mov.u64 l, note; .reg .b64 k; mad.wide.u32 k, r0, 4, l; st.global.u32 [k], 1; ret; }
    .func two() { .reg .b32 r<2>; .reg .b64 l, k; mov.u32 r0, %tid.x; mov.u64 l, note;
      mad.wide.u32 k, r0, 4, l; st.global.u32 [k], 2; ret; }
    """
    body = f"""
    mov.u64 l1, one; mov.u64 l2, two; setp.lt.u32 p0, tid, 5; selp.b64 l3, l1, l2, p0;
    PROTO: .callprototype _ (); call l3, PROTO; mov.u64 l4, note; mad.wide.u32 l5, tid, 4, l4;
    ld.global.u32 r1, [l5]; {OUT}
    """
    after = clean(body, {"out": 128}, module=module)
    assert list(after["out"]) == [1] * 5 + [2] * 27
    bad = body.replace("selp.b64 l3, l1, l2, p0", "mov.b64 l3, 64")
    assert kinds(bad, {"out": 128}, module=module) == ["bounds"]


def test_traps_and_assertions():
    assert kinds("setp.eq.u32 p0, tid, 3; @p0 trap;", {}) == ["trap"]
    assert kinds("setp.eq.u32 p0, tid, 99; @p0 trap;", {}) == []
    report, _ = run_block("setp.eq.u32 p0, tid, 3; @p0 brkpt;", {})
    assert report.faults[0].thread == (3, 0, 0)
    module = ".extern .func __assertfail(.param .b64 a);"
    body = """{ .param .b64 a; st.param.b64 [a+0], 0; setp.gt.u32 p0, tid, 30;
    @p0 call.uni __assertfail, (a); }"""
    assert kinds(body, {}, module=module) == ["assert"]
    assert kinds(body.replace("30", "31"), {}, module=module) == []


def test_printing():
    module = """
    .extern .func (.param .b32 result) vprintf(.param .b64 text, .param .b64 arguments);
    .global .align 1 .b8 line[32] = {116, 32, 37, 100, 44, 32, 37, 46, 50, 102, 10, 0};
    """
    body = """
    { .param .b64 a; .param .b64 b; .param .b32 c; .local .align 8 .b8 list[16]; .reg .f64 x;
      mov.u64 l1, list; cvta.local.u64 l2, l1; st.local.u32 [l1], tid; mov.f64 x, 1.5;
      st.local.f64 [l1+8], x; mov.u64 l3, line; cvta.global.u64 l3, l3; st.param.b64 [a+0], l3;
      st.param.b64 [b+0], l2; setp.gt.u32 p0, tid, 29; @p0 call.uni (c), vprintf, (a, b);
      ld.param.b32 r1, [c+0]; }
    """
    report, _ = run_block(body, {}, module=module)
    assert report.ok
    assert report.printed == ("t 30, 1.50\n", "t 31, 1.50\n")


def test_recursion_is_refused():
    text = (
        HEADER
        + """
    .func f(); .func f() { call.uni f; ret; }
    .visible .entry test() { call.uni f; ret; }"""
    )
    with pytest.raises(UnsupportedError, match="recursion"):
        launch(load(text), "test", (1,), 1, [], Memory())


def test_spinning_lets_others_run():
    """One warp waits in a loop for what a later one writes."""
    body = f"""
    mov.u32 r1, 1; mov.u32 r0, flag; setp.gt.u32 p0, warp, 0; @p0 bra WRITE;
    SPIN: ld.acquire.cta.shared.u32 r2, [r0]; setp.ne.u32 p1, r2, 3; @p1 bra SPIN; bra END;
    WRITE: st.release.cta.shared.u32 [r0], 3; END: {OUT}
    """
    shared = ".shared .align 4 .b8 flag[4];"
    after = clean(body, {"out": 256}, 64, shared=shared, checks=("race", "bounds"))
    assert list(after["out"]) == [1] * 64


def test_endless_loops_end():
    assert kinds("L: bra L;", {}, step_limit=1000) == ["limit"]


def test_many_blocks_of_unequal_length():
    """Blocks in one batch leave their loops at different times."""
    body = """
    mov.u32 r1, 0; mov.u32 r2, 0; mul.lo.u32 r3, cta, 3;
    LOOP: setp.ge.u32 p0, r2, r3; @p0 bra DONE; add.u32 r1, r1, r2; bar.sync 0;
    add.u32 r2, r2, 1; bra LOOP;
    DONE: mad.lo.u32 r4, cta, 64, tid; mad.wide.u32 l0, r4, 4, out; st.global.u32 [l0], r1;
    """
    after = clean(body, {"out": 70 * 64 * 4}, 64, grid=70)
    wanted = [sum(range(3 * cta)) for cta in range(70) for _ in range(64)]
    assert list(after["out"]) == wanted


def test_coverage_and_counts():
    body = "setp.gt.u32 p0, tid, 99; @p0 bra NEVER; ret; NEVER: mov.u32 r1, 3; add.u32 r1, r1, 1;"
    report, _ = run_block(body, {}, 64)
    assert (report.blocks_executed, report.blocks_present) == (2, 3)
    (missing,) = report.uncovered
    assert missing.line > 0
    assert report.warp_instructions == 2 * report.convoy_instructions
