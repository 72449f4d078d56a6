"""Widths of global loads in PTX: bytes per thread of `ld.global` and `cp.async`.

Source: PTX ISA, "ld" and "cp.async".
"""

from __future__ import annotations

import re
from collections import Counter

from sparsekit.codegen.ledger import UNKNOWN_WIDTH, Histogram, by_width
from sparsekit.ptx import Function, Instruction
from sparsekit.ptx.operands import Immediate

_CLASSES = ("ld.global", "cp.async", "cp.async.bulk")
_VECTOR = re.compile(r"v([248])")
_TYPE = re.compile(r"[bufs](\d+)|bf16|f16")
_BITS_PER_BYTE = 8


def ptx_loads(entry: Function) -> Histogram:
    """Counts by class and width: `{"ld.global": {"16": 8}, "cp.async": {"16": 4}}`."""
    found: dict[str, Counter[str]] = {}
    for instruction in entry.instructions:
        if (load := load_of(instruction)) is not None:
            kind, width = load
            found.setdefault(kind, Counter())[width] += 1
    return {kind: by_width(found[kind]) for kind in _CLASSES if kind in found}


def load_of(instruction: Instruction) -> tuple[str, str] | None:
    """Class and width of a load from global memory; None for anything else."""
    modifiers = instruction.opcode.modifiers
    base = instruction.opcode.base
    if base == "ld" and "global" in modifiers:
        return "ld.global", str(_vector_bytes(modifiers))
    if base == "cp" and modifiers[:1] == ("async",):
        if "bulk" in modifiers:
            spaces = [m.partition("::")[0] for m in modifiers]
            into_shared = [s for s in spaces if s in ("shared", "global")] == ["shared", "global"]
            return ("cp.async.bulk", UNKNOWN_WIDTH) if into_shared else None
        sizes = [o for o in instruction.operands if isinstance(o, Immediate)]
        if sizes and "shared" in "".join(modifiers):
            return "cp.async", str(sizes[0].value)
    return None


def _vector_bytes(modifiers: tuple[str, ...]) -> int:
    vector = next((int(m[1]) for x in modifiers if (m := _VECTOR.fullmatch(x))), 1)
    kind = next(m for x in reversed(modifiers) if (m := _TYPE.fullmatch(x)))
    bits = int(kind[1]) if kind[1] else 16
    return vector * bits // _BITS_PER_BYTE
