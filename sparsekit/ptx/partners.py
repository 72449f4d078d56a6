"""Rule `no-partner`: synchronisation of which one half is missing.

Asynchronous work is started, committed and waited for; an mbarrier is initialised, arrived at and
waited on. An instruction whose partner no path leads to does nothing, or hangs. Warnings, because
another function of the module, or the end of the grid, can stand in for a partner.

Sources: PTX ISA, Data Movement: cp.async, cp.async.bulk; Parallel Synchronization: mbarrier;
Asynchronous Warpgroup Level Matrix Instructions; TensorCore 5th Generation Family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparsekit.ptx.cfg import ControlFlow, control_flow
from sparsekit.ptx.finding import Finding
from sparsekit.ptx.module import Function, Instruction, Module
from sparsekit.ptx.operands import Immediate

NO_PARTNER = "no-partner"
Matches = Callable[[str], object]


def _opcode(pattern: str) -> Matches:
    return re.compile(pattern).match


@dataclass(frozen=True)
class _Pair:
    """An instruction, by its opcode, and those of which one must follow it on some path."""

    first: Matches
    then: Matches
    missing: str


@dataclass(frozen=True)
class _Need:
    """An instruction that takes part only if some other one stands anywhere in the code."""

    first: Matches
    other: Matches
    missing: str


_COPY = r"cp\.async\.(?:ca|cg)\."
_COPY_ARRIVES = r"cp\.async\.mbarrier\.arrive"
_BULK_OUT = r"cp\.(?:reduce\.)?async\.bulk\.(?!commit|wait|prefetch).*\.bulk_group"
_BYTES = r".*mbarrier::complete_tx|mbarrier\.complete_tx|st\.async|red\.async"

_PAIRS = (
    _Pair(
        _opcode(_COPY), _opcode(rf"cp\.async\.(?:commit_group|wait_all)|{_COPY_ARRIVES}"),
        "nothing commits the copy, so no wait_group waits for it",
    ),
    _Pair(
        _opcode(r"cp\.async\.commit_group"), _opcode(r"cp\.async\.wait_(?:group|all)"),
        "nothing waits for the group that it commits",
    ),
    _Pair(
        _opcode(_BULK_OUT), _opcode(r"cp\.async\.bulk\.commit_group"),
        "nothing commits the bulk copy, so nothing waits for it",
    ),
    _Pair(
        _opcode(r"cp\.async\.bulk\.commit_group"), _opcode(r"cp\.async\.bulk\.wait_group"),
        "nothing waits for the bulk group that it commits",
    ),
    _Pair(
        _opcode(r"wgmma\.mma_async"), _opcode(r"wgmma\.commit_group"),
        "nothing commits the wgmma, so nothing waits for its result",
    ),
    _Pair(
        _opcode(r"wgmma\.commit_group"), _opcode(r"wgmma\.wait_group"),
        "nothing waits for the wgmma group that it commits",
    ),
    _Pair(
        _opcode(r"tcgen05\.(?:mma|cp|shift)\b"), _opcode(r"tcgen05\.commit"),
        "no tcgen05.commit tells of its completion",
    ),
    _Pair(
        _opcode(r"tcgen05\.st\b"), _opcode(r"tcgen05\.wait::st"), "no tcgen05.wait::st follows",
    ),
    _Pair(
        _opcode(r"tcgen05\.alloc"), _opcode(r"tcgen05\.dealloc"),
        "nothing frees the tensor memory, which a kernel must do before it ends",
    ),
)  # fmt: skip
_NEEDS = (
    _Need(
        _opcode(r"mbarrier\.(?:try_wait|test_wait)"),
        _opcode(rf"mbarrier\.arrive|{_COPY_ARRIVES}|tcgen05\.commit|{_BYTES}"),
        "nothing arrives at an mbarrier, so the wait never ends",
    ),
    _Need(
        _opcode(r"mbarrier\.(?:arrive|try_wait|test_wait|expect_tx)"), _opcode(r"mbarrier\.init"),
        "no mbarrier is initialised",
    ),
    _Need(
        _opcode(r"mbarrier\.(?:arrive\S*\.)?expect_tx"), _opcode(_BYTES),
        "nothing brings the bytes that it expects, so the phase never ends",
    ),
    _Need(
        _opcode(r"(?!mbarrier|st\.|red\.).*mbarrier::complete_tx"),
        _opcode(r"mbarrier\.\S*expect_tx"), "no mbarrier expects the bytes that it brings",
    ),
    _Need(
        _opcode(r"mbarrier\.(?:arrive|expect_tx)"), _opcode(r"mbarrier\.(?:try_wait|test_wait)"),
        "nothing waits on an mbarrier",
    ),
)  # fmt: skip


def unpartnered(module: Module) -> Iterator[Finding]:
    """All findings, one per rule and function, at the first instruction concerned."""
    functions = [f for f in (*module.entries, *module.functions) if f.defined]
    called = [i for f in module.functions if f.defined for i in f.instructions]
    noreturn = module.noreturn
    for function in functions:
        code = function.instructions
        names = [i.opcode.text for i in code]
        everywhere = [*names, *(i.opcode.text for i in called)]
        flow: ControlFlow | None = None
        for pair in _PAIRS:
            firsts = [i for i, name in enumerate(names) if pair.first(name)]
            if not firsts:
                continue
            flow = flow or control_flow(function, noreturn)
            lonely = _without_path(flow, names, firsts, pair.then)
            if lonely and not any(pair.then(i.opcode.text) for i in called):
                yield _finding(function, code[lonely[0]], pair.missing)
        for need in _NEEDS:
            found = next((i for i in code if need.first(i.opcode.text)), None)
            if found is not None and not any(map(need.other, everywhere)):
                yield _finding(function, found, need.missing)
        yield from _barriers(function)


def _without_path(
    flow: ControlFlow, names: Sequence[str], firsts: Sequence[int], then: Matches
) -> list[int]:
    """Those of the instructions from which no path leads to one that `then` takes."""
    last_in: dict[int, int] = {}
    for index, name in enumerate(names):
        if then(name):
            last_in[flow.block_of(index)] = index
    reaching = set(last_in)
    work = list(last_in)
    while work:
        for before in flow.blocks[work.pop()].predecessors:
            if before not in reaching:
                reaching.add(before)
                work.append(before)
    lonely = []
    for index in firsts:
        block = flow.block_of(index)
        after = any(s in reaching for s in flow.blocks[block].successors)
        if last_in.get(block, -1) < index and not after:
            lonely.append(index)
    return lonely


def _barriers(function: Function) -> Iterator[Finding]:
    """bar.arrive at a barrier that nobody syncs on; where a number is computed, nothing is said."""
    arrivals: dict[int, Instruction] = {}
    synced: set[int] = set()
    for instruction in function.instructions:
        code = instruction.opcode
        if code.base not in ("bar", "barrier") or "warp" in code.modifiers:
            continue
        if "cluster" in code.modifiers or not instruction.operands:
            continue
        where = next((o for o in instruction.operands if not _is_destination(o, instruction)), None)
        if not isinstance(where, Immediate):
            return
        if "arrive" in code.modifiers:
            arrivals.setdefault(where.value, instruction)
        else:
            synced.add(where.value)
    for number, instruction in arrivals.items():
        if number not in synced:
            yield _finding(function, instruction, f"nothing waits at barrier {number}")


def _is_destination(operand: object, instruction: Instruction) -> bool:
    return "red" in instruction.opcode.modifiers and operand is instruction.operands[0]


def _finding(function: Function, instruction: Instruction, missing: str) -> Finding:
    return Finding(
        severity="warning", rule=NO_PARTNER, entry=function.name, register="",
        line=instruction.line, loc=instruction.loc, message=f"`{instruction}`: {missing}",
    )  # fmt: skip
