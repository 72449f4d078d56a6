"""Declarations: registers, variables with their initial values, parameters.

Source: PTX ISA, State Spaces, Types, and Variables; Kernel Function Parameters.
"""

from __future__ import annotations

from math import prod

from sparsekit.ptx.constants import integer_expression, parse_constant
from sparsekit.ptx.module import (
    REGISTER_TYPES,
    TYPE_BYTES,
    Initial,
    InitialAddress,
    Param,
    RegisterDeclaration,
    Variable,
)
from sparsekit.ptx.text import Tokens

LINKAGES = frozenset({".extern", ".visible", ".weak", ".common"})
VARIABLE_SPACES = frozenset({".global", ".const", ".shared", ".local", ".param"})
_POINTER_SPACES = frozenset({".global", ".const", ".shared", ".local"})
_VECTORS = {".v2": 2, ".v4": 4}


def parse_registers(tokens: Tokens) -> list[RegisterDeclaration]:
    """`.reg .b32 %r<5>, x;` after `.reg`, up to and with the semicolon."""
    line = tokens.line
    vector = _vector(tokens)
    type_name = tokens.take("word", "a register type").removeprefix(".")
    if type_name not in REGISTER_TYPES:
        tokens.fail(f"unknown register type .{type_name}")
    declared = []
    while True:
        name = tokens.name("a register name")
        count = None
        if tokens.accept("<"):
            count = tokens.integer()
            tokens.expect(">")
        declared.append(RegisterDeclaration(name, type_name, count, vector, line))
        if tokens.accept(";"):
            return declared
        tokens.expect(",")


def parse_variables(tokens: Tokens, space: str, linkage: str) -> list[Variable]:
    """`.shared .align 8 .b64 bar[2], x;` after the state space, up to and with the semicolon."""
    line = tokens.line
    align, vector, attributes, type_name = None, 1, [], ""
    while not type_name:
        if tokens.accept(".align"):
            align = tokens.integer()
        elif tokens.accept(".attribute"):
            attributes += parse_attributes(tokens)
        elif (width := _vector(tokens)) != 1:
            vector = width
        else:
            type_name = _memory_type(tokens)
    variables = []
    while True:
        name = tokens.name("a variable name")
        shape = _shape(tokens)
        initial = _initial(tokens) if tokens.accept("=") else None
        element_bytes = TYPE_BYTES[type_name] * vector
        size_bytes = element_bytes * prod(n or _unbounded(shape, initial) for n in shape)
        variables.append(
            Variable(
                name=name,
                space=space,
                type=type_name,
                size_bytes=size_bytes,
                align_bytes=align or element_bytes,
                vector=vector,
                linkage=linkage,
                attributes=tuple(attributes),
                initial=initial,
                line=line,
            )
        )
        if tokens.accept(";"):
            return variables
        tokens.expect(",")


def parse_attributes(tokens: Tokens) -> list[str]:
    """`(.managed, .unified(1, 2))` after `.attribute`."""
    attributes = []
    tokens.expect("(")
    while True:
        name = tokens.take("word", "an attribute").removeprefix(".")
        if name == "unified":
            tokens.expect("(")
            low = integer_expression(tokens)
            tokens.expect(",")
            name = f"unified({low}, {integer_expression(tokens)})"
            tokens.expect(")")
        elif name != "managed":
            tokens.fail(f"unknown attribute .{name}")
        attributes.append(name)
        if tokens.accept(")"):
            return attributes
        tokens.expect(",")


def parse_params(tokens: Tokens) -> tuple[Param, ...]:
    """`(.param .u64 .ptr .global .align 16 p, .param .align 64 .b8 map[128])`, parentheses too."""
    params: list[Param] = []
    tokens.expect("(")
    if tokens.accept(")"):
        return ()
    while True:
        params.append(_param(tokens))
        if tokens.accept(")"):
            return tuple(params)
        tokens.expect(",")


def _param(tokens: Tokens) -> Param:
    space = tokens.take("word", "a parameter").removeprefix(".")
    if space not in ("param", "reg"):
        tokens.fail(f".param or .reg expected, not {space}")
    align = tokens.integer() if tokens.accept(".align") else None
    vector = _vector(tokens)
    if space == "reg":
        type_name = tokens.take("word", "a register type").removeprefix(".")
        if type_name not in REGISTER_TYPES:
            tokens.fail(f"unknown register type .{type_name}")
    else:
        type_name = _memory_type(tokens)
    pointer_space = pointer_align = None
    if tokens.accept(".ptr"):
        pointer_space = "generic"
        if tokens.peek().text in _POINTER_SPACES:
            pointer_space = tokens.next().text.removeprefix(".")
        pointer_align = tokens.integer() if tokens.accept(".align") else None
    name = tokens.name("a parameter name")
    element_bytes = TYPE_BYTES.get(type_name, 1) * vector
    return Param(
        name=name,
        space=space,
        type=type_name,
        size_bytes=element_bytes * prod(n or 0 for n in _shape(tokens)),
        align_bytes=align or element_bytes,
        pointer_space=pointer_space,
        pointer_align_bytes=pointer_align,
    )


def _vector(tokens: Tokens) -> int:
    width = _VECTORS.get(tokens.peek().text, 1)
    if width != 1:
        tokens.next()
    return width


def _memory_type(tokens: Tokens) -> str:
    name = tokens.take("word", "a type")
    if name.removeprefix(".") not in TYPE_BYTES:
        tokens.fail(f"unknown type {name}")
    return name.removeprefix(".")


def _shape(tokens: Tokens) -> list[int | None]:
    """The bounds `[2][3]`; None for `[]`, which is a dynamic size or that of the initial value."""
    shape: list[int | None] = []
    while tokens.accept("["):
        if tokens.accept("]"):
            shape.append(None)
            continue
        shape.append(integer_expression(tokens))
        tokens.expect("]")
    return shape


def _unbounded(shape: list[int | None], initial: Initial | None) -> int:
    """The length of an array written `[]`: that of its initial value, else 0."""
    return len(initial) if isinstance(initial, tuple) and shape[0] is None else 0


def _initial(tokens: Tokens) -> Initial:
    if not tokens.accept("{"):
        return _initial_value(tokens)
    values: list[Initial] = []
    while not tokens.accept("}"):
        values.append(_initial(tokens))
        if not tokens.accept(","):
            tokens.expect("}")
            break
    return tuple(values)


def _initial_value(tokens: Tokens) -> Initial:
    """A constant, `symbol + 4`, `generic(symbol) + 4`, or one byte of those: `0xFF00(symbol)`."""
    if tokens.peek().kind != "word":
        constant = parse_constant(tokens)
        if not tokens.accept("("):
            return constant
        address = _initial_value(tokens)
        tokens.expect(")")
        if not isinstance(address, InitialAddress) or not hasattr(constant, "value"):
            tokens.fail("a mask must stand before a symbol")
        return InitialAddress(
            address.name, address.offset_bytes, address.generic, int(constant.value)
        )
    name = tokens.name("an initial value")
    generic = name == "generic"
    if generic:
        tokens.expect("(")
        name = tokens.name("a symbol")
        tokens.expect(")")
    signed = tokens.peek().text in ("+", "-")
    return InitialAddress(name, integer_expression(tokens) if signed else 0, generic)
