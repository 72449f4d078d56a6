"""Reads of registers that some path reaches without a definition: forward must-analysis.

State: the registers defined on every path, and facts "defined wherever predicate p is true" (or
false) from predicated writes. A fact counts for reads under the same predicate, becomes a plain
definition behind a branch on it or next to its opposite, and is lost when p is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from sparsekit.ptx.cfg import Block, ControlFlow
from sparsekit.ptx.module import Function, Instruction

_EXITS = frozenset({"ret", "exit", "trap"})


class _Fact(NamedTuple):
    """register is defined where guard is true, or where it is false if negated."""

    register: str
    guard: str
    negated: bool


class _State(NamedTuple):
    """What holds on every path to a point."""

    defined: frozenset[str]
    facts: frozenset[_Fact]


@dataclass(slots=True)
class _Summary:
    """What one block does. exposed: (instruction, register, fact that would allow the read)."""

    defined: set[str] = field(default_factory=set)
    facts: set[_Fact] = field(default_factory=set)
    rewritten: set[str] = field(default_factory=set)  # predicates, whose earlier facts are lost
    exposed: list[tuple[int, str, _Fact | None]] = field(default_factory=list)


def maybe_undefined_reads(function: Function, flow: ControlFlow) -> list[tuple[int, str]]:
    """(instruction, register) of each read that no definition precedes on some path."""
    code = function.instructions
    summaries = {b: _summarise(code, flow.blocks[b]) for b in flow.order}
    # only registers that cross a block's border matter between blocks
    names = {name for summary in summaries.values() for _, name, _ in summary.exposed}
    for summary in summaries.values():
        summary.defined &= names
        summary.facts = {fact for fact in summary.facts if fact.register in names}
    at_entry = {param.name for param in function.params if param.space == "reg"}
    states = _states(code, flow, summaries, at_entry)
    return [
        (index, name)
        for block in flow.order
        for index, name, fact in summaries[block].exposed
        if name not in states[block].defined and fact not in states[block].facts
    ]


def _summarise(code: Sequence[Instruction], block: Block) -> _Summary:
    summary = _Summary()
    defined, facts, exposed = summary.defined, summary.facts, summary.exposed
    for index in range(block.start, block.stop):
        instruction = code[index]
        guard = instruction.predicate
        for register in instruction.reads:
            name = register.name
            if name in defined:
                continue
            if guard is None:
                exposed.append((index, name, None))
                continue
            fact = _Fact(name, guard.name, instruction.negated)
            if fact not in facts:
                exposed.append((index, name, None if guard.name in summary.rewritten else fact))
        for register in instruction.writes:
            name = register.name
            if register.type == "pred":
                summary.rewritten.add(name)
                facts.difference_update([fact for fact in facts if fact.guard == name])
            if guard is None or _Fact(name, guard.name, not instruction.negated) in facts:
                defined.add(name)
            else:
                facts.add(_Fact(name, guard.name, instruction.negated))
    return summary


def _states(
    code: Sequence[Instruction],
    flow: ControlFlow,
    summaries: Mapping[int, _Summary],
    at_entry: Iterable[str],
) -> dict[int, _State]:
    """The state at the start of every reachable block: the greatest fixed point."""
    entry = _State(frozenset(at_entry), frozenset())
    before: dict[int, _State] = {}
    after: dict[int, _State] = {}
    changed = True
    while changed:
        changed = False
        for number in flow.order:
            arriving = [
                _along(after[p], flow.blocks[p], number, code[flow.blocks[p].stop - 1])
                for p in flow.blocks[number].predecessors
                if p in after
            ]
            state = reduce(_meet, arriving + [entry] * (number == 0))
            if before.get(number) != state:
                before[number] = state
                after[number] = _through(state, summaries[number])
                changed = True
    return before


def _meet(a: _State, b: _State) -> _State:
    return _State(a.defined & b.defined, a.facts & b.facts)


def _through(state: _State, summary: _Summary) -> _State:
    """The state behind a block."""
    kept = {fact for fact in state.facts if fact.guard not in summary.rewritten}
    facts = frozenset(kept | summary.facts)
    both = {fact.register for fact in facts if fact._replace(negated=not fact.negated) in facts}
    return _State(state.defined | summary.defined | both, facts)


def _along(state: _State, block: Block, successor: int, last: Instruction) -> _State:
    """The state on an edge: behind a predicated transfer the predicate is known."""
    guard = last.predicate
    if guard is None or not state.facts:
        return state
    if last.opcode.base in _EXITS:
        negated = not last.negated
    elif last.opcode.base == "bra" and len(block.successors) > 1:
        negated = last.negated if successor == block.taken else not last.negated
    else:
        return state
    known = {f.register for f in state.facts if f.guard == guard.name and f.negated == negated}
    return _State(state.defined | known, state.facts)
