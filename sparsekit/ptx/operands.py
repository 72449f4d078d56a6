"""The operands of PTX instructions as data. Source: PTX ISA, Instruction Operands."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

F32_BITS = 32
F64_BITS = 64


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register. type is its declared type without the dot: "pred", "b32", "f64".

    One declared in a nested scope bears the scope's number, "t0.3"; an element of a vector
    register is a register of its own, "v.x".
    """

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Special:
    """A special register or a built-in constant: "%tid.x", "%clock64", "WARP_SZ"."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer constant; negative where the text has a minus."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point constant, by its bits: 0f3F800000 has 32, 0d... and decimals have 64."""

    bits: int
    width_bits: int

    @property
    def value(self) -> float:
        single = self.width_bits == F32_BITS
        packed = struct.pack("<I" if single else "<Q", self.bits)
        return float(struct.unpack("<f" if single else "<d", packed)[0])

    def __str__(self) -> str:
        return f"0f{self.bits:08X}" if self.width_bits == F32_BITS else f"0d{self.bits:016X}"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable, parameter or function, plus an offset in bytes."""

    name: str
    offset_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset_bytes}" if self.offset_bytes else self.name


@dataclass(frozen=True, slots=True)
class Label:
    """A place in the same function, or its table of branch targets, call targets or prototype."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Sink:
    """The `_` that takes a result nobody wants."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True, slots=True)
class Negated:
    """A predicate read through `!`."""

    operand: Register

    def __str__(self) -> str:
        return f"!{self.operand}"


@dataclass(frozen=True, slots=True)
class Selected:
    """Some bytes or halves of a register in a video instruction: selector "b0", "h1", "b7654"."""

    register: Register
    selector: str

    def __str__(self) -> str:
        return f"{self.register}.{self.selector}"


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.elements)) + "}"


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: a result and a predicate, or two predicates."""

    first: Operand
    second: Operand

    def __str__(self) -> str:
        return f"{self.first}|{self.second}"


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset, extra, ...]`; extra holds tensor coordinates, samplers, fabric offsets."""

    base: Operand
    offset_bytes: int = 0
    extra: tuple[Operand, ...] = ()

    def __str__(self) -> str:
        base = f"{self.base}+{self.offset_bytes}" if self.offset_bytes else str(self.base)
        return "[" + ", ".join([base, *map(str, self.extra)]) + "]"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parenthesised results or arguments of a call."""

    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.operands)) + ")"


Operand: TypeAlias = (
    Register
    | Special
    | Immediate
    | Float
    | Symbol
    | Label
    | Sink
    | Negated
    | Selected
    | Vector
    | Pair
    | Address
    | Arguments
)


def registers(operand: Operand) -> tuple[Register, ...]:
    """The registers in an operand, left to right, those of an address included."""
    match operand:
        case Register():
            return (operand,)
        case Negated(inner):
            return (inner,)
        case Selected(register):
            return (register,)
        case Vector(elements) | Arguments(elements):
            return tuple(found for element in elements for found in registers(element))
        case Pair(first, second):
            return registers(first) + registers(second)
        case Address(base, _, extra):
            return registers(base) + tuple(found for part in extra for found in registers(part))
    return ()


def can_be_written(operand: Operand) -> bool:
    """Whether an operand can be the destination of an instruction."""
    match operand:
        case Register() | Sink() | Selected():
            return True
        case Vector(elements):
            return all(isinstance(element, Register | Sink) for element in elements)
        case Pair(first, second):
            return can_be_written(first) and isinstance(second, Register | Sink)
    return False
