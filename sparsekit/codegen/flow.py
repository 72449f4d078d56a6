"""Control flow of a SASS function: blocks from branch targets, and the loops with their nesting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsekit.codegen.sass import INSTRUCTION_BYTES, SassInstruction
from sparsekit.ptx.cfg import dominators, reverse_postorder

_TARGET = re.compile(r"(?:^|,)\s*`?\(?0x([0-9a-f]+)\)?`?$")
_BARRIER = re.compile(r"\bB(\d+)\b")
_BRANCHES = frozenset({"BRA", "JMP"})
_COMPUTED = frozenset({"BRX", "BRXU", "JMX"})
_ENDS = frozenset({"EXIT", "RET", "KILL"}) | _COMPUTED
ALWAYS = frozenset({"", "@PT"})
NEVER = "@!PT"  # ptxas writes instructions that never run, as a workaround for the hardware


@dataclass(frozen=True)
class Loop:
    """A natural loop. start, stop: bytes from the function's start, of its first instruction and
    behind its last. depth: 0 for an outermost one. parent: the number of the loop around it.
    own: its instructions that are in no inner loop, by index; all: those of inner loops too."""

    start: int
    stop: int
    depth: int
    parent: int | None
    own: tuple[int, ...]
    all: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """blocks: ranges of instruction indices. successors: block numbers. order: the reachable
    blocks in reverse postorder. loops: in the order of their first instructions."""

    blocks: tuple[range, ...]
    successors: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    loops: tuple[Loop, ...]

    def block_of(self) -> dict[int, int]:
        return {i: n for n, block in enumerate(self.blocks) for i in block}


def flow_of(code: Sequence[SassInstruction]) -> Flow:
    """The control flow; empty for no code."""
    if not code:
        return Flow((), (), (), ())
    place = {instruction.offset: i for i, instruction in enumerate(code)}
    joins = _joins(code, place)
    leads = [_following(i, x, place, joins) for i, x in enumerate(code)]
    _reach_what_nothing_reaches(code, leads)
    starts = {0}
    for i, targets in enumerate(leads):
        if targets != (i + 1,):
            starts.update(targets)
            starts.add(i + 1)
    ordered = sorted(s for s in starts if s < len(code))
    number = {start: n for n, start in enumerate(ordered)}
    stops = [*ordered[1:], len(code)]
    blocks = tuple(range(a, b) for a, b in zip(ordered, stops, strict=True))
    successors = tuple(
        tuple(dict.fromkeys(number[t] for t in leads[b.stop - 1] if t < len(code))) for b in blocks
    )
    order = tuple(reverse_postorder(successors))
    return Flow(blocks, successors, order, _loops(code, blocks, successors, order))


def _joins(code: Sequence[SassInstruction], place: Mapping[int, int]) -> dict[str, list[int]]:
    """Where threads that diverged meet, by barrier register: the operands of BSSY."""
    found: dict[str, list[int]] = {}
    for instruction in code:
        if instruction.base == "BSSY" and (barrier := _BARRIER.search(instruction.operands)):
            found.setdefault(barrier[1], []).extend(_target(instruction, place))
    return found


def _target(instruction: SassInstruction, place: Mapping[int, int]) -> list[int]:
    match = _TARGET.search(instruction.operands)
    found = place.get(int(match[1], 16)) if match else None
    return [] if found is None else [found]


def _following(
    index: int, instruction: SassInstruction, place: Mapping[int, int],
    joins: Mapping[str, list[int]],
) -> tuple[int, ...]:  # fmt: skip
    """The indices that may run next."""
    base, after = instruction.base, index + 1
    if instruction.predicate == NEVER:
        return (after,)
    always = instruction.predicate in ALWAYS
    if base in _BRANCHES:
        # A second condition stands as the first of two operands: `BRA P0, 0x700`.
        always = always and "," not in instruction.operands and ".DIV" not in instruction.opcode
        targets = _target(instruction, place)
        return tuple(dict.fromkeys([*targets, *([] if always and targets else [after])]))
    if base == "CALL":  # of a function that comes back; ptxas also leaves loops by it
        return tuple(dict.fromkeys([*_target(instruction, place), after]))
    if base == "BSYNC":
        barrier = _BARRIER.search(instruction.operands)
        meeting = joins.get(barrier[1], []) if barrier else []
        # A register serves many BSSY; nearly always the place is the one behind.
        return (after,) if after in meeting or not meeting else tuple(dict.fromkeys(meeting))
    if base in _ENDS:
        return () if always else (after,)
    return (after,)


def _reach_what_nothing_reaches(
    code: Sequence[SassInstruction], leads: list[tuple[int, ...]]
) -> None:
    """Lead computed branches, whose tables are not in the code, to what nothing else leads to."""
    computed = [i for i, x in enumerate(code) if x.base in _COMPUTED and x.predicate != NEVER]
    if not computed:
        return
    reached = {0, *(target for targets in leads for target in targets)}
    rest = tuple(i for i in range(len(code)) if i not in reached and not _is_padding(i, leads))
    for i in computed:
        leads[i] = tuple(dict.fromkeys([*leads[i], *rest]))


def _is_padding(index: int, leads: Sequence[tuple[int, ...]]) -> bool:
    """Whether it is the branch to itself that ends every function."""
    return leads[index] == (index,)


def _loops(
    code: Sequence[SassInstruction], blocks: Sequence[range],
    successors: Sequence[tuple[int, ...]], order: Sequence[int],
) -> tuple[Loop, ...]:  # fmt: skip
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block in order:
        for successor in successors[block]:
            predecessors[successor].append(block)
    above = dominators(order, predecessors, len(blocks))
    bodies: dict[int, set[int]] = {}
    for block in order:
        for header in successors[block]:
            if _dominates(header, block, above):
                bodies.setdefault(header, {header}).update(_body(header, block, predecessors))
    headers = sorted(bodies, key=lambda h: blocks[h].start)
    number = {header: n for n, header in enumerate(headers)}
    parents = {h: _parent(h, bodies) for h in headers}
    return tuple(_loop(code, blocks, bodies, header, parents, number) for header in headers)


def _dominates(header: int, block: int | None, above: Sequence[int | None]) -> bool:
    while block is not None and block != header:
        block = above[block]
    return block == header


def _body(header: int, latch: int, predecessors: Sequence[Sequence[int]]) -> set[int]:
    """The blocks that reach the latch without passing the header."""
    body, pending = {header, latch}, [latch]
    while pending:
        block = pending.pop()
        if block != header:
            new = [p for p in predecessors[block] if p not in body]
            body.update(new)
            pending += new
    return body


def _parent(header: int, bodies: Mapping[int, set[int]]) -> int | None:
    """The header of the smallest loop around."""
    around = [h for h, body in bodies.items() if h != header and header in body]
    return min(around, key=lambda h: len(bodies[h]), default=None)


def _loop(
    code: Sequence[SassInstruction], blocks: Sequence[range], bodies: Mapping[int, set[int]],
    header: int, parents: Mapping[int, int | None], number: Mapping[int, int],
) -> Loop:  # fmt: skip
    body = bodies[header]
    inner: set[int] = set()
    for other, parent in parents.items():
        if parent == header:
            inner |= bodies[other]
    depth, parent = 0, parents[header]
    above = parent
    while above is not None:
        depth, above = depth + 1, parents[above]
    everything = sorted(i for b in body for i in blocks[b])
    own = sorted(i for b in body - inner for i in blocks[b])
    stop = code[everything[-1]].offset + INSTRUCTION_BYTES
    return Loop(
        code[blocks[header].start].offset, stop, depth,
        None if parent is None else number[parent], tuple(own), tuple(everything),
    )  # fmt: skip
