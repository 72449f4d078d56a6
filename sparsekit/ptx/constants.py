"""Constants and constant expressions. Source: PTX ISA, Constants, and Constant Expressions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from sparsekit.ptx.operands import F32_BITS, F64_BITS, Float, Immediate
from sparsekit.ptx.text import Token, Tokens

_OCTAL, _HEXADECIMAL = 8, 16
_BINARY_OPERATORS: Mapping[str, tuple[int, Callable[[int, int], int]]] = {
    "|": (1, lambda a, b: a | b),
    "^": (2, lambda a, b: a ^ b),
    "&": (3, lambda a, b: a & b),
    "<<": (4, lambda a, b: a << b),
    ">>": (4, lambda a, b: a >> b),
    "+": (5, lambda a, b: a + b),
    "-": (5, lambda a, b: a - b),
    "*": (6, lambda a, b: a * b),
    "/": (6, lambda a, b: _quotient(a, b)),
    "%": (6, lambda a, b: a - b * _quotient(a, b)),
}
_UNARY_OPERATORS: Mapping[str, Callable[[int], int]] = {
    "+": lambda a: a,
    "-": lambda a: -a,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
}


def parse_number(text: str) -> Immediate | Float:
    """A literal as the tokenizer gives it: decimal, octal 07, 0x, 0b, 0f, 0d, or with a point."""
    prefix = text[:2].lower()
    if prefix == "0f":
        return Float(int(text[2:], _HEXADECIMAL), F32_BITS)
    if prefix == "0d":
        return Float(int(text[2:], _HEXADECIMAL), F64_BITS)
    if prefix in ("0x", "0b"):
        return Immediate(int(text.rstrip("U"), 0))
    digits = text.rstrip("U")
    if not digits.isdecimal():
        return double(float(digits))
    return Immediate(int(digits, _OCTAL) if len(digits) > 1 and digits[0] == "0" else int(digits))


def double(value: float) -> Float:
    """A binary64 constant; PTX rounds it where a narrower one is wanted."""
    return Float(int.from_bytes(struct.pack("<d", value), "little"), F64_BITS)


def parse_constant(tokens: Tokens) -> Immediate | Float:
    """A constant expression at the cursor; of floating-point ones only literals and their minus."""
    negative = tokens.accept("-")
    token = tokens.peek()
    if token.kind == "number" and isinstance(number := _literal(tokens, token), Float):
        tokens.next()
        sign = 1 << (number.width_bits - 1) if negative else 0
        return Float(number.bits ^ sign, number.width_bits)
    first = _operand(tokens)
    return Immediate(_expression(tokens, 0, -first if negative else first))


def integer_expression(tokens: Tokens) -> int:
    """The value of an integer constant expression at the cursor."""
    return _expression(tokens, 0, _operand(tokens))


def _expression(tokens: Tokens, floor: int, left: int) -> int:
    """Fold binary operators that bind tighter than floor into left (precedence climbing)."""
    while (operator := tokens.peek().text) in _BINARY_OPERATORS:
        rank, apply = _BINARY_OPERATORS[operator]
        if rank <= floor:
            break
        tokens.next()
        right = _expression(tokens, rank, _operand(tokens))
        if operator in ("/", "%") and right == 0:
            tokens.fail("division by zero in a constant expression")
        left = apply(left, right)
    return left


def _operand(tokens: Tokens) -> int:
    token = tokens.next()
    if token.text in _UNARY_OPERATORS:
        return _UNARY_OPERATORS[token.text](_operand(tokens))
    if token.text == "(":
        value = integer_expression(tokens)
        tokens.expect(")")
        return value
    number = _literal(tokens, token) if token.kind == "number" else None
    if not isinstance(number, Immediate):
        tokens.fail("an integer constant expected", token)
    return number.value


def _literal(tokens: Tokens, token: Token) -> Immediate | Float:
    try:
        return parse_number(token.text)
    except ValueError:
        tokens.fail("a malformed number", token)


def _quotient(a: int, b: int) -> int:
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude
