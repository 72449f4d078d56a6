"""Operand texts -> operands. Called once per text and scope; the scope keeps the result."""

from __future__ import annotations

import re

from sparsekit.ptx.constants import integer_expression, parse_constant
from sparsekit.ptx.errors import OperandError, PtxError
from sparsekit.ptx.operands import (
    Address,
    Arguments,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Register,
    Selected,
    Sink,
    Special,
    Symbol,
    Vector,
    can_be_written,
    registers,
)
from sparsekit.ptx.scope import SPECIAL_REGISTERS, Parsed, Scope, component
from sparsekit.ptx.text import IDENTIFIER, Tokens

_PART = re.compile(r"(?:\[[^][]*\]|\{[^{}]*\}|\([^()]*\)|[^][{}(),])+")
_NAME = re.compile(rf"({IDENTIFIER})(?:\.(\w+))?")
_ADDRESS_BASE = re.compile(rf"({IDENTIFIER}(?:\.\w+)?)\s*(?:\+(.+))?", re.S)
_PAIR = re.compile(rf"(_|{IDENTIFIER}|\{{[^{{}}]*\}})\s*\|\s*(_|{IDENTIFIER})")
_SELECTOR = re.compile(r"b[0-7]{1,4}|h[0-3]{1,2}")
_BRACKETS = re.compile(r"[][{}()]")


def split_operands(text: str) -> list[str]:
    """Cut at the commas outside of brackets. Raises OperandError for brackets that do not match."""
    if not text or text.isspace():
        return []
    if _BRACKETS.search(text) is None:
        return text.split(",")
    parts = _PART.findall(text)
    return parts if ",".join(parts) == text else _split_nested(text)


def _split_nested(text: str) -> list[str]:
    """The same for brackets in brackets of one kind, as in `(1+(2))`."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    if depth or not all(part.strip() for part in parts):
        raise OperandError("malformed operands")
    return parts


def parsed(text: str, scope: Scope) -> Parsed:
    """An operand as used in a scope, from the scope's store where it has been met before."""
    found = scope.operands.get(text)
    if found is None:
        operand = parse_operand(text.strip(), scope)
        found = Parsed(operand, registers(operand), can_be_written(operand))
        scope.operands[text] = found
    return found


def parse_operand(text: str, scope: Scope) -> Operand:
    """One operand. Raises OperandError for one that is malformed or names nothing declared."""
    match text[:1]:
        case "":
            raise OperandError("an empty operand")
        case "[":
            return _address(_inside(text, "]"), scope)
        case "{":
            return _pair(text, scope) or Vector(_list(_inside(text, "}"), scope))
        case "!":
            return _negated(text, scope)
    if text == "_":
        return Sink()
    name = _NAME.fullmatch(text)
    if name is not None:
        return _named(name[1], name[2], scope)
    return _pair(text, scope) or _symbol_plus(text, scope) or _constant(text)


def parse_call(parts: list[str], scope: Scope) -> tuple[Operand, ...]:
    """The operands of `call (results), target, (arguments), table`; all but the target may miss.

    The table (a prototype or call targets) comes back as a Label yet to be resolved.
    """
    operands: list[Operand] = []
    target: Operand | None = None
    for part in map(str.strip, parts):
        if part.startswith("("):
            operands.append(Arguments(_list(_inside(part, ")"), scope)))
        elif target is None:
            target = parse_operand(part, scope)
            operands.append(target)
        else:
            operands.append(Label(part))
    if not isinstance(target, Register | Symbol):
        raise OperandError("a call without a target")
    return tuple(operands)


def _inside(text: str, closing: str) -> str:
    if len(text) < 2 or not text.endswith(closing):
        raise OperandError(f"{closing} is missing")
    return text[1:-1]


def _list(text: str, scope: Scope) -> tuple[Operand, ...]:
    return tuple(parsed(part, scope).operand for part in split_operands(text))


def _address(text: str, scope: Scope) -> Address:
    first, *rest = split_operands(text) or [""]
    extra = tuple(parsed(part, scope).operand for part in rest)
    base = _ADDRESS_BASE.fullmatch(first.strip())
    if base is None:
        return Address(Immediate(_integer(first)), 0, extra)
    operand = parse_operand(base[1], scope)
    if not isinstance(operand, Register | Symbol):
        raise OperandError(f"{base[1]} is no address")
    return Address(operand, _integer(base[2]) if base[2] else 0, extra)


def _negated(text: str, scope: Scope) -> Operand:
    name = text[1:].strip()
    if _NAME.fullmatch(name) is None:
        return _constant(text)
    operand = parse_operand(name, scope)
    if not isinstance(operand, Register) or operand.type != "pred":
        raise OperandError(f"! before {name}, which is no predicate")
    return Negated(operand)


def _named(name: str, suffix: str | None, scope: Scope) -> Operand:
    if suffix is None:
        return scope.resolve(name)
    if f"{name}.{suffix}" in SPECIAL_REGISTERS:
        return Special(f"{name}.{suffix}")
    found = scope.resolve(name)
    if isinstance(found, Vector) and (element := component(found, suffix)) is not None:
        return element
    if isinstance(found, Register) and _SELECTOR.fullmatch(suffix):
        return Selected(found, suffix)
    raise OperandError(f"{name} has no part {suffix}")


def _pair(text: str, scope: Scope) -> Operand | None:
    match = _PAIR.fullmatch(text)
    if match is None:
        return None
    return Pair(parse_operand(match[1], scope), parse_operand(match[2], scope))


def _symbol_plus(text: str, scope: Scope) -> Operand | None:
    match = _ADDRESS_BASE.fullmatch(text)
    if match is None:
        return None
    operand = parse_operand(match[1], scope)
    if not isinstance(operand, Symbol):
        raise OperandError(f"an offset to {match[1]}, which is no variable")
    return Symbol(operand.name, operand.offset_bytes + _integer(match[2]))


def _constant(text: str) -> Operand:
    tokens = Tokens(text)
    try:
        value = parse_constant(tokens)
        tokens.end()
    except PtxError as error:
        raise OperandError(f"malformed operand {text.strip()}") from error
    return value


def _integer(text: str) -> int:
    tokens = Tokens(text)
    try:
        value = integer_expression(tokens)
        tokens.end()
    except PtxError as error:
        raise OperandError(f"malformed address or offset {text.strip()}") from error
    return value
