"""From disassembled instructions to the facts of an entry: widths, gathers, loops, arithmetic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sparsekit.aot.elf import Cubin, CubinEntry
from sparsekit.codegen.flow import NEVER, Flow, Loop, flow_of
from sparsekit.codegen.gathers import Traced, trace
from sparsekit.codegen.ledger import (
    BULK_LOADS,
    GLOBAL_LOADS,
    UNKNOWN_WIDTH,
    Histogram,
    LoopFacts,
    SassFacts,
    by_width,
)
from sparsekit.codegen.rounding import rounding_steps, tensor_instructions
from sparsekit.codegen.sass import SassInstruction, access_bytes, access_class
from sparsekit.digest import sha256_of

Functions = Mapping[str, tuple[SassInstruction, ...]]
_COUNTED = ("FFMA", "FMUL", "FADD", "MUFU")
_FILLER = frozenset({"NOP"})


def analyse(cubin: Cubin, functions: Functions) -> dict[str, SassFacts]:
    """The facts of every entry that was disassembled, by name."""
    return {
        name: _facts(entry, functions[name], functions)
        for name, entry in cubin.entries.items()
        if name in functions
    }


def _facts(entry: CubinEntry, code: tuple[SassInstruction, ...], functions: Functions) -> SassFacts:
    flow = flow_of(code)
    traced = trace(code, flow)
    running = [i for i, use in enumerate(traced.uses) if use is not None]
    gathers = sorted(traced.gathers)
    arithmetic = Counter(code[i].base for i in running if code[i].base in _COUNTED)
    arithmetic["ftz"] = sum("FTZ" in code[i].opcode.split(".") for i in running)
    return SassFacts(
        entry=entry.name,
        instructions=sum(i.base not in _FILLER for i in code),
        code_bytes=entry.code_bytes,
        text_sha256=entry.text_sha256,
        instructions_sha256=_digest(code, flow, functions),
        barriers=entry.barriers,
        accesses=_histogram(code[i] for i in running),
        gathers=_histogram(code[i] for i in gathers),
        loops=_loops(flow.loops, code, set(running), traced),
        tensor=tensor_instructions(code[i] for i in running),
        arithmetic={name: arithmetic[name] for name in (*_COUNTED, "ftz")},
        rounding=rounding_steps(code, traced),
    )


def _histogram(
    code: Iterable[SassInstruction], keep: Callable[[str], bool] = lambda kind: True
) -> Histogram:
    found: dict[str, Counter[str]] = {}
    for instruction in code:
        kind = access_class(instruction.base)
        if kind is None or not keep(kind):
            continue
        bulk = kind in BULK_LOADS
        width = UNKNOWN_WIDTH if bulk else str(access_bytes(instruction.opcode))
        found.setdefault(kind, Counter())[width] += 1
    return {kind: by_width(found[kind]) for kind in sorted(found)}


def _loops(
    loops: Sequence[Loop], code: Sequence[SassInstruction], running: set[int], traced: Traced
) -> tuple[LoopFacts, ...]:
    streams: dict[int, int] = {}
    found: list[LoopFacts] = []
    for loop in loops:
        own = [i for i in loop.own if i in running]
        arrays = 0
        for i in own:
            arrays |= traced.arrays.get(i, 0)
        found.append(
            LoopFacts(
                start=loop.start,
                stop=loop.stop,
                depth=loop.depth,
                parent=loop.parent,
                instructions=len(own),
                loads=_histogram((code[i] for i in own), lambda k: k in GLOBAL_LOADS + BULK_LOADS),
                gathers=_histogram(code[i] for i in own if i in traced.gathers),
                stream=streams.setdefault(arrays, len(streams)) if arrays else None,
            )
        )
    return tuple(found)


def _digest(code: Sequence[SassInstruction], flow: Flow, functions: Functions) -> str:
    """sha256 of (predicate, opcode, operands), sorted within each block: the order that a scheduler
    chose, its stall counts and where blocks lie do not count; nor does the entry's name."""
    told: list[list[tuple[str, str, str]]] = []
    _describe(code, flow, functions, told, set())
    return sha256_of(json.dumps(told).encode())


def _describe(
    code: Sequence[SassInstruction], flow: Flow, functions: Functions,
    told: list[list[tuple[str, str, str]]], seen: set[str],
) -> None:  # fmt: skip
    number = flow.block_of()
    at = {instruction.offset: number[i] for i, instruction in enumerate(code) if i in number}
    called: list[str] = []
    reachable = set(flow.order)
    for n, block in enumerate(flow.blocks):
        if n not in reachable:
            continue
        rows: list[tuple[str, str, str]] = []
        for i in block:
            instruction = code[i]
            if instruction.base in _FILLER or instruction.predicate == NEVER:
                continue
            if instruction.base == "CALL":
                called += [f for f in functions if f and f in instruction.operands]
            operands = _without_places(instruction, at, functions)
            rows.append((instruction.predicate, instruction.opcode, operands))
        told.append(sorted(rows))
    for name in called:
        if name not in seen:
            seen.add(name)
            _describe(functions[name], flow_of(functions[name]), functions, told, seen)


def _without_places(
    instruction: SassInstruction, at: Mapping[int, int], functions: Functions
) -> str:
    """The operands with the block's number for a branch target and no names of functions."""
    operands = instruction.operands.replace(".reuse", "")
    if instruction.base in ("BRA", "BSSY", "CALL", "JMP"):
        *before, last = operands.split(",")
        if last.startswith("0x") and int(last, 16) in at:
            return ",".join([*before, f"block {at[int(last, 16)]}"])
    if instruction.base in ("CALL", "RET"):
        for name in functions:
            operands = operands.replace(name, "function")
    return operands
