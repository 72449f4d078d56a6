"""Writing one block as Python: operands become names of numpy vectors, one element per thread.

Inside a block a value is never changed once it has a name; registers that are needed after the
block are written back at its end. So lanes that do not take part may hold anything on the way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from sparsekit.emulator.code import Block, Code, Slot
from sparsekit.emulator.deferred import Deferred, Write
from sparsekit.emulator.geometry import is_modelled
from sparsekit.emulator.source import WIDTH_BYTES, Source
from sparsekit.emulator.table import Matched, is_full
from sparsekit.emulator.warpgroups import Touch
from sparsekit.ptx.operands import (
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

_UNSIGNED = {0: "?", 1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_RELAXED = frozenset({"ld", "ldu", "st", "cvt"})  # operands may be wider than the type
_TENSOR_CORES = ("wgmma", "tcgen05")
_CLOCKS = ("%clock", "%globaltimer")


@dataclass(slots=True)
class Value:
    """What a register holds at a point of the block. origin: the slot whose storage it shares."""

    name: str
    dtype: str
    origin: int | None


class Writer(Source):
    """The Python source of one block, in the version for whole or for masked convoys."""

    def __init__(self, code: Code, block: Block, masked: bool) -> None:
        super().__init__()
        self.code, self.block, self.masked = code, block, masked
        self._current: dict[int, Value] = {}
        self._views: dict[tuple[str, str], str] = {}
        self._origins: dict[str, int] = {}
        self._guard: str | None = None
        self._mask: str | None = None
        self._carry: str | None = None
        self._deferred = Deferred()
        self._touches: list[Touch] = []
        self.matched: Matched

    # ---- per instruction

    def begin(self, matched: Matched) -> None:
        """Start an instruction: its guard becomes the mask of what it writes."""
        self.matched = matched
        self._guard = self._mask = None
        if self.code.asynchronous_slots and matched.form.base in _TENSOR_CORES:
            self._flush_touches()
        guard = matched.instruction.predicate
        if guard is not None:
            self._check_defined((guard,))
            self._guard = self.read(guard, "?")
            if matched.instruction.negated:
                self._guard = self.temp(f"~{self._guard}")
        self._check_defined(matched.instruction.reads[guard is not None :])
        if self.code.asynchronous_slots and matched.form.base != "wgmma":
            self._note_touch(matched)

    def _note_touch(self, matched: Matched) -> None:
        """Remember the use of registers that tensor cores use, up to their next instruction."""
        instruction = matched.instruction
        reads, writes = (
            tuple(s for s in (self._slot(r).index for r in registers) if s in tracked)
            for tracked in (self.code.asynchronous_slots,)
            for registers in (instruction.reads, instruction.writes)
        )
        if reads or writes:
            copies = matched.form.base == "mov"
            self._touches.append(Touch(matched.index, reads, writes, copies))
            if self._guard is not None or matched.form.base in _TENSOR_CORES:
                self._flush_touches(self.mask)

    def _flush_touches(self, mask: str | None = None) -> None:
        if self._touches:
            name = f"T{self._touches[0].at}"
            self.env[name] = tuple(self._touches)
            self._touches.clear()
            where = mask or ("m" if self.masked else "None")
            self.line(f"L.machine.touch(L, {name}, {where})")

    def _check_defined(self, reads: tuple[Register, ...]) -> None:
        """Check what some path may bring here unwritten, in the lanes that execute."""
        suspects = self.code.suspects.get(self.matched.index)
        for register in dict.fromkeys(reads) if suspects else ():
            if suspects and register.name in suspects:
                self.line(f"L.check_defined({self._slot(register).index}, {self.mask}, {self.at})")

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
        if not is_modelled(name):
            raise self.matched.unsupported(f"{name} is not modelled")
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
        if value.name in self._deferred.names:
            self._deferred.flush(self)
        return self._cast(value, slot.width, dtype)

    def _storage(self, slot: Slot, dtype: str) -> str:
        name = self.bind("register", slot.index, dtype)
        self._origins[name] = slot.index
        return name

    def _cast(self, value: Value, width: int, dtype: str) -> str:
        if value.dtype == dtype:
            return value.name
        wanted = WIDTH_BYTES[dtype]
        if wanted != width and self.matched.form.base not in _RELAXED:
            raise self.matched.unsupported("a register of another width than the instruction's")
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
        if value.name in self._deferred.names:
            self._deferred.flush(self)
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
        relaxed = self.matched.form.base in _RELAXED
        if not relaxed or not 0 < WIDTH_BYTES[dtype] < width <= 8:
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
        self, write: Write, how: Any, item: Any, targets: tuple[Operand, ...], dtype: str
    ) -> None:
        """Let an instruction on registers wait, to be written together with others like it."""
        names = self.fresh(len(targets))
        if not self._deferred.takes(write, how):
            self._deferred.flush(self)
        self._deferred.add(write, how, item, names)
        if self._guard is not None:
            self._deferred.flush(self)
        for target, name in zip(targets, names, strict=True):
            self.write(target, name, dtype)

    def members(self, operand: Operand) -> None:
        """Check that the lanes which a membermask names are those that execute."""
        if self.whole and is_full(operand):
            return
        self.line(f"L.check_members({self.read(operand, 'u4')}, {self.mask}, {self.at})")

    def width_of(self, register: Register) -> int:
        """The bytes of a register."""
        return self._slot(register).width

    # ---- the whole

    def source(self, results: tuple[str, ...]) -> str:
        """The function that makes the block's function for one range of threads."""
        self._deferred.flush(self)
        self._flush_touches()
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
        for _, value in live:
            hazard = value.origin is not None and value.origin in written
            names.append(self.temp(f"{value.name}.copy()") if hazard else value.name)
        for (slot, value), name in zip(live, names, strict=True):
            storage = self.bind("register", slot, value.dtype)
            if self.masked:
                self.line(f"copyto({storage}, {name}, where=m)")
            else:
                self.line(f"{storage}[...] = {name}")
        return self.function(tuple(returned))


def elements_of(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector operand, or the operand itself."""
    return operand.elements if isinstance(operand, Vector) else (operand,)
