"""The memories and registers of a batch, and where symbols lie in them.

Source: PTX ISA, State Spaces; Generic Addressing. Shared, local and parameter memory have a window
each in the generic address space, far above all global memory.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.code import Code
from sparsekit.emulator.geometry import Geometry
from sparsekit.emulator.globals import place_globals
from sparsekit.emulator.layout import CLUSTER_SHIFT, MODULE, SHARED_START
from sparsekit.emulator.memory import Memory

FUNCTION_WINDOW = 0x7C00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7E00_0000_0000
SHARED_WINDOW = 0x7F00_0000_0000
_FUNCTION_BYTES = 16
_STRIDE_ALIGN = 1024  # of the shared memory of neighbouring blocks
_GARBAGE = 0xA5  # what memory holds before anybody writes it
_TYPES = {0: np.bool_, 1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Storage:
    """The registers, shared, local and parameter memory of the threads of a batch."""

    def __init__(
        self, code: Code, geometry: Geometry, memory: Memory, shared_bytes: int, params: bytes
    ) -> None:
        self.code, self.geometry, self.memory = code, geometry, memory
        layout = code.layout
        self.shared_end = layout.dynamic_start + shared_bytes
        self.shared_stride = -(-self.shared_end // _STRIDE_ALIGN) * _STRIDE_ALIGN
        blocks = geometry.units * geometry.shape.cluster_size
        self.shared = np.empty(blocks * self.shared_stride, np.uint8)
        block = geometry.batch_block
        self.shared_base = (block * self.shared_stride).astype(np.uint32)
        unit_stride = geometry.shape.cluster_size * self.shared_stride
        self.unit_base = (geometry.unit * unit_stride).astype(np.uint32)
        self.local_bytes = max(layout.local_bytes, 1)
        self.local_base = np.arange(geometry.threads) * self.local_bytes
        self.local = np.empty(0, np.uint8)
        self.params = np.zeros(-(-max(layout.param_bytes, 1) // 16) * 16, np.uint8)
        self.params[: len(params)] = np.frombuffer(params, np.uint8)
        self._param_vectors: dict[tuple[int, str], Array] = {}
        self._registers: dict[int, Array] = {}
        self._specials: dict[tuple[str, str], Array] = {}
        self._tables: dict[tuple[str, int, int], Array] = {}
        self._symbols = place_globals(code.module, memory)
        self._functions = {f.name: i for i, f in enumerate(code.functions)}
        self._widths = {slot.index: slot.width for slot in code.slots.values()}

    def start_batch(self) -> None:
        """Garbage in all memory; the special registers of this batch."""
        self.shared[:] = _GARBAGE
        self.local[:] = _GARBAGE
        for (name, _), vector in self._specials.items():
            vector[...] = self.geometry.special(name)

    def register(self, slot: int) -> Array:
        """The storage of a register, all threads, as bits."""
        found = self._registers.get(slot)
        if found is None:
            found = np.zeros(self.geometry.threads, _TYPES[self._widths[slot]])
            self._registers[slot] = found
        return found

    def special(self, name: str, dtype: str) -> Array:
        found = self._specials.get((name, dtype))
        if found is None:
            found = self._value_of(name).astype(dtype)
            self._specials[name, dtype] = found
        return found

    def _value_of(self, name: str) -> Array:
        layout = self.code.layout
        sizes = {
            "%dynamic_smem_size": self.shared_end - layout.dynamic_start,
            "%total_smem_size": self.shared_end - SHARED_START,
            "%aggr_smem_size": self.shared_end,
            "%reserved_smem_offset_begin": 0, "%reserved_smem_offset_end": SHARED_START,
            "%reserved_smem_offset_cap": SHARED_START,
        }  # fmt: skip
        if name in sizes:
            return np.full(self.geometry.threads, sizes[name], np.uint64)
        return self.geometry.special(name)

    def param(self, offset: int, dtype: str) -> Array:
        """A parameter's value, once for every thread."""
        found = self._param_vectors.get((offset, dtype))
        if found is None:
            kind = np.dtype(dtype)
            value = self.params[offset : offset + kind.itemsize].copy().view(kind)
            found = np.repeat(value, self.geometry.threads)
            self._param_vectors[offset, dtype] = found
        return found

    def symbol_address(self, function: int, name: str) -> int | Array:
        """Where a variable lies in its own space; per thread for the shared memory of a cluster."""
        layout = self.code.layout
        shared = layout.shared.get((function, name), layout.shared.get((MODULE, name)))
        if shared is not None:
            if self.geometry.shape.cluster_size == 1:
                return shared
            window = self.geometry.rank.astype(np.uint64) << np.uint64(CLUSTER_SHIFT)
            address: Array = window + np.uint64(shared)
            return address
        if (function, name) in layout.local:
            return layout.local[function, name]
        if name in layout.param:
            return layout.param[name][0]
        if name in self._symbols:
            return self._symbols[name].address
        if name in self._functions:
            return FUNCTION_WINDOW + _FUNCTION_BYTES * self._functions[name]
        raise KeyError(f"{name} has no address")

    def function_at(self, address: int) -> str | None:
        """The function that an indirect call's target stands for."""
        index, rest = divmod(address - FUNCTION_WINDOW, _FUNCTION_BYTES)
        if rest or not 0 <= index < len(self.code.functions):
            return None
        return self.code.functions[index].name

    def table(self, space: str, size: int, count: int) -> Array:
        """A memory as rows of count elements of size bytes."""
        found = self._tables.get((space, size, count))
        if found is None:
            if space == "local" and not self.local.size:
                bytes_ = self.geometry.threads * self.local_bytes
                self.local = np.full(-(-bytes_ // 64) * 64, _GARBAGE, np.uint8)
            content = {
                "shared": self.shared, "local": self.local, "global": self.memory.content(),
                "params": self.params,
            }[space]  # fmt: skip
            found = content.view(_TYPES[size])
            if count > 1:
                found = found[: found.size // count * count].reshape(-1, count)
            self._tables[space, size, count] = found
        return found
