"""Constants and operands of instructions."""

from __future__ import annotations

import pytest
from ptx_text import entry

from sparsekit.ptx.operands import (
    Address,
    Float,
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Special,
    Symbol,
    Vector,
)

R1, R2 = Register("%r1", "b32"), Register("%r2", "b32")


def operands(instruction: str) -> tuple[Operand, ...]:
    return entry(instruction + "; ret;").instructions[0].operands


def test_instruction() -> None:
    found = entry("@!%p1 add.cc.s32\n  %r1, %r2, -5;\nret;").instructions[0]
    assert found.opcode.text == "add.cc.s32"
    assert (found.opcode.base, found.opcode.modifiers) == ("add", ("cc", "s32"))
    assert found.operands == (R1, R2, Immediate(-5))
    assert (found.predicate, found.negated) == (Register("%p1", "pred"), True)
    assert (found.line, found.loc) == (9, None)
    assert [r.name for r in found.reads] == ["%p1", "%r2"]
    assert [r.name for r in found.writes] == ["%r1"]
    assert str(found) == "@!%p1 add.cc.s32 %r1, %r2, -5;"


def test_modifiers_keep_their_sub_qualifiers() -> None:
    code = (
        entry("cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd1], 16;").instructions[0].opcode
    )
    assert (code.base, code.modifiers) == (
        "cp",
        ("async", "cg", "shared::cta", "global", "L2::128B"),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", Immediate(7)),
        ("-7", Immediate(-7)),
        ("0x1F", Immediate(31)),
        ("0xFFFFFFFFU", Immediate(0xFFFFFFFF)),
        ("017", Immediate(15)),
        ("0b101", Immediate(5)),
        ("0", Immediate(0)),
        ("(1 + 2) * 3 - -4", Immediate(13)),
        ("1 << 4 | 3 & 2 ^ 1", Immediate(19)),
        ("-7 / 2", Immediate(-3)),
        ("-(7 % 4)", Immediate(-3)),
        ("-7%(4)", Immediate(-3)),
        ("~5", Immediate(-6)),
        ("!0", Immediate(1)),
        ("WARP_SZ", Special("WARP_SZ")),
    ],
)
def test_integer_constants(text: str, value: Operand) -> None:
    assert operands(f"mov.b32 %r1, {text}")[1] == value


@pytest.mark.parametrize(
    ("text", "bits", "width_bits", "value"),
    [
        ("0f3F800000", 0x3F800000, 32, 1.0),
        ("0Fff800000", 0xFF800000, 32, float("-inf")),
        ("-0f3F800000", 0xBF800000, 32, -1.0),
        ("0d3FE0000000000000", 0x3FE0000000000000, 64, 0.5),
        ("1.5", 0x3FF8000000000000, 64, 1.5),
        ("-2e3", 0xC09F400000000000, 64, -2000.0),
    ],
)
def test_floating_point_constants(text: str, bits: int, width_bits: int, value: float) -> None:
    found = operands(f"mov.f32 %f1, {text}")[1]
    assert found == Float(bits, width_bits)
    assert isinstance(found, Float)
    assert found.value == value


def test_operands() -> None:
    assert operands("mov.u32 %r1, %ctaid.y")[1] == Special("%ctaid.y")
    assert operands("mov.b64 %rd1, out")[1] == Symbol("out")
    assert operands("mov.b64 %rd1, out + 8")[1] == Symbol("out", 8)
    assert operands("ld.param.u64 %rd1, [out]")[1] == Address(Symbol("out"))
    assert operands("ld.global.b32 %r1, [ %rd1 + 0 ]")[1] == Address(Register("%rd1", "b64"))
    assert operands("ld.global.b32 %r1, [%rd1+-16]")[1] == Address(Register("%rd1", "b64"), -16)
    assert operands("ld.global.b32 %r1, [%rd1+4*8]")[1] == Address(Register("%rd1", "b64"), 32)
    assert operands("ld.local.b32 %r1, [0x10]")[1] == Address(Immediate(16))
    assert operands("mov.b64 %rd1, {%r1, 0}")[1] == Vector((R1, Immediate(0)))
    assert operands("elect.sync _|%p1, -1")[0] == Pair(Sink(), Register("%p1", "pred"))
    assert operands("selp.b32 %r1, 1, 0, !%p1")[3] == Negated(Register("%p1", "pred"))
    assert operands("vadd.u32.u32.u32 %r1, %r2.h1, %r3.b0")[1] == Selected(R2, "h1")
    tensor = operands(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%r1], [%rd1, {%r2, 0}], [%r3]"
    )
    assert tensor[1] == Address(Register("%rd1", "b64"), 0, (Vector((R2, Immediate(0))),))
