"""One instruction: opcode and operand texts -> operands, registers read, registers written."""

from __future__ import annotations

from typing import TypeAlias

from sparsekit.ptx.errors import OperandError
from sparsekit.ptx.opcodes import Opcode, accumulates, opcode, written
from sparsekit.ptx.operand_text import parse_call, parsed, split_operands
from sparsekit.ptx.operands import Arguments, Label, Operand, Register, Symbol, registers
from sparsekit.ptx.scope import Scope

TRANSFERS = frozenset({"bra", "brx", "call"})
"""The base opcodes with a Label operand, which may name what stands further down."""

_BRX_OPERANDS = 2
_Registers: TypeAlias = tuple[Register, ...]
_Parts: TypeAlias = tuple[Opcode, tuple[Operand, ...], _Registers, _Registers]


def parse_instruction(opcode_text: str, operand_text: str, scope: Scope) -> _Parts:
    """(opcode, operands, registers read, registers written), labels as written.

    Raises OperandError for an opcode that is not known or an operand that does not fit.
    """
    code = opcode(opcode_text)
    parts = split_operands(operand_text)
    match code.base:
        case "bra":
            return _bra(code, parts)
        case "brx":
            return _brx(code, parts, scope)
        case "call":
            return _call(code, parts, scope)
    found = [parsed(part, scope) for part in parts]
    operands = tuple([item.operand for item in found])
    count = written(code, operands)
    if len(found) < count:
        raise OperandError(f"{code.base} needs a destination")
    reads: list[Register] = []
    writes: list[Register] = []
    for position, item in enumerate(found):
        if position >= count:
            reads += item.registers
        elif item.writable:
            writes += item.registers
        else:
            raise OperandError(f"{code.base} cannot write to {item.operand}")
    if accumulates(code, operands):
        reads += writes
    return code, operands, tuple(reads), tuple(writes)


def predicate(name: str, scope: Scope) -> Register:
    """The register of a guard `@p`. Raises OperandError when it is no predicate."""
    register = scope.resolve(name)
    if not isinstance(register, Register) or register.type != "pred":
        raise OperandError(f"the guard {name} is no predicate")
    return register


def _bra(code: Opcode, parts: list[str]) -> _Parts:
    if len(parts) != 1:
        raise OperandError("bra takes one label")
    return code, (Label(parts[0].strip()),), (), ()


def _brx(code: Opcode, parts: list[str], scope: Scope) -> _Parts:
    if len(parts) != _BRX_OPERANDS:
        raise OperandError("brx.idx takes an index and a table")
    index = parsed(parts[0], scope)
    return code, (index.operand, Label(parts[1].strip())), index.registers, ()


def _call(code: Opcode, parts: list[str], scope: Scope) -> _Parts:
    operands = parse_call(parts, scope)
    results = operands[0] if isinstance(operands[0], Arguments) else Arguments(())
    for result in results.operands:
        if not isinstance(result, Register | Symbol):
            raise OperandError(f"a call cannot return to {result}")
    reads = [
        register
        for operand in operands
        if operand is not results
        for register in registers(operand)
    ]
    return code, operands, tuple(reads), registers(results)
