"""Writing one block as Python: operands become names of numpy vectors, one element per thread.

Inside a block a value is never changed once it has a name; registers that are needed after the
block are written back at its end. So lanes that do not take part may hold anything on the way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsekit.emulator.code import Block, Code, Slot
from sparsekit.emulator.table import Matched, is_full
from sparsekit.ptx.operands import (
    Address,
    Float,
    Immediate,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

DTYPES = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2",
    "f16": "f2", "bf16": "u2", "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4",
    "f16x2": "u4", "bf16x2": "u4", "u16x2": "u4", "s16x2": "i4", "tf32": "u4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "u8", "b128": "c16",
}  # fmt: skip
"""The numpy type that carries a PTX type: bits as unsigned, 128 of them as complex128."""

WIDTH_BYTES = {"?": 0, "u1": 1, "i1": 1, "u2": 2, "i2": 2, "f2": 2, "u4": 4, "i4": 4, "f4": 4}
WIDTH_BYTES |= {"u8": 8, "i8": 8, "f8": 8, "c16": 16}
_UNSIGNED = {0: "?", 1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_WORD = 1 << 64
_MOST_DEFERRED = 64
_CLOCKS = ("%clock", "%globaltimer")


@dataclass(slots=True)
class Value:
    """What a register holds at a point of the block. origin: the slot whose storage it shares."""

    name: str
    dtype: str
    origin: int | None


class Writer:
    """The Python source of one block, in the version for whole or for masked convoys."""

    def __init__(self, code: Code, block: Block, masked: bool) -> None:
        self.code, self.block, self.masked = code, block, masked
        self.env: dict[str, object] = {}
        self._lines: list[str] = []
        self._binds: dict[tuple[Any, ...], str] = {}
        self._current: dict[int, Value] = {}
        self._views: dict[tuple[str, str], str] = {}
        self._origins: dict[str, int] = {}
        self._count = 0
        self._guard: str | None = None
        self._mask: str | None = None
        self._carry: str | None = None
        self._deferred: list[tuple[Any, tuple[str, ...]]] = []
        self._deferred_names: set[str] = set()
        self._deferred_how: tuple[Any, Any] | None = None
        self.matched: Matched

    # ---- per instruction

    def begin(self, matched: Matched) -> None:
        """Start an instruction: its guard becomes the mask of what it writes."""
        self.matched = matched
        self._guard = self._mask = None
        instruction = matched.instruction
        suspects = self.code.suspects.get(matched.index)
        if suspects:
            for register in dict.fromkeys(instruction.reads):
                if register.name in suspects:
                    slot = self._slot(register).index
                    self.line(f"L.check_defined({slot}, {self.mask}, {matched.index})")
        if instruction.predicate is not None:
            self._guard = self.read(instruction.predicate, "?")
            if instruction.negated:
                self._guard = self.temp(f"~{self._guard}")

    @property
    def at(self) -> int:
        """The number of the instruction, for the log and for messages."""
        return self.matched.index

    @property
    def mask(self) -> str:
        """The lanes that execute the instruction: "None" for all of the convoy."""
        if self._guard is None:
            return "m" if self.masked else "None"
        if self._mask is None:
            self._mask = self.temp(f"{self._guard} & m") if self.masked else self._guard
        return self._mask

    @property
    def whole(self) -> bool:
        """Whether all lanes of the convoy execute the instruction for certain."""
        return self._guard is None and not self.masked

    def line(self, text: str) -> None:
        self._lines.append(text)

    def temp(self, expression: str) -> str:
        """Name the value of an expression."""
        self._count += 1
        name = f"v{self._count}"
        self._lines.append(f"{name} = {expression}")
        return name

    def fn(self, function: Callable[..., Any], name: str = "") -> str:
        """The name of a function that the source may call."""
        name = name or function.__name__
        known = self.env.setdefault(name, function)
        if known is not function:
            raise ValueError(f"two functions are called {name}")
        return name

    def bind(self, kind: str, *what: object) -> str:
        """A name for what is fixed while the convoy's range is: what Convoy.KIND(*what) gives."""
        key = (kind, *what)
        found = self._binds.get(key)
        if found is None:
            found = self._binds[key] = f"b{len(self._binds)}"
        return found

    def const(self, value: int | float, dtype: str) -> str:
        return self.bind("const", value, dtype)

    # ---- operands

    def read(self, operand: Operand, dtype: str) -> str:
        """The name of an operand's value as a vector of that numpy type."""
        match operand:
            case Register():
                return self._read_register(operand, dtype)
            case Negated(register):
                return self.temp(f"~{self._read_register(register, dtype)}")
            case Immediate(value):
                if dtype[0] == "f":
                    return self.const(float(value), dtype)
                if dtype == "?":
                    return self.const(int(value != 0), dtype)
                return self.const(value, dtype)
            case Float():
                return self._read_float(operand, dtype)
            case Special(name):
                return self._special(name, dtype)
            case Symbol(name, offset):
                return self.bind("symbol", self.block.function, name, offset, dtype)
        raise self.matched.unsupported(f"operand {operand} is not modelled here")

    def _special(self, name: str, dtype: str) -> str:
        if name.startswith(_CLOCKS):
            return self.temp(f"L.clock({name!r}, {dtype})")
        return self.bind("special", name, dtype)

    def _read_float(self, operand: Float, dtype: str) -> str:
        if dtype[0] == "f":
            return self.bind("float_const", operand.bits, operand.width_bits, dtype)
        if operand.width_bits == 8 * WIDTH_BYTES[dtype]:
            return self.const(operand.bits, dtype)
        if dtype == "u4":  # a decimal constant, kept in 64 bits
            return self.const(struct.unpack("<I", struct.pack("<f", operand.value))[0], dtype)
        raise self.matched.unsupported(f"constant {operand} does not fit its type")

    def _slot(self, register: Register) -> Slot:
        return self.code.slots[self.block.function, register.name]

    def _read_register(self, register: Register, dtype: str) -> str:
        slot = self._slot(register)
        value = self._current.get(slot.index)
        if value is None:
            own = _UNSIGNED[slot.width]
            wanted = dtype if WIDTH_BYTES[dtype] == slot.width else own
            name = self._storage(slot, wanted)
            value = Value(name, wanted, slot.index)
            if wanted == dtype:
                return name
        if value.name in self._deferred_names:
            self.flush_deferred()
        return self._cast(value, slot.width, dtype)

    def _storage(self, slot: Slot, dtype: str) -> str:
        name = self.bind("register", slot.index, dtype)
        self._origins[name] = slot.index
        return name

    def _cast(self, value: Value, width: int, dtype: str) -> str:
        if value.dtype == dtype:
            return value.name
        wanted = WIDTH_BYTES[dtype]
        key = (value.name, dtype)
        found = self._views.get(key)
        if found is not None:
            return found
        if wanted == width:
            if "?" in (value.dtype, dtype):
                raise self.matched.unsupported("a predicate where a number is needed")
            found = self.temp(f"{value.name}.view({dtype})")
            if value.origin is not None:
                self._origins[found] = value.origin
        elif 0 < wanted < width and width <= 8 and dtype[0] in "ui":
            bits = self._cast(value, width, _UNSIGNED[width])
            narrow = f"{bits}.astype({_UNSIGNED[wanted]})"
            found = self.temp(narrow if dtype[0] == "u" else f"{narrow}.view({dtype})")
        elif 0 < wanted < width and width <= 8:
            bits = self._cast(value, width, _UNSIGNED[wanted])
            found = self.temp(f"{bits}.view({dtype})")
        else:
            raise self.matched.unsupported("a register narrower than the instruction's type")
        self._views[key] = found
        return found

    def write(self, operand: Operand, expression: str, dtype: str) -> None:
        """Make a vector the value of a destination register, in the lanes that execute."""
        if isinstance(operand, Sink):
            self.line(expression)
            return
        if not isinstance(operand, Register):
            raise self.matched.unsupported(f"destination {operand} is not modelled here")
        slot = self._slot(operand)
        if WIDTH_BYTES[dtype] != slot.width:
            expression, dtype = self._extended(expression, dtype, slot.width)
        if self._guard is not None:
            old = self._old(slot, dtype)
            if old is not None:
                expression = f"where({self._guard}, {expression}, {old})"
        origin = self._origins.get(expression)
        name = expression if expression.isidentifier() else self.temp(expression)
        self._current[slot.index] = Value(name, dtype, origin)
        if slot.index in self.code.suspect_slots:
            self.line(f"L.mark_defined({slot.index}, {'m' if self.masked else 'None'})")

    def _old(self, slot: Slot, dtype: str) -> str | None:
        """The register's value before a predicated write; None where it has none."""
        value = self._current.get(slot.index)
        if value is None:
            if not self.block.live_in >> slot.index & 1:
                return None
            return self._storage(slot, dtype)
        if value.name in self._deferred_names:
            self.flush_deferred()
        return self._cast(value, slot.width, dtype)

    def read_carry(self) -> str:
        """The carry flag that an earlier instruction of the block has written."""
        if self._carry is None:
            raise self.matched.unsupported("a carry that no instruction of its block has written")
        return self._carry

    def write_carry(self, name: str) -> None:
        if self._guard is not None and self._carry is not None:
            name = self.temp(f"where({self._guard}, {name}, {self._carry})")
        self._carry = name

    def _extended(self, expression: str, dtype: str, width: int) -> tuple[str, str]:
        if not 0 < WIDTH_BYTES[dtype] < width <= 8:
            raise self.matched.unsupported("a result wider than its register")
        if dtype[0] == "f":
            bits = _UNSIGNED[WIDTH_BYTES[dtype]]
            expression, dtype = f"({expression}).view({bits})", bits
        wide = f"{dtype[0]}{width}"
        return f"({expression}).astype({wide})", wide

    def write_all(self, operand: Operand, name: str, dtype: str) -> None:
        """Make the items of a sequence of vectors the values of the elements of an operand."""
        elements = elements_of(operand)
        for position, element in enumerate(elements):
            if not isinstance(element, Sink):
                self.write(element, self.temp(f"{name}[{position}]"), dtype)

    def defer(
        self, write: Callable[..., None], how: Any, item: Any, targets: tuple[Operand, ...],
        dtype: str,
    ) -> None:  # fmt: skip
        """Let an instruction on registers wait, to be written together with others like it.

        write(writer, how, items, names) writes the source that gives names, all items' results in
        turn, their values; it is called before anything reads one of them.
        """
        if self._deferred_how not in (None, (write, how)) or len(self._deferred) >= _MOST_DEFERRED:
            self.flush_deferred()
        self._deferred_how = (write, how)
        names = []
        for target in targets:
            self._count += 1
            names.append(f"v{self._count}")
        self._deferred.append((item, tuple(names)))
        self._deferred_names.update(names)
        if self._guard is not None:
            self.flush_deferred()
        for target, name in zip(targets, names, strict=True):
            self.write(target, name, dtype)

    def flush_deferred(self) -> None:
        if self._deferred_how is None:
            return
        write, how = self._deferred_how
        items = [item for item, _ in self._deferred]
        names = [name for _, group in self._deferred for name in group]
        self._deferred, self._deferred_how = [], None
        self._deferred_names.clear()
        write(self, how, items, names)

    def members(self, operand: Operand) -> None:
        """Check that the lanes which a membermask names are those that execute."""
        if self.whole and is_full(operand):
            return
        self.line(f"L.check_members({self.read(operand, 'u4')}, {self.mask}, {self.at})")

    def address(self, operand: Operand) -> tuple[str, int]:
        """(name of the base's value, offset in bytes) of `[base + offset]`; u4 or u8 by its type.

        A base that is a symbol or a constant comes as u8.
        """
        if not isinstance(operand, Address):
            raise self.matched.unsupported(f"{operand} is no address")
        base = operand.base
        if isinstance(base, Register):
            return self.read(
                base, "u4" if self._slot(base).width == 4 else "u8"
            ), operand.offset_bytes
        if isinstance(base, Immediate):
            return self.const((base.value + operand.offset_bytes) % _WORD, "u8"), 0
        return self.read(base, "u8"), operand.offset_bytes

    def address_dtype(self, operand: Operand) -> str:
        """The numpy type in which address gives its base."""
        base = operand.base if isinstance(operand, Address) else operand
        return "u4" if isinstance(base, Register) and self._slot(base).width == 4 else "u8"

    # ---- the whole

    def source(self, results: tuple[str, ...]) -> str:
        """The function that makes the block's function for one range of threads."""
        self.flush_deferred()
        live = [
            (slot, value)
            for slot, value in self._current.items()
            if self.block.live_out >> slot & 1 and value.origin != slot
        ]
        written = {slot for slot, _ in live}
        returned = []
        for name in results:
            hazard = self._origins.get(name) in written
            returned.append(self.temp(f"{name}.copy()") if hazard else name)
        names = []
        for slot, value in live:
            hazard = value.origin is not None and value.origin in written
            names.append(self.temp(f"{value.name}.copy()") if hazard else value.name)
        for (slot, value), name in zip(live, names, strict=True):
            storage = self.bind("register", slot, value.dtype)
            if self.masked:
                self.line(f"copyto({storage}, {name}, where=m)")
            else:
                self.line(f"{storage}[...] = {name}")
        self.line(f"return ({''.join(f'{name}, ' for name in returned)})")
        bound = ", ".join(self._binds.values())
        binds = f" {bound}, = L.bind(BOUND)\n" if bound else ""
        self.env["BOUND"] = tuple(self._binds)
        body = "".join(f"  {text}\n" for text in self._lines)
        return f"def bind(L):\n{binds} def run(m):\n{body} return run\n"


def elements_of(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector operand, or the operand itself."""
    return operand.elements if isinstance(operand, Vector) else (operand,)
