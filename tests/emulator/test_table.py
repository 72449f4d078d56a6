"""The instruction table: strict, complete in its reasons, and enough for the fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_instruction import HEADER
from whole_block import run_block

from sparsekit.emulator import UnsupportedError
from sparsekit.emulator.isa import CHAPTERS, TABLE
from sparsekit.emulator.table import HINTS
from sparsekit.ptx import parse

FIXTURES = Path(__file__).resolve().parents[1] / "ptx" / "fixtures"


@pytest.mark.parametrize(
    "text",
    [
        "add.sat.u32 r0, r1, r2;",  # no such modifier for the type
        "mul.u32 r0, r1, r2;",  # a modifier is missing
        "add.f32 f0, f1, f2, f3;",  # an operand too many
        "min.f32 f0, f1;",  # one too few
        "ld.global.v4.u32 {r0, r1}, [l0];",
        "ld.global.u32 r0, [l0], l1;",  # a policy without its modifier
        "cvt.rs.f16x2.f32 r0, f0, f1, r1;",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 {f0, f1, f2, f3}, {r0, r1, r2, r3}, "
        "{r4, r5}, {f0, f1, f2, f3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f0, f1, f2, f3}, {r0, r1}, {r4}, "
        "{f0, f1, f2, f3};",
        "cp.async.ca.shared.global [r0], [l0], 3;",
        "setp.lo.s32 p0, r0, r1;",
        "fence.proxy.texture;",
        "mbarrier.arrive.shared::cluster.b64 l1, [r0];",  # no state comes from another block
        "mbarrier.try_wait.parity.shared::cluster.b64 p0, [r0], 0;",
        "mbarrier.check_layout.v1.b64 p0, [r0];",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r0], [l0], 16;",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r0], "
        "[l0, {r1}], [r2];",
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [r0], "
        "[l0, {r1, r2, r3, r4}], [r5], {h0, h1};",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {f0, f1, f2, f3, f4, f5}, l0, l1, "
        "p0, 1, 1, 0, 0;",
        "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {f0, f1, f2, f3}, l0, l1, r0, 0, "
        "p0, 1, 1, 0, 0;",
        "tcgen05.shift.cta_group::1.down [r0];",
        "tcgen05.cp.cta_group::1.4x256b [r0], l0;",
        "tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p32 [r0], l0;",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [r0], l0, l1, r1, [r2], [r3], p0;",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [r0], l0, l1, [r2], r1, p0;",
        "tcgen05.mma.ws.cta_group::2.kind::f16 [r0], l0, l1, r1, p0;",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {r0, r1, r2}, [r3];",
        "tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {f0, f1}, f2, [r3];",
        "tensormap.replace.im2col.rank.shared::cta.b1024.b32 [l0], 1;",
        "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [l0], 5, 1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::w.b32.b128 r0, l0;",
        "fence.proxy.async.local;",
        "tex.1d.v4.f32.s32 {f0, f1, f2, f3}, [l0, {r0}];",
        "vabsdiff4.u32.u32.u32 r0, r1, r2, r3;",
        "mov.u16 r0, r1;",  # a register of another width
        "mov.u32 r0, %envreg3;",
        "addc.u32 r0, r1, r2;",  # a carry that nothing has written
    ],
)
def test_what_is_not_modelled_is_refused(text):
    with pytest.raises(UnsupportedError) as caught:
        run_block(f"mov.u32 r9, 1;\n {text}", {})
    opcode = text.split()[0]
    assert opcode in str(caught.value)
    assert caught.value.line > 0


def test_code_that_is_not_run_is_checked_too():
    """Opcodes are looked up when a kernel is prepared, executed or not."""
    with pytest.raises(UnsupportedError, match="istypep"):
        run_block("bra END; istypep.texref p0, l0; END: mov.u32 r0, 1;", {})


def test_hints_do_nothing():
    run_block(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; "
        "setmaxnreg.inc.sync.aligned.u32 232; setmaxnreg.dec.sync.aligned.u32 40;",
        {},
    )[0].raise_faults()


def test_hints_have_reasons():
    for forms in TABLE.forms.values():
        for form in forms:
            assert (form.emit is None) == bool(form.hint)
            assert form.section
    assert all(reason for _, reason in HINTS.values())


def test_a_chapter_holds_forms():
    assert all(module.CHAPTER.forms for module in CHAPTERS)
    assert sum(len(module.CHAPTER.forms) for module in CHAPTERS) > 200


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.ptx")), ids=lambda p: p.name)
def test_fixtures_are_modelled_in_full(path):
    for entry in parse(path.read_text()).entries:
        for index, instruction in enumerate(entry.instructions):
            TABLE.match(instruction, index)


def test_compilers_write_modifiers_in_an_order_of_their_own():
    module = parse(
        HEADER
        + """.visible .entry test() { .reg .b32 r<3>; .reg .b64 l;
        atom.global.gpu.acq_rel.add.u32 r0, [l], r1; atom.acq_rel.gpu.global.add.u32 r0, [l], r1;
        atom.relaxed.sys.shared.add.u32 r0, [l], r1; ret; }"""
    )
    for index, instruction in enumerate(module.entries[0].instructions):
        matched = TABLE.match(instruction, index)
        assert matched.instruction is instruction
