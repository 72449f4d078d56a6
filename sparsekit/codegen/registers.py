"""Which registers a SASS instruction reads and writes, as far as following values needs it.

SASS has no published grammar. The rules below are read off `nvdisasm` 13.5 over cubins for sm_80 to
sm_121: the destination comes first, behind leading predicates or before a carry-out predicate;
memory operands stand in brackets, behind a descriptor from sm_90 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparsekit.codegen.sass import SassInstruction, access_bytes

_REGISTER = re.compile(r"(?<![\w$])(U?R)(\d+)(\.64)?")
_PREDICATE = re.compile(r"!?(?:U?P\d|U?PT|PR)")
_LAST_BRACKET = re.compile(r"\[([^\[\]]*)\][^\[\]]*$")
_SHAPE = re.compile(r"64x(\d+)x\d+")
_REGISTER_BYTES = 4
_TMA_GROUP = 8  # uniform registers that a TMA instruction reads from its first operand on

NO_RESULT = frozenset({
    "ST", "STG", "STS", "STL", "STSM", "STTM", "STAS", "RED", "REDG", "REDS", "UBLKCP",
    "UBLKPF", "UBLKRED", "UTMALDG", "UTMASTG", "UTMAPF", "UTMAREDG", "UTMACCTL", "UTMACMDFLUSH",
    "BAR", "BRA", "BRX", "BRXU", "JMP", "JMX", "EXIT", "KILL", "NOP", "BSSY", "BSYNC", "BREAK",
    "YIELD", "WARPSYNC", "CALL", "RET", "DEPBAR", "LDGDEPBAR", "LDGSTS", "MEMBAR", "ERRBAR",
    "CCTL", "CCTLL", "FENCE", "NANOSLEEP", "WARPGROUP", "UTCHMMA", "UTCIMMA", "UTCQMMA",
    "UTCOMMA", "UTCBAR", "UTCCP", "USETMAXREG", "PREEXIT", "ACQBULK", "ARRIVES", "BPT",
})  # fmt: skip
_ONLY_PREDICATES = frozenset({"FCHK", "PLOP3", "UPLOP3", "R2P", "ELECT"})
_TMA = frozenset({"UTMALDG", "UTMASTG", "UTMAREDG"})
_LOADS = frozenset({
    "LD", "LDG", "LDS", "LDL", "LDC", "LDCU", "ULDC", "LDSM", "LDTM", "ATOM", "ATOMG", "ATOMS",
})  # fmt: skip
_PAIRS = frozenset({"WIDE", "64", "F64"})


@dataclass(frozen=True, slots=True)
class Registers:
    """results: registers written. sources: those read, one tuple for each operand. address: those
    that a memory access takes its (global) address from. predicates: those written, "PR" for all;
    predicates that are read are left out."""

    results: tuple[str, ...]
    sources: tuple[tuple[str, ...], ...]
    address: tuple[str, ...]
    predicates: tuple[str, ...]


def registers_of(instruction: SassInstruction) -> Registers:
    base = instruction.base
    operands = [o for o in instruction.operands.split(",") if o]
    first = _result_place(base, operands)
    predicates = () if base in NO_RESULT else _written_predicates(operands, first)
    results: tuple[str, ...] = ()
    if first is not None:
        results = _span(operands[first], _result_width(instruction))
        operands = operands[:first] + operands[first + 1 :]
    sources = tuple(found for o in operands if (found := _named(o)))
    return Registers(results, sources, _address(base, operands), predicates)


def _written_predicates(operands: list[str], result: int | None) -> tuple[str, ...]:
    """Those that lead, and those right behind the result: a comparison's, a carry."""
    found: list[str] = []
    for place, operand in enumerate(operands):
        if place == result:
            continue
        if not _PREDICATE.fullmatch(operand) or operand.startswith("!"):
            break
        found.append(operand)
    return tuple(found)


def _result_place(base: str, operands: list[str]) -> int | None:
    """The place of the operand that takes the result, None where no register does."""
    if base in NO_RESULT or base in _ONLY_PREDICATES or base.endswith("SETP"):
        return None
    for place, operand in enumerate(operands):
        if not _PREDICATE.fullmatch(operand):
            return place if _REGISTER.match(operand) and "[" not in operand else None
    return None


def _result_width(instruction: SassInstruction) -> int:
    """Registers of 32 bits that the result fills."""
    base, *modifiers = instruction.opcode.split(".")
    if base in _LOADS:
        return max(1, access_bytes(instruction.opcode) // _REGISTER_BYTES)
    if base == "CS2R":
        return 1 if "32" in modifiers else 2
    if base.endswith("GMMA"):
        shape = next((m for x in modifiers if (m := _SHAPE.fullmatch(x))), None)
        columns = int(shape[1]) if shape else 8
        return columns // (2 if "F32" in modifiers else 4)
    if base.endswith("MMA") and base not in ("HFMA2", "UTCHMMA"):
        return 2 if modifiers[1:2] == ["F16"] else 4
    if base in ("DADD", "DMUL", "DFMA", "FADD2", "FMUL2", "FFMA2") or _PAIRS & set(modifiers[:2]):
        return 2
    return 1


def _span(operand: str, width: int) -> tuple[str, ...]:
    match = _REGISTER.match(operand)
    assert match is not None
    return tuple(f"{match[1]}{int(match[2]) + i}" for i in range(width))


def _named(operand: str) -> tuple[str, ...]:
    """The registers that an operand names; both of a pair."""
    found: list[str] = []
    for kind, number, pair in _REGISTER.findall(operand):
        found.append(f"{kind}{number}")
        if pair:
            found.append(f"{kind}{int(number) + 1}")
    return tuple(found)


def _address(base: str, operands: list[str]) -> tuple[str, ...]:
    """The registers of the last bracket of the last memory operand; the whole group of a TMA."""
    if base in _TMA:
        first = _REGISTER.search(operands[0])
        start = int(first[2]) if first else 0
        return tuple(f"UR{start + i}" for i in range(_TMA_GROUP))
    for operand in reversed(operands):
        if operand.startswith(("c[", "gdesc", "idesc", "tmem")):
            continue
        if match := _LAST_BRACKET.search(operand):
            return _named(match[1])
    return ()
