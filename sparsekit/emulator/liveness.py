"""Which registers hold a value that is still needed at the borders of blocks: backward analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsekit.emulator.code import Block, Code


def live_registers(code: Code) -> None:
    """Set live_in and live_out of every block. A predicated write keeps the old value alive."""
    uses: list[int] = []
    kills: list[int] = []
    for block in code.blocks:
        use, kill = _summary(code, block)
        uses.append(use)
        kills.append(kill)
    predecessors: list[list[int]] = [[] for _ in code.blocks]
    for block in code.blocks:
        for successor in block.successors:
            predecessors[successor].append(block.number)
    work = list(range(len(code.blocks)))
    queued = [True] * len(code.blocks)
    while work:
        number = work.pop()
        queued[number] = False
        block = code.blocks[number]
        out = 0
        for successor in block.successors:
            out |= code.blocks[successor].live_in
        block.live_out = out
        live_in = uses[number] | (out & ~kills[number])
        if live_in != block.live_in:
            block.live_in = live_in
            for before in predecessors[number]:
                if not queued[before]:
                    queued[before] = True
                    work.append(before)


def _summary(code: Code, block: Block) -> tuple[int, int]:
    """(read before written, written for certain) as bit sets of slots."""
    use = kill = 0
    for matched in code.matched[block.start : block.stop]:
        instruction = matched.instruction
        for register in instruction.reads:
            bit = 1 << code.slots[block.function, register.name].index
            if not kill & bit:
                use |= bit
        if instruction.predicate is None:
            for register in instruction.writes:
                kill |= 1 << code.slots[block.function, register.name].index
        else:
            for register in instruction.writes:
                bit = 1 << code.slots[block.function, register.name].index
                if not kill & bit:
                    use |= bit
    return use, kill
