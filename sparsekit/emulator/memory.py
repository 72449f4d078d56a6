"""Global memory on the CPU: one arena of bytes, allocations in it, and what is known of each byte.

Source: PTX ISA, State Spaces (.global, .const). Addresses are far above 2^32, so that a pointer cut
to 32 bits is out of bounds; a gap follows each allocation.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsekit.emulator.arrays import Array
from sparsekit.errors import ArgumentError

GLOBAL_BASE = 0x10_0000_0000
GRANULE = 256  # bytes: the alignment of an allocation, as cudaMalloc's
_FIRST_CAPACITY = 1 << 20
_SPARSE_BYTES = 1 << 30  # an arena from this size on is mapped page by page

ALLOCATED, INITIALISED, READ_ONLY = 1, 2, 4
"""Bits of the state that the arena keeps for every byte."""


@dataclass(frozen=True)
class Allocation:
    """A piece of global memory. address: as kernels see it."""

    address: int
    size_bytes: int
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'allocation'} [{self.size_bytes} bytes at {self.address:#x}]"


class Memory:
    """The global memory of one emulated device; launches on it see each other's results."""

    def __init__(self) -> None:
        self._bytes = np.zeros(_FIRST_CAPACITY, np.uint8)
        self._state = np.zeros(_FIRST_CAPACITY, np.uint8)
        self._used = GRANULE
        self.allocations: list[Allocation] = []
        self.symbols: dict[tuple[int, str], Allocation] = {}
        self._lines: dict[Allocation, tuple[int, int, int]] = {}

    def allocate(
        self, content: Array | int, name: str = "", *, initialised: bool | None = None,
        read_only: bool = False,
    ) -> Allocation:  # fmt: skip
        """Memory with a copy of an array (C order), or so many bytes whose content is undefined.

        initialised: whether reads before a write are right; by default, for an array. name: for
        messages. read_only: a store is a fault.
        """
        if isinstance(content, int):
            data = None
            size = content
        else:
            data = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
            size = data.size
        if size < 0:
            raise ArgumentError(f"an allocation of {size} bytes")
        ready = data is not None if initialised is None else initialised
        return self.place(
            self.reserve(size), size, data, name, initialised=ready, read_only=read_only
        )

    def reserve(self, size_bytes: int) -> int:
        """The address of a stretch at a multiple of 256 bytes in which nothing is allocated yet."""
        start = self._used
        self._used = -(-(start + size_bytes + GRANULE) // GRANULE) * GRANULE
        self._reserve(self._used + GRANULE)
        return GLOBAL_BASE + start

    def place(
        self, address: int, size: int, data: Array | None, name: str, *, initialised: bool,
        read_only: bool, lines: tuple[int, int, int] | None = None,
    ) -> Allocation:  # fmt: skip
        """An allocation at an address in a reserved stretch. It may overlap others there: a byte
        may be written if it belongs to one that is not read-only.

        lines: (how many, bytes of each, bytes from one to the next) where it is no more than these;
        the gaps between them are nobody's.
        """
        start = address - GLOBAL_BASE
        inside = slice(start, start + size)
        content, old = self._bytes[inside], self._state[inside]
        if lines is not None:
            content, old = _lines_of(content, lines), _lines_of(old, lines)
            data = None if data is None else _lines_of(data, lines)
        if data is not None:
            content[...] = data
        fixed = READ_ONLY * read_only & np.where(old & ALLOCATED, old, READ_ONLY)
        known = (old & INITIALISED) | (ALLOCATED | INITIALISED * initialised)
        old[...] = known | fixed
        allocation = Allocation(address, size, name)
        self.allocations.append(allocation)
        if lines is not None:
            self._lines[allocation] = lines
        return allocation

    @property
    def has_gaps(self) -> bool:
        """Whether most of the arena may be addresses that nothing lies at."""
        return bool(self._lines)

    def read(
        self, allocation: Allocation, dtype: npt.DTypeLike, shape: Sequence[int] | int = -1
    ) -> Array:
        """A copy of an allocation's content."""
        start = allocation.address - GLOBAL_BASE
        data = self._bytes[start : start + allocation.size_bytes]
        return data.view(dtype).reshape(shape).copy()

    def write(self, allocation: Allocation, content: Array, offset_bytes: int = 0) -> None:
        """Overwrite a part of an allocation; it counts as initialised."""
        data = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        if offset_bytes < 0 or offset_bytes + data.size > allocation.size_bytes:
            raise ArgumentError(f"{data.size} bytes at {offset_bytes} do not fit {allocation}")
        start = allocation.address - GLOBAL_BASE + offset_bytes
        self._bytes[start : start + data.size] = data
        self._state[start : start + data.size] |= INITIALISED

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds an address."""
        for allocation in self.allocations:
            if allocation.address <= address < allocation.address + allocation.size_bytes:
                return allocation
        return None

    def describe(self, address: int) -> str:
        """An address for a message: by the allocation it is in or nearest to."""
        inside = self.find(address)
        if inside is not None:
            place = f"byte {address - inside.address} of {inside}"
            _, size, stride = self._lines.get(inside, (1, 1, 1))
            between = (address - inside.address) % stride >= size
            return f"{place}, between its lines" if between else place
        near = min(
            self.allocations,
            key=lambda a: min(abs(address - a.address), abs(address - a.address - a.size_bytes)),
            default=None,
        )
        if near is None or abs(address - near.address) > near.size_bytes + (1 << 20):
            return f"address {address:#x}, which is in no allocation"
        offset = address - near.address
        if offset >= 0:
            return f"{offset - near.size_bytes} bytes past the end of {near}"
        return f"{-offset} bytes before {near}"

    @property
    def used_bytes(self) -> int:
        """How much of the arena has ever been reserved."""
        return self._used

    def content(self) -> Array:
        """The arena itself, index 0 at GLOBAL_BASE; valid until the next allocation."""
        return self._bytes

    def state(self) -> Array:
        """The state bits of every byte of the arena; valid until the next allocation."""
        return self._state

    def _reserve(self, size: int) -> None:
        capacity = self._bytes.size
        if size <= capacity:
            return
        while capacity < size:
            capacity *= 2
        for name in ("_bytes", "_state"):
            grown = sparse_zeros(capacity)
            old = getattr(self, name)
            grown[: old.size] = old
            setattr(self, name, grown)


def sparse_zeros(size_bytes: int) -> Array:
    """Zeros, of which a page takes memory when it is first written: no huge pages, which numpy asks
    for, so that lines far apart do not take all that lies between them.

    Raises MemoryError where the machine has no room for so many addresses.
    """
    if size_bytes < _SPARSE_BYTES:
        return np.zeros(size_bytes, np.uint8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        pages = mmap.mmap(-1, size_bytes, flags=flags)
    except OSError as error:
        raise MemoryError(f"no {size_bytes} bytes can be mapped") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # where the system has no huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def _lines_of(array: Array, lines: tuple[int, int, int]) -> Array:
    """The lines of bytes as a view of two dimensions."""
    count, size, stride = lines
    return np.lib.stride_tricks.as_strided(array, (count, size), (stride, 1))
