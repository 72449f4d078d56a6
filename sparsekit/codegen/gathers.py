"""Which loads are gathers: their address depends on the result of an earlier load.

Loads of one array are known by the kernel parameters in their addresses. An array that only serves
to address another one holds indices; its loads are no gathers even where a loaded length decides
how far they go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsekit.codegen.flow import Flow
from sparsekit.codegen.ledger import BULK_LOADS, GLOBAL_LOADS
from sparsekit.codegen.sass import SassInstruction
from sparsekit.codegen.values import GLOBAL_READS, Labels, Solution, Tracer, Use, indices_of

_STRAIGHT_TO_SHARED = frozenset({"LDGSTS", *BULK_LOADS})
_LOADS = frozenset({*GLOBAL_LOADS, *BULK_LOADS}) | GLOBAL_READS
_ROUNDS = 4  # what shared memory holds is found in two; the bound is for what never settles


@dataclass(frozen=True)
class Traced:
    """labels: the names of the origins in `uses`. gathers: instructions by index. arrays: a bit for
    the array that each load reads, by the load's index."""

    labels: Labels
    uses: Sequence[Use | None]
    gathers: frozenset[int]
    arrays: Mapping[int, int]


def trace(code: Sequence[SassInstruction], flow: Flow) -> Traced:
    """What reaches each instruction of a function, and its gathers."""
    labels = Labels()
    tracer = Tracer(code, flow, labels)
    loads = indices_of(code, _LOADS)
    groups = _groups(tracer.solve(lambda index: 0, 0), loads, labels)
    members = 0
    for bit in groups.values():
        members |= bit
    straight = 0
    for index in indices_of(code, _STRAIGHT_TO_SHARED):
        straight |= groups.get(index, 0)
    shared, solution = straight, tracer.solve(lambda i: groups.get(i, 0), straight)
    for _ in range(_ROUNDS):
        holds = straight | (solution.stored & members)
        if holds == shared:
            break
        shared = holds
        solution = tracer.solve(lambda i: groups.get(i, 0), shared)
    return Traced(labels, solution.uses, _gathers(solution, groups, members), groups)


def _groups(first: Solution, loads: Sequence[int], labels: Labels) -> dict[int, int]:
    """Per load a bit for its array: the constants that its address is made of. An address with some
    more (a count, where a remainder loop starts) is of the same array."""
    constants: dict[int, int] = {}
    for index in loads:
        use = first.uses[index]
        if use is not None:
            constants[index] = use.address & ~labels.kinds
    fewest = sorted(set(constants.values()), key=int.bit_count)
    arrays = {c: next((f for f in fewest if f and f & ~c == 0), c) for c in fewest}
    return {index: labels.bit(f"loaded from {arrays[c]:x}") for index, c in constants.items()}


def _gathers(solution: Solution, groups: Mapping[int, int], members: int) -> frozenset[int]:
    needs: dict[int, int] = {}  # array -> the arrays that its addresses depend on
    for index, group in groups.items():
        use = solution.uses[index]
        needs[group] = needs.get(group, 0) | (use.address & members if use else 0)
    indices = {
        group
        for group, own in needs.items()
        if any(other & group and h != group and not own & h for h, other in needs.items())
    }
    return frozenset(
        index
        for index, group in groups.items()
        if (use := solution.uses[index]) and use.address & members and group not in indices
    )
