"""Basic blocks, their order and dominators."""

from __future__ import annotations

from sparsekit.ptx import ControlFlow, control_flow, parse
from sparsekit.ptx.cfg import dominators

HEAD = ".version 9.0\n.target sm_90\n.address_size 64\n"


def flow_of(body: str, before: str = "") -> ControlFlow:
    registers = ".reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %rd<2>;"
    module = parse(f"{HEAD}{before}.entry k() {{ {registers}\n{body}\n}}")
    return control_flow(module.entries[0], module.noreturn)


def above(flow: ControlFlow) -> tuple[int | None, ...]:
    before = [block.predecessors for block in flow.blocks]
    return dominators(flow.order, before, len(flow.blocks))


def edges(flow: ControlFlow) -> list[tuple[int, ...]]:
    return [block.successors for block in flow.blocks]


def spans(flow: ControlFlow) -> list[tuple[int, int]]:
    return [(block.start, block.stop) for block in flow.blocks]


DIAMOND = """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra ELSE;
    mov.b32 %r2, 1;
    bra.uni JOIN;
ELSE:
    mov.b32 %r2, 2;
JOIN:
    ret;
"""

NESTED_LOOPS = """
OUTER:
    add.u32 %r1, %r1, 1;
INNER:
    add.u32 %r2, %r2, 1;
    @%p1 bra INNER;
    @%p2 bra OUTER;
    ret;
"""


def test_diamond() -> None:
    flow = flow_of(DIAMOND)
    assert spans(flow) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert edges(flow) == [(2, 1), (3,), (3,), ()]
    assert [block.predecessors for block in flow.blocks] == [(), (0,), (0,), (1, 2)]
    assert flow.order[0] == 0
    assert flow.order[-1] == 3
    assert sorted(flow.order) == [0, 1, 2, 3]
    assert above(flow) == (None, 0, 0, 0)


def test_block_of() -> None:
    flow = flow_of(DIAMOND)
    assert [flow.block_of(index) for index in range(6)] == [0, 0, 1, 1, 2, 3]


def test_nested_loops() -> None:
    flow = flow_of(NESTED_LOOPS)
    assert spans(flow) == [(0, 1), (1, 3), (3, 4), (4, 5)]
    assert edges(flow) == [(1,), (1, 2), (0, 3), ()]
    assert flow.order == (0, 1, 2, 3)
    assert above(flow) == (None, 0, 1, 2)


def test_labels_that_nothing_branches_to_start_no_block() -> None:
    flow = flow_of("$L__func_begin0: mov.b32 %r1, 0; $L__tmp1: mov.b32 %r2, 0; ret;")
    assert spans(flow) == [(0, 3)]


def test_predicated_exits_fall_through() -> None:
    flow = flow_of("@%p1 exit; @!%p1 ret; @%p2 trap; ret;")
    assert edges(flow) == [(1,), (2,), (3,), ()]


def test_exit_ret_and_trap_end_a_path() -> None:
    flow = flow_of("@%p1 bra A; exit; A: @%p2 bra B; ret; B: trap; mov.b32 %r1, 0;")
    assert edges(flow) == [(2, 1), (), (4, 3), (), (), ()]


def test_unreachable_code_has_blocks_but_no_place_in_the_order() -> None:
    flow = flow_of("bra END; mov.b32 %r1, 0; DEAD: bra DEAD; END: ret;")
    assert spans(flow) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert flow.order == (0, 3)
    assert above(flow) == (None, None, None, 0)


def test_indirect_branch() -> None:
    flow = flow_of("t: .branchtargets A, B, A; brx.idx %r1, t; A: mov.b32 %r1, 0; B: ret;")
    assert edges(flow) == [(1, 2), (2,), ()]
    flow = flow_of("t: .branchtargets A, B; @%p1 brx.idx %r1, t; exit; A: ret; B: ret;")
    assert edges(flow) == [(2, 3, 1), (), (), ()]


def test_branch_to_the_next_instruction() -> None:
    flow = flow_of("@%p1 bra NEXT; NEXT: ret;")
    assert edges(flow) == [(1,), ()]


def test_end_of_text_ends_a_path() -> None:
    flow = flow_of("@%p1 bra END; mov.b32 %r1, 0; END:")
    assert edges(flow) == [(1,), ()]


def test_infinite_loop() -> None:
    flow = flow_of("@%p1 bra END; FOREVER: bra FOREVER; END: ret;")
    assert edges(flow) == [(2, 1), (1,), ()]


def test_call_that_does_not_return() -> None:
    before = ".extern .func fail() .noreturn;\n.extern .func log();\n"
    flow = flow_of("call log; @%p1 call fail; call fail; ret;", before)
    assert spans(flow) == [(0, 3), (3, 4)]
    assert edges(flow) == [(), ()]
    assert flow.order == (0,)


def test_entry_block_in_a_loop() -> None:
    flow = flow_of("L: @%p1 bra L; ret;")
    assert edges(flow) == [(0, 1), ()]
    assert flow.blocks[0].predecessors == (0,)
    assert above(flow) == (None, 0)


def test_irreducible_loop() -> None:
    flow = flow_of("@%p1 bra B; A: mov.b32 %r1, 0; B: @%p2 bra A; ret;")
    assert edges(flow) == [(2, 1), (2,), (1, 3), ()]
    assert above(flow) == (None, 0, 0, 2)


def test_empty_function() -> None:
    flow = flow_of("")
    assert (flow.blocks, flow.order) == ((), ())
    assert above(flow) == ()
