"""An entry's code for people: its loads stand out, and source lines where there are any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsekit.codegen.flow import flow_of
from sparsekit.codegen.gathers import trace
from sparsekit.codegen.ledger import BULK_LOADS, GLOBAL_LOADS
from sparsekit.codegen.ptx_loads import load_of
from sparsekit.codegen.sass import SassInstruction, access_bytes
from sparsekit.ptx import parse

_LOADS = frozenset({*GLOBAL_LOADS, *BULK_LOADS})


def sass_listing(code: Sequence[SassInstruction], places: Mapping[int, str]) -> list[str]:
    """One line an instruction. A global load bears its width, whether it gathers, and its source
    line from `places`, by offset in bytes; a loop's first instruction bears its number."""
    flow = flow_of(code)
    gathers = trace(code, flow).gathers
    heads = {loop.start: number for number, loop in enumerate(flow.loops)}
    lines: list[str] = []
    for i, instruction in enumerate(code):
        notes = []
        if instruction.offset in heads:
            notes.append(f"loop {heads[instruction.offset]}")
        if instruction.base in _LOADS:
            bulk = instruction.base in BULK_LOADS
            size = "bulk" if bulk else f"{access_bytes(instruction.opcode)} B"
            place = places.get(instruction.offset)
            at = f" at {place}" if place else ""
            notes.append(f"{'gather' if i in gathers else 'load'} {size}{at}")
        mark = f"  <-- {', '.join(notes)}" if notes else ""
        lines.append(f"{instruction}{mark}")
    return lines


def ptx_listing(text: str, entry: str) -> list[str]:
    """The PTX; behind a global load its place in the source, where line info was built in."""
    module = parse(text)
    function = next(f for f in module.entries if f.name == entry)
    lines = text.splitlines()
    for instruction in function.instructions:
        if load_of(instruction) is not None:
            where = module.where(instruction.loc)
            place = instruction.line - 1
            lines[place] += f"  // <-- load{where and f' at {where}'}"
    return lines
