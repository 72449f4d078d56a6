"""Reads of registers that some path reaches without a definition: forward must-analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparsekit.ptx.cfg import Block, ControlFlow
from sparsekit.ptx.module import Function, Instruction


@dataclass(frozen=True, slots=True)
class _Summary:
    """What one block does: registers it writes, (instruction, register) it reads before that."""

    written: frozenset[str]
    exposed: tuple[tuple[int, str], ...]


def maybe_undefined_reads(function: Function, flow: ControlFlow) -> list[tuple[int, str]]:
    """(instruction, register) of each read that no write precedes on some path."""
    code = function.instructions
    summaries = {block: _summarise(code, flow.blocks[block]) for block in flow.order}
    # only registers that cross a block's border matter between blocks
    crossing = {name for summary in summaries.values() for _, name in summary.exposed}
    written = {block: summary.written & crossing for block, summary in summaries.items()}
    at_entry = frozenset(param.name for param in function.params if param.space == "reg")
    defined = _defined_at_start(flow, written, at_entry)
    return [
        (index, name)
        for block in flow.order
        for index, name in summaries[block].exposed
        if name not in defined[block]
    ]


def _summarise(code: Sequence[Instruction], block: Block) -> _Summary:
    written: set[str] = set()
    exposed: list[tuple[int, str]] = []
    for index in range(block.start, block.stop):
        instruction = code[index]
        for register in instruction.reads:
            if register.name not in written:
                exposed.append((index, register.name))
        for register in instruction.writes:
            written.add(register.name)
    return _Summary(frozenset(written), tuple(exposed))


def _defined_at_start(
    flow: ControlFlow, written: Mapping[int, frozenset[str]], at_entry: Iterable[str]
) -> dict[int, frozenset[str]]:
    """Per reachable block the registers defined on every path to it: the greatest fixed point."""
    entry = frozenset(at_entry)
    before: dict[int, frozenset[str]] = {}
    after: dict[int, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for block in flow.order:
            arriving = [after[p] for p in flow.blocks[block].predecessors if p in after]
            if block == flow.order[0]:
                arriving.append(entry)
            defined = frozenset.intersection(*arriving)
            if before.get(block) != defined:
                before[block] = defined
                after[block] = defined | written[block]
                changed = True
    return before
