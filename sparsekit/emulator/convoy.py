"""A convoy: the threads of a range of warps that stand at one block and run it as one vector.

One Convoy object serves a range for good; mask and block change from step to step. The translated
blocks reach everything through it: register storage, constants, addresses, and the access log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.layout import CLUSTER_OFFSET, CLUSTER_SHIFT
from sparsekit.emulator.memory import GLOBAL_BASE

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import AccessLog
    from sparsekit.emulator.machine import Machine


_WORD = 1 << 64
_FULL_MASK = (1 << WARP) - 1


class Convoy:
    """The threads lo ... hi-1 of a machine. mask: those that run now, None for all of them."""

    def __init__(self, machine: Machine, lo: int, hi: int) -> None:
        self.machine, self.lo, self.hi, self.n = machine, lo, hi, hi - lo
        self.mask: Array | None = None
        self.block = 0
        self.log: AccessLog | None = machine.log
        self.rows = machine.rows[lo:hi]
        self.first_row, self.last_row = lo // WARP, hi // WARP
        self._shared_base = machine.shared_base[lo:hi]
        self._local_base = machine.local_base[lo:hi]
        self._offsets: dict[tuple[str, int], Array] = {}
        self._bound: dict[tuple[Any, ...], Array] = {}
        self.shift_u4 = {1 << k: self.const(k, "u4") for k in range(6)}
        self.shift_i8 = {1 << k: self.const(k, "i8") for k in range(6)}

    # ---- what translated blocks bind

    def bind(self, wanted: tuple[tuple[Any, ...], ...]) -> list[Array]:
        """The vectors that a block works with: (method, arguments) of each."""
        bound = self._bound
        found = []
        for key in wanted:
            vector = bound.get(key)
            if vector is None:
                vector = bound[key] = getattr(self, key[0])(*key[1:])
            found.append(vector)
        return found

    def const(self, value: int | float, dtype: str) -> Array:
        """A vector of one value; integers are cut to the type's width."""
        key = (value, dtype, self.n)
        found = self.machine.constants.get(key)
        if found is None:
            if dtype[0] in "ui":
                kind = np.dtype(dtype)
                bits = int(value) % (1 << 8 * kind.itemsize)
                found = np.full(self.n, bits, f"u{kind.itemsize}").view(kind)
            else:
                found = np.full(self.n, value, dtype)
            found.flags.writeable = False
            self.machine.constants[key] = found
        return found

    def float_const(self, bits: int, width_bits: int, dtype: str) -> Array:
        """A vector of one floating-point constant, given by its bits."""
        packed = struct.pack("<I" if width_bits == 32 else "<Q", bits)
        value = np.frombuffer(packed, "f4" if width_bits == 32 else "f8").astype(dtype)
        found: Array = np.repeat(value, self.n)
        found.flags.writeable = False
        return found

    def register(self, slot: int, dtype: str) -> Array:
        return self.machine.register(slot)[self.lo : self.hi].view(dtype)

    def special(self, name: str, dtype: str) -> Array:
        return self.machine.special(name, dtype)[self.lo : self.hi]

    def symbol(self, function: int, name: str, offset: int, dtype: str) -> Array:
        """The address of a variable in its own space, as a vector."""
        address = self.machine.symbol_address(function, name)
        if isinstance(address, int):
            return self.const((address + offset) % _WORD, dtype)
        vector: Array = (address[self.lo : self.hi] + np.uint64(offset % _WORD)).astype(dtype)
        return vector

    def param(self, offset: int, dtype: str) -> Array:
        """A vector of one parameter's value; refilled at each launch."""
        return self.machine.param(offset, dtype)[: self.n]

    def clock(self, name: str, dtype: Any) -> Array:
        """%clock and the like: a count of steps, which only ever grows."""
        shift = 32 if name.endswith("_hi") else 0
        now: Array = np.full(self.n, self.machine.steps >> shift, np.uint64).astype(dtype)
        return now

    # ---- addresses

    def shared_index(self, address: Array, offset: int) -> Array:
        """Bytes in the machine's shared memory, u4, of addresses (u4) in the shared window."""
        if self.machine.cluster_size == 1:
            return address + self._offset("shared", offset)
        moved = address + self.const(offset, "u4")
        window = moved >> np.uint32(CLUSTER_SHIFT)
        inside = np.minimum(moved & np.uint32(CLUSTER_OFFSET), self.machine.shared_stride - 1)
        base = self._offset("unit", 0)
        found: Array = window * np.uint32(self.machine.shared_stride) + inside + base
        return found

    def global_index(self, address: Array, offset: int) -> Array:
        """Bytes in the arena, i8, of generic or global addresses (u8)."""
        return (address + self._offset("global", offset)).view("i8")

    def local_index(self, address: Array, offset: int) -> Array:
        """Bytes in the machine's local memory, i8, of addresses (u4 or u8) in a thread's own."""
        return address.astype("i8") + self._offset("local", offset)

    def _offset(self, space: str, offset: int) -> Array:
        """What to add to an address for its index: the base of the thread's memory + offset."""
        found = self._offsets.get((space, offset))
        if found is None:
            if space == "shared":
                found = self._shared_base + np.uint32(offset % (1 << 32))
            elif space == "unit":
                found = self.machine.unit_base[self.lo : self.hi]
            elif space == "global":
                found = self.const((offset - GLOBAL_BASE) % _WORD, "u8")
            else:
                found = self._local_base + offset
            self._offsets[space, offset] = found
        return found

    # ---- lanes

    def active(self, mask: Array | None) -> Array:
        """The executing lanes as a mask, also where that is all of them."""
        return self.const(1, "?") if mask is None else mask

    def lanes(self, mask: Array | None) -> Array:
        """The machine's numbers of the executing threads."""
        return np.arange(self.lo, self.hi) if mask is None else np.flatnonzero(mask) + self.lo

    def warps(self, mask: Array | None) -> Array:
        """The rows of the warps with a lane that executes."""
        if mask is None:
            return np.arange(self.first_row, self.last_row)
        found: Array = np.flatnonzero(mask.reshape(-1, WARP).any(axis=1)) + self.first_row
        return found

    def check_members(self, named: Array, mask: Array | None, at: int) -> None:
        """Each executing lane is to name itself, and all that it names and that live are here."""
        if mask is None and named.min() == _FULL_MASK:
            return
        here = self.active(mask).reshape(-1, WARP)
        words = named.reshape(-1, WARP)
        lane = np.arange(WARP, dtype=np.uint32)
        themselves = ((words >> lane) & 1) != 0
        alive = self.machine.live[self.lo : self.hi].reshape(-1, WARP)
        asked = np.bitwise_or.reduce(np.where(here, words, np.uint32(0)), axis=1)[:, None]
        absent = (((asked >> lane) & 1) != 0) & alive & ~here
        text = ""
        if np.count_nonzero(here & ~themselves):
            bad = here & ~themselves
            text = "a lane executes that the membermask does not name"
        elif np.count_nonzero(absent):
            bad = here & absent.any(axis=1)[:, None]
            lanes = absent[int(bad.any(axis=1).argmax())].nonzero()[0]
            names = ", ".join(map(str, lanes))
            text = f"the membermask names lanes that do not execute the instruction: {names}"
        if text:
            self.machine.fault("divergence", text, at, self.lo + int(bad.reshape(-1).argmax()))

    # ---- registers never written

    def check_defined(self, slot: int, mask: Array | None, at: int) -> None:
        machine = self.machine
        if machine.defined is None:
            return
        bad = ~machine.defined_in(slot)[self.lo : self.hi]
        if mask is not None:
            bad &= mask
        if np.count_nonzero(bad):
            name = machine.code.register_name(slot)
            machine.fault(
                "undefined-register", f"reads {name}, which nothing has written", at,
                self.lo + int(bad.argmax()),
            )  # fmt: skip

    def mark_defined(self, slot: int, mask: Array | None) -> None:
        if self.machine.defined is not None:
            written = self.machine.defined_in(slot)[self.lo : self.hi]
            if mask is None:
                written[:] = True
            else:
                written |= mask
