"""Control flow of a function: basic blocks, their order and dominators."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass

from sparsekit.ptx.module import Function, Instruction
from sparsekit.ptx.operands import Arguments, Label, Symbol

_ENDS = frozenset({"ret", "exit", "trap"})


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions start ... stop-1; successors (a branch's targets first) are block numbers."""

    start: int
    stop: int
    successors: tuple[int, ...]
    predecessors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """The blocks in text order, block 0 the entry, and the reachable ones in reverse postorder."""

    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    starts: tuple[int, ...]

    def block_of(self, instruction: int) -> int:
        """The number of the block that holds an instruction."""
        return bisect_right(self.starts, instruction) - 1


def control_flow(function: Function, noreturn: Container[str] = ()) -> ControlFlow:
    """The basic blocks of a function; a call to one that noreturn names ends its path.

    A predicated bra, ret, exit or trap can also fall through. Labels that nothing branches to
    (debug information is full of them) start no block.
    """
    code = function.instructions
    starts = _starts(function, noreturn)
    number = {start: block for block, start in enumerate(starts)}
    stops = [*starts[1:], len(code)] if starts else []
    successors: list[tuple[int, ...]] = []
    for stop in stops:
        last = code[stop - 1]
        following = _targets(function, last)
        if not _ends_path(last, noreturn):
            following.append(stop)
        inside = [number[place] for place in following if place in number]
        successors.append(tuple(dict.fromkeys(inside)))
    predecessors: list[list[int]] = [[] for _ in starts]
    for block, after in enumerate(successors):
        for successor in after:
            predecessors[successor].append(block)
    blocks = tuple(
        Block(start, stop, after, tuple(before))
        for start, stop, after, before in zip(starts, stops, successors, predecessors, strict=True)
    )
    order = tuple(reverse_postorder(successors)) if starts else ()
    return ControlFlow(blocks, order, tuple(starts))


def reverse_postorder(successors: Sequence[Sequence[int]], root: int = 0) -> list[int]:
    """The nodes reachable from root, each before those that only it leads to."""
    order: list[int] = []
    seen = {root}
    stack = [(root, iter(successors[root]))]
    while stack:
        node, following = stack[-1]
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                stack.append((successor, iter(successors[successor])))
                break
        else:
            order.append(node)
            stack.pop()
    return order[::-1]


def _starts(function: Function, noreturn: Container[str]) -> list[int]:
    """The first instruction, all branch targets, and what stands behind an end of a block."""
    code = function.instructions
    starts = {0}
    for index, instruction in enumerate(code):
        targets = _targets(function, instruction)
        starts.update(targets)
        if targets or instruction.opcode.base in _ENDS or _ends_path(instruction, noreturn):
            starts.add(index + 1)
    return sorted(start for start in starts if start < len(code))


def _targets(function: Function, instruction: Instruction) -> list[int]:
    """The instructions that a bra or brx.idx can go to."""
    base = instruction.opcode.base
    label = instruction.operands[-1] if base in ("bra", "brx") else None
    if not isinstance(label, Label):
        return []
    names = (label.name,) if base == "bra" else function.branch_targets[label.name]
    return [function.labels[name] for name in names]


def _ends_path(instruction: Instruction, noreturn: Container[str]) -> bool:
    """Whether control never goes on to the next instruction."""
    if instruction.predicate is not None:
        return False
    if instruction.opcode.base == "call":
        target = next(o for o in instruction.operands if not isinstance(o, Arguments))
        return isinstance(target, Symbol) and target.name in noreturn
    return instruction.opcode.base in _ENDS or instruction.opcode.base in ("bra", "brx")


def dominators(
    order: Sequence[int], predecessors: Sequence[Sequence[int]], count: int
) -> tuple[int | None, ...]:
    """Immediate dominators of nodes in reverse postorder. Source: Cooper, Harvey, Kennedy, 2001."""
    rank = {node: position for position, node in enumerate(order)}
    found: list[int | None] = [None] * count
    if order:
        found[order[0]] = order[0]
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [p for p in predecessors[node] if p in rank and found[p] is not None]
            best = known[0]
            for other in known[1:]:
                best = _common(best, other, found, rank)
            if found[node] != best:
                found[node] = best
                changed = True
    if order:
        found[order[0]] = None
    return tuple(found)


def _common(a: int, b: int, found: Sequence[int | None], rank: dict[int, int]) -> int:
    """The closest node that dominates both."""
    while a != b:
        if rank[a] < rank[b]:
            a, b = b, a
        above = found[a]
        if above is None:
            return b
        a = above
    return a
