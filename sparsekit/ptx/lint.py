"""Faults that can be read off PTX text: all rules together, and rule `use-before-definition`.

A register holds nothing until something writes it, and ptxas says nothing of a read before that;
a compiler that moves an instruction across a definition makes wrong results, not an error.

Error: a read that finds the register undefined, on every path. Precisely: follow all paths from
the entry and give each up where it has read the register undefined; the read is an error when
some path reaches it with the register undefined and none with a definition behind it. So in a
loop whose body reads first and defines below, the definition reaches the read only along paths
that have already read the register undefined: an error, although the back edge does bring it.
`if (i > 0) use(x); x = ...;` in the same loop is none: the first round defines without reading.

Warning: a read that finds the register undefined on some path.

What counts: a predicated write defines, for both rules; Triton loads under a predicate, computes
on, and throws the result away where the predicate is false. A predicated read, or a value that
selp chooses between, need not happen, so a path goes on behind it. Unreachable code neither reads
nor defines.

Two things that healthy code does are not held to the rule. The accumulator of a wgmma whose
scale-d is a predicate: the first step of a sum passes false on purpose. A register that nothing
writes at all, as one part of a packed value: so a compiler spells a part that nobody set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sparsekit.ptx.cfg import ControlFlow, control_flow
from sparsekit.ptx.definedness import maybe_undefined_reads
from sparsekit.ptx.finding import Finding
from sparsekit.ptx.limits import beyond_arch
from sparsekit.ptx.module import Function, Instruction, Module
from sparsekit.ptx.opcodes import ACCUMULATES, scale_d
from sparsekit.ptx.operands import Register, Vector, registers
from sparsekit.ptx.partners import unpartnered

USE_BEFORE_DEFINITION = "use-before-definition"
_CHOICES = frozenset({"selp", "slct"})  # d, a, b, condition: reads a or b
_PACKED = ("x2", "x4")  # cvt.rn.f16x2.f32 d, a, b
_PLAIN_CVT_OPERANDS = 2


def lint(module: Module) -> tuple[Finding, ...]:
    """All findings of a module in the order of its text.

    Of use-before-definition there is one per register of a function.
    """
    noreturn = module.noreturn
    findings = [
        finding
        for function in (*module.entries, *module.functions)
        if function.defined
        for finding in _use_before_definition(function, control_flow(function, noreturn))
    ]
    findings += unpartnered(module)
    findings += beyond_arch(module)
    return tuple(sorted(findings, key=lambda finding: finding.line))


def _use_before_definition(function: Function, flow: ControlFlow) -> Iterator[Finding]:
    code = function.instructions
    suspects: dict[str, list[int]] = {}
    for index, name in maybe_undefined_reads(function, flow):
        if _read_of(code[index], name) is not None:
            suspects.setdefault(name, []).append(index)
    uses = _uses(code, suspects)
    for name, reads in suspects.items():
        if not any(_writes(code[index], name) for index in uses[name]):
            reads = [index for index in reads if not _is_unset_part(code[index], name)]
        if reads:
            hopeless = _never_defined_first(flow, code, uses[name], name)
            errors = [index for index in reads if index in hopeless]
            index = min(errors or reads)
            yield _finding(function, index, name, uses[name], is_error=bool(errors))


def _finding(function: Function, index: int, name: str, uses: list[int], is_error: bool) -> Finding:
    code = function.instructions
    writers = [code[i].line for i in uses if _writes(code[i], name)]
    written = f"first written in line {writers[0]}" if writers else "nothing writes it"
    paths = "every path" if is_error else "some path"
    return Finding(
        severity="error" if is_error else "warning",
        rule=USE_BEFORE_DEFINITION,
        entry=function.name,
        register=name,
        line=code[index].line,
        loc=code[index].loc,
        message=f"`{code[index]}` reads {name} before its definition on {paths}; {written}",
    )


def _uses(code: tuple[Instruction, ...], names: Iterable[str]) -> Mapping[str, list[int]]:
    """Per register the instructions that read or write it, in text order."""
    uses: dict[str, list[int]] = {name: [] for name in names}
    if uses:
        for index, instruction in enumerate(code):
            for name in {register.name for register in (*instruction.reads, *instruction.writes)}:
                if name in uses:
                    uses[name].append(index)
    return uses


def _never_defined_first(
    flow: ControlFlow, code: tuple[Instruction, ...], uses: list[int], name: str
) -> set[int]:
    """The reads that paths reach with the register undefined and none with it defined.

    A path that has read the register undefined goes no further.
    """
    by_block: dict[int, list[int]] = {}
    for index in uses:
        by_block.setdefault(flow.block_of(index), []).append(index)
    undefined_at: set[int] = set()
    defined_at: set[int] = set()
    stack = [(0, False)]
    seen = set(stack)
    while stack:
        block, defined = stack.pop()
        ended = False
        for index in by_block.get(block, ()):
            read = _read_of(code[index], name)
            if read is not None:
                (defined_at if defined else undefined_at).add(index)
                ended = read and not defined
            if ended:
                break
            defined = defined or _writes(code[index], name)
        if not ended:
            following = {(successor, defined) for successor in flow.blocks[block].successors}
            stack.extend(following - seen)
            seen |= following
    return undefined_at - defined_at


def _writes(instruction: Instruction, name: str) -> bool:
    return any(register.name == name for register in instruction.writes)


def _read_of(instruction: Instruction, name: str) -> bool | None:
    """Whether running the instruction reads the register for certain; None for no read."""
    guard = instruction.predicate
    if guard is not None and guard.name == name:
        return True
    if not any(register.name == name for register in instruction.reads):
        return None
    code = instruction.opcode
    if (
        code.destinations == ACCUMULATES
        and _writes(instruction, name)
        and isinstance(scale_d(code, instruction.operands), Register)
    ):
        return None
    if code.base in _CHOICES:
        condition = instruction.operands[-1]
        return guard is None and isinstance(condition, Register) and condition.name == name
    return guard is None


def _is_unset_part(instruction: Instruction, name: str) -> bool:
    """Whether the register stands only for a part of a packed or vector value."""
    code = instruction.opcode
    if instruction.predicate is not None and instruction.predicate.name == name:
        return False
    if code.base == "cvt":
        return len(instruction.operands) > _PLAIN_CVT_OPERANDS and any(
            modifier.endswith(_PACKED) for modifier in code.modifiers
        )
    whole = [o for o in instruction.operands if not isinstance(o, Vector)]
    return code.base in ("mov", "st") and all(
        register.name != name for operand in whole for register in registers(operand)
    )
