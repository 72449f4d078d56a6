"""Where values come from: which instructions' results reach each operand, along all paths.

A forward analysis over the control flow. A register holds a set of origins: the kinds of operation
that may have made its value, the constants (kernel parameters) that went into it, and the loads
that it depends on. Moves, selections and shuffles hand on what they are given. Predicates are not
followed: which row is read does not depend on whether it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparsekit.codegen.conditional import Values
from sparsekit.codegen.flow import ALWAYS, NEVER, Flow
from sparsekit.codegen.registers import Registers, registers_of
from sparsekit.codegen.sass import SassInstruction

_State = dict[str, int]
_CONSTANT = re.compile(r"c\[[^\]]*\]\[[^\]]*\]")
_HANDED_ON = frozenset({
    "MOV", "UMOV", "SEL", "USEL", "FSEL", "SHFL", "PRMT", "UPRMT", "R2UR", "CREDUX", "REDUX",
    "FMNMX", "FMNMX3", "RPCMOV",
})  # fmt: skip
GLOBAL_READS = frozenset({"LD", "LDG", "ATOM", "ATOMG"})
SHARED_READS = frozenset({"LDS", "LDSM", "LDTM", "ATOMS"})
_CONSTANT_READS = frozenset({"LDC", "LDCU", "ULDC"})
_SPECIAL_READS = frozenset({"S2R", "S2UR", "CS2R"})
_SHARED_STORES = frozenset({"STS", "STSM", "STTM"})


@dataclass
class Labels:
    """Origins as bits of an integer. kinds: the bits of the kinds of operation."""

    _bits: dict[str, int] = field(default_factory=dict)
    kinds: int = 0

    def bit(self, name: str) -> int:
        return self._bits.setdefault(name, 1 << len(self._bits))

    def kind(self, name: str) -> int:
        found = self.bit(name)
        self.kinds |= found
        return found

    def names(self, origins: int) -> list[str]:
        return [name for name, bit in self._bits.items() if origins & bit]


@dataclass(frozen=True)
class Use:
    """The origins that reach one instruction. operands: of each source operand that names a
    register or a constant; address: of its address."""

    operands: tuple[int, ...]
    address: int


@dataclass(frozen=True)
class Solution:
    """Per instruction what reaches it; None for one that is never reached or never runs. stored:
    the origins of all that is stored in shared memory."""

    uses: list[Use | None]
    stored: int


class Tracer:
    """Follows values through one function. loaded(index): the origins of what that load reads
    from global memory, beyond its kind."""

    def __init__(self, code: Sequence[SassInstruction], flow: Flow, labels: Labels) -> None:
        self._code, self._flow, self.labels = code, flow, labels
        self._registers = [registers_of(i) for i in code]
        self._constants = [
            [labels.bit(c) for c in _CONSTANT.findall(i.operands)] if "c[" in i.operands else []
            for i in code
        ]

    def solve(self, loaded: Callable[[int], int], shared: int) -> Solution:
        """shared: the origins of all that shared memory holds, beyond the kind of the read."""
        entering = self._fixpoint(loaded, shared)
        uses: list[Use | None] = [None] * len(self._code)
        stored = 0
        for block in self._flow.order:
            values = Values(entering[block] or {})
            for i in self._flow.blocks[block]:
                if self._code[i].predicate != NEVER:
                    uses[i] = use = self._use(i, values)
                    if self._code[i].base in _SHARED_STORES and use.operands:
                        stored |= use.operands[-1]
                self._step(i, values, loaded, shared)
        return Solution(uses, stored)

    def _fixpoint(self, loaded: Callable[[int], int], shared: int) -> list[_State | None]:
        """The state that enters each block."""
        flow = self._flow
        entering: list[_State | None] = [None] * len(flow.blocks)
        if flow.blocks:
            entering[0] = {}
        pending = set(flow.order)
        while pending:
            for block in flow.order:
                before = entering[block]
                if block not in pending:
                    continue
                pending.discard(block)
                if before is None:
                    continue
                values = Values(before)
                for i in flow.blocks[block]:
                    self._step(i, values, loaded, shared)
                leaving = values.leaving()
                for successor in flow.successors[block]:
                    if _merge(entering, successor, leaving):
                        pending.add(successor)
        return entering

    def _use(self, index: int, values: Values) -> Use:
        guard, registers = _guard(self._code[index]), self._registers[index]
        operands = [values.read(named, guard) for named in registers.sources]
        operands += self._constants[index]
        return Use(tuple(operands), values.read(registers.address, guard))

    def _step(self, index: int, values: Values, loaded: Callable[[int], int], shared: int) -> None:
        instruction, registers = self._code[index], self._registers[index]
        if instruction.predicate == NEVER:
            return
        guard = _guard(instruction)
        if instruction.base == "STL" and registers.sources:
            values.write(_slot(instruction, 0), values.read(registers.sources[-1], guard), guard)
        if registers.results:
            origins = self._made(index, registers, values, loaded, shared)
            for register in registers.results:
                values.write(register, origins, guard)
        if registers.predicates:
            values.forget(registers.predicates)

    def _made(
        self, index: int, registers: Registers, values: Values, loaded: Callable[[int], int],
        shared: int,
    ) -> int:  # fmt: skip
        """The origins of what an instruction makes."""
        instruction = self._code[index]
        base, guard = instruction.base, _guard(instruction)
        if base in GLOBAL_READS:
            return self.labels.kind("global") | loaded(index)
        if base in SHARED_READS:
            return self.labels.kind("shared") | shared
        if base == "LDL":
            return values.read((_slot(instruction, 1),), guard)
        if base in _SPECIAL_READS:
            return 0
        reaching = sum(set(self._constants[index]))
        if base in _CONSTANT_READS:
            return reaching
        for named in registers.sources:
            reaching |= values.read(named, guard)
        if base in _HANDED_ON or ".MOV" in instruction.opcode:
            return reaching
        kind = ".".join(instruction.opcode.split(".")[:2]) if base == "MUFU" else base
        return (reaching & ~self.labels.kinds) | self.labels.kind(kind)


def _merge(entering: list[_State | None], block: int, state: Mapping[str, int]) -> bool:
    """Add what comes along another path; whether that is news."""
    known = entering[block]
    if known is None:
        entering[block] = dict(state)
        return True
    changed = False
    for register, origins in state.items():
        old = known.get(register, 0)
        if origins & ~old:
            known[register] = old | origins
            changed = True
    return changed


def _guard(instruction: SassInstruction) -> str:
    return "" if instruction.predicate in ALWAYS else instruction.predicate


def _slot(instruction: SassInstruction, operand: int) -> str:
    """A place in local memory, by how it is written: spills are stored and loaded alike."""
    operands = instruction.operands.split(",")
    return f"local {operands[operand]}" if operand < len(operands) else "local"


def indices_of(code: Iterable[SassInstruction], bases: frozenset[str]) -> list[int]:
    """The instructions of those kinds that can run."""
    return [i for i, x in enumerate(code) if x.base in bases and x.predicate != NEVER]
