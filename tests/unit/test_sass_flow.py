"""Control flow, loops and gathers of SASS, on code written by hand."""

from __future__ import annotations

import pytest

from sparsekit.aot.elf import Cubin, CubinEntry
from sparsekit.codegen.analyse import analyse
from sparsekit.codegen.flow import flow_of
from sparsekit.codegen.gathers import trace
from sparsekit.codegen.ledger import SassFacts
from sparsekit.codegen.registers import registers_of
from sparsekit.codegen.sass import SassInstruction


def code(text: str) -> tuple[SassInstruction, ...]:
    """One instruction a line; a branch goes to `@LINE`, the number of a line from 0."""
    found = []
    for i, line in enumerate(text.strip().splitlines()):
        words = line.split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        operands = ",".join(words[1:])
        if ">" in operands:
            before, _, target = operands.partition(">")
            operands = f"{before}{int(target) * 16:#x}"
        found.append(SassInstruction(i * 16, predicate, words[0], operands))
    return tuple(found)


def facts(text: str, name: str = "k") -> SassFacts:
    entry = CubinEntry(name, 8, 0, 0, 16, "digest", (), 128, None, {})
    return analyse(Cubin("sm_90", True, {name: entry}), {name: code(text)})[name]


def gathered(text: str) -> set[int]:
    listed = code(text)
    return set(trace(listed, flow_of(listed)).gathers)


NESTED = """
MOV R0 RZ
MOV R1 RZ
LDG.E R4 [R2.64]
LDG.E.128 R8 [R2.64]
@P0 BRA >3
IADD3 R0 R0 0x1 RZ
@P1 BRA >1
EXIT
BRA >8
"""


def test_loops_are_nested_and_count_their_own_loads():
    found = facts(NESTED).loops
    assert [(loop.start, loop.stop, loop.depth, loop.parent) for loop in found] == [
        (16, 112, 0, None), (48, 80, 1, 0),
    ]  # fmt: skip
    assert [loop.loads for loop in found] == [{"LDG": {"4": 1}}, {"LDG": {"16": 1}}]
    assert facts(NESTED).accesses == {"LDG": {"16": 1, "4": 1}}


def test_a_reused_barrier_register_joins_nothing_far_away():
    """BSYNC goes on behind itself, though another BSSY of the same register names elsewhere."""
    first = "BSSY B0 >4\n@P0 BRA >3\nMOV R0 RZ\nBSYNC B0"
    flow = flow_of(code(f"{first}\nBSSY B0 >7\nNOP\nBSYNC B0\nEXIT"))
    assert flow.loops == ()
    assert all(t > n for n, after in enumerate(flow.successors) for t in after)


def test_a_second_condition_may_fall_through():
    flow = flow_of(code("MOV R0 RZ\nBRA P3 >0\nEXIT"))
    assert len(flow.loops) == 1
    assert len(flow.order) == 2


def test_a_computed_branch_reaches_what_nothing_else_does():
    text = "BRX R4 -0x10\nLDG.E R0 [R2.64]\nEXIT\nLDG.E.128 R8 [R2.64]\nEXIT\nBRA >5"
    assert facts(text).accesses == {"LDG": {"16": 1, "4": 1}}
    assert facts(text).loops == ()


def test_a_call_into_the_function_is_a_way_out():
    flow = flow_of(code("MOV R0 RZ\n@!P0 CALL.REL.NOINC >3\nBRA >0\nSTL [R1] R0\nEXIT"))
    assert len(flow.order) == len(flow.blocks)
    assert len(flow.loops) == 1


GATHER = """
LDC.64 R2 c[0x0][0x210]
LDC.64 R6 c[0x0][0x218]
LDG.E R0 desc[UR4][R2.64]
IMAD.WIDE R4 R0 0x400 R6
LDG.E.128 R8 desc[UR4][R4.64]
EXIT
"""


def test_a_row_is_a_gather_and_its_index_is_not():
    assert gathered(GATHER) == {4}
    assert facts(GATHER).gathers == {"LDG": {"16": 1}}


FROM_SHARED = "LDS R1 [R9]\nIMAD.WIDE R4 R1 0x4 R6\nLDG.E R8 [R4.64]\nEXIT"


def test_an_index_that_goes_through_shared_memory():
    by_store = (
        "LDG.E R0 [R2.64]\nSTS [R9] R0\nLDS R1 [R9]\nIMAD.WIDE R4 R1 0x4 R6\nLDG.E R8 [R4.64]"
    )
    assert gathered(f"LDC.64 R2 c[0x0][0x210]\nLDC.64 R6 c[0x0][0x218]\n{by_store}\nEXIT") == {6}
    straight = (
        "LDGSTS.E [R9] desc[UR4][R2.64]\nLDS R1 [R9]\nIMAD.WIDE R4 R1 0x4 R6\nLDG.E R8 [R4.64]"
    )
    assert gathered(f"LDC.64 R2 c[0x0][0x210]\nLDC.64 R6 c[0x0][0x218]\n{straight}\nEXIT") == {5}


def test_shared_memory_that_holds_nothing_loaded_makes_no_gather():
    assert gathered(f"STS [R9] R0\n{FROM_SHARED}") == set()


def test_indices_are_no_gathers_though_a_loaded_length_bounds_them():
    found = gathered(
        """
        LDC.64 R2 c[0x0][0x210]
        LDC.64 R6 c[0x0][0x218]
        LDC.64 R20 c[0x0][0x220]
        LDG.E R0 [R20.64]
        SEL R1 R30 R0 P0
        IMAD.WIDE R10 R1 0x4 R2
        LDG.E R11 [R10.64]
        IMAD.WIDE R4 R11 0x400 R6
        LDG.E.128 R8 [R4.64]
        EXIT
        """
    )
    assert found == {8}


def test_a_list_that_links_itself_gathers():
    assert gathered("LDC.64 R2 c[0x0][0x210]\nLDG.E.64 R2 [R2.64]\n@P0 BRA >1\nEXIT") == {1}


def test_a_register_that_is_overwritten_forgets():
    text = "LDG.E R0 [R2.64]\nMOV R0 0x5\nIMAD.WIDE R4 R0 0x4 R6\nLDG.E R8 [R4.64]\nEXIT"
    assert gathered(text) == set()


def test_what_is_written_under_a_condition_is_read_under_it():
    text = """
    LDG.E R4 [R2.64]
    @P0 MOV R4 R20
    {0} LDG.E R8 [R4]
    EXIT
    """
    assert gathered(text.format("@P0")) == set()
    assert gathered(text.format("@!P0")) == {2}
    assert gathered(text.format("@P1")) == {2}
    changed = text.replace("{0}", "ISETP.GE.AND P0 PT R1 R2 PT\n{0}")
    assert gathered(changed.format("@P0")) == {3}


def test_what_never_runs_is_not_counted():
    running = "LDG.E.128 R8 [R2.64]\nUBLKCP.S.G [UR8] [UR6] UR10\nEXIT"
    found = facts(f"@!PT LDS RZ [RZ]\n{running}\nLDG.E R0 [R2.64]")
    assert found.accesses == {"LDG": {"16": 1}, "UBLKCP": {"?": 1}}


@pytest.mark.parametrize(
    ("instruction", "results", "address"),
    [
        ("LDG.E.128 R8 desc[UR4][R2.64+0x10]", ("R8", "R9", "R10", "R11"), ("R2", "R3")),
        ("LDGSTS.E.BYPASS.128 [R102+0x8000] desc[UR18][R12.64] P1", (), ("R12", "R13")),
        ("IMAD.WIDE R4 R0 0x4 R6", ("R4", "R5"), ()),
        ("SHFL.BFLY PT R15 R10 0x1 0x1f", ("R15",), ()),
        ("ISETP.GE.AND P0 PT R7.reuse R20 PT", (), ()),
        ("LEA R4 P1 R7.reuse UR9 0x2", ("R4",), ()),
        ("STG.E.128 desc[UR18][R16.64] R64", (), ("R16", "R17")),
        ("CS2R R12 SRZ", ("R12", "R13"), ()),
        ("HMMA.16816.F32.BF16 R12 R4 R8 R12", ("R12", "R13", "R14", "R15"), ()),
        ("LDSM.16.M88.4 R8 [R88+UR4+0x8000]", ("R8", "R9", "R10", "R11"), ("R88", "UR4")),
        ("UTMALDG.2D [UR8] [UR4]", (), tuple(f"UR{8 + i}" for i in range(8))),
        ("LDC.64 R2 c[0x0][0x210]", ("R2", "R3"), ()),
    ],
)  # fmt: skip
def test_registers(instruction, results, address):
    (parsed,) = code(instruction)
    found = registers_of(parsed)
    assert (found.results, found.address) == (results, address)


def test_a_predicate_that_carries_is_written():
    (add,) = code("IADD3 R4 P1 R7 R9 RZ")
    assert registers_of(add).predicates == ("P1",)
    (compare,) = code("ISETP.GE.AND P0 PT R7 R20 !P2")
    assert registers_of(compare).predicates == ("P0", "PT")


BASE = "MOV R0 RZ\nFADD R1 R2 R3\nFMUL R4 R5 R6\n@P0 BRA >1\nEXIT"


def test_the_digest_ignores_the_order_within_a_block_and_the_name():
    base = facts(BASE).instructions_sha256
    swapped = "MOV R0 RZ\nFMUL R4 R5 R6.reuse\nFADD R1 R2 R3\n@P0 BRA >1\nEXIT"
    padded = "MOV R0 RZ\nNOP\nFADD R1 R2 R3\nFMUL R4 R5 R6\n@P0 BRA >2\nEXIT\nBRA >6\nNOP"
    assert facts(swapped, "other").instructions_sha256 == base
    assert facts(padded).instructions_sha256 == base
    for changed in ("FADD R1 R2 R4", "@P1 FADD R1 R2 R3", "FADD.FTZ R1 R2 R3"):
        assert facts(BASE.replace("FADD R1 R2 R3", changed)).instructions_sha256 != base


def test_facts_survive_their_json():
    found = facts(NESTED)
    assert SassFacts.from_json(found.to_json()) == found
