"""Module variables in .global and .const: placed in memory once per module, with initial values.

Source: PTX ISA, State Spaces; Initializers.
"""

from __future__ import annotations

import struct

import numpy as np

from sparsekit.emulator.memory import Allocation, Memory
from sparsekit.ptx import Module, Variable
from sparsekit.ptx.module import TYPE_BYTES, Initial, InitialAddress
from sparsekit.ptx.operands import Float, Immediate

_SPACES = ("global", "const")


def place_globals(module: Module, memory: Memory) -> dict[str, Allocation]:
    """The allocation of each module variable; made where the memory does not have it yet."""
    variables = [v for v in module.globals if v.space in _SPACES]
    fresh = [v for v in variables if (id(module), v.name) not in memory.symbols]
    for variable in fresh:
        memory.symbols[id(module), variable.name] = memory.allocate(
            variable.size_bytes, variable.name, initialised=True,
            read_only=variable.space == "const",
        )  # fmt: skip
    placed = {v.name: memory.symbols[id(module), v.name] for v in variables}
    for variable in fresh:
        if variable.initial is not None:
            content = _content(variable, variable.initial, placed)
            memory.write(placed[variable.name], np.frombuffer(content, np.uint8))
    return placed


def _content(variable: Variable, initial: Initial, placed: dict[str, Allocation]) -> bytes:
    size = TYPE_BYTES[variable.type]
    cells = b"".join(_cell(value, variable.type, size, placed) for value in _flat(initial))
    return cells[: variable.size_bytes]


def _flat(initial: Initial) -> list[Immediate | Float | InitialAddress]:
    if isinstance(initial, tuple):
        return [cell for part in initial for cell in _flat(part)]
    return [initial]


def _cell(
    value: Immediate | Float | InitialAddress, kind: str, size: int, placed: dict[str, Allocation]
) -> bytes:
    match value:
        case Immediate(number):
            if kind in ("f32", "f64"):
                return struct.pack("<f" if kind == "f32" else "<d", float(number))
            bits = number
        case Float():
            if kind == "f32":
                return struct.pack("<f", value.value)
            if kind == "f64":
                return struct.pack("<d", value.value)
            bits = value.bits
        case InitialAddress(name, offset, _, mask):
            bits = placed[name].address + offset
            if mask is not None:
                bits = (bits & mask) // (mask & -mask)
    return (bits % (1 << 8 * size)).to_bytes(size, "little")
