"""Which registers tensor cores read or write by themselves: results and A of wgmma, and what
tcgen05.ld fills, together with what a mov copies from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparsekit.emulator.table import Matched
from sparsekit.ptx.operands import Register, Vector

if TYPE_CHECKING:
    from sparsekit.emulator.code import Code


_WORD_BYTES = 4
_HELD_OPERANDS = {("wgmma", "mma_async"): 2, ("tcgen05", "ld"): 1}


def asynchronous_slots(code: Code) -> frozenset[int]:
    """The slots of these registers."""
    found = set()
    copies = []
    for function, matched in _instructions(code):
        opcode = matched.instruction.opcode
        key = (opcode.base, opcode.modifiers[0] if opcode.modifiers else "")
        for operand in matched.operands[: _HELD_OPERANDS.get(key, 0)]:
            elements = operand.elements if isinstance(operand, Vector) else (operand,)
            for element in elements:
                if isinstance(element, Register):
                    slot = code.slots[function, element.name]
                    found |= {slot.index} if slot.width == _WORD_BYTES else set()
        if opcode.base == "mov":
            target, source = matched.operands
            if isinstance(target, Register) and isinstance(source, Register):
                copies.append(
                    (code.slots[function, source.name].index,
                     code.slots[function, target.name].index)
                )  # fmt: skip
    grown = bool(found)
    while grown:
        more = {target for source, target in copies if source in found} - found
        found |= more
        grown = bool(more)
    return frozenset(found)


def _instructions(code: Code) -> Iterator[tuple[int, Matched]]:
    """(function, instruction) of all of them."""
    for block in code.blocks:
        for matched in code.matched[block.start : block.stop]:
            yield block.function, matched
