"""Host memory as the global memory of a launch: copied in before it, and out after it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.memory import GRANULE, Allocation, Memory
from sparsekit.errors import TooLargeError

_MOST_BYTES = 1 << 31  # of all pieces together; the emulator keeps a copy and its state


def require_room(span_bytes: int) -> None:
    """Raise TooLargeError when tensors that span so many bytes together are too large here."""
    if span_bytes > _MOST_BYTES:
        raise TooLargeError(
            f"the call's tensors span {span_bytes} bytes; the emulator takes {_MOST_BYTES}"
        )


@dataclass(frozen=True)
class Piece:
    """A part of a host buffer that kernels may touch. written: by them, and not read before; its
    content goes along all the same, so that what they leave alone comes back as it was.

    Pieces of one buffer keep their distances, so that they may overlap.
    """

    name: str
    buffer_address: int
    offset_bytes: int
    size_bytes: int
    written: bool


class HostMemory:
    """Pieces of host memory, placed in an emulated device's memory."""

    def __init__(self, memory: Memory, pieces: Sequence[Piece]) -> None:
        """Copies the pieces in. Raises TooLargeError where they are too large to be emulated."""
        self._memory = memory
        self.placed: list[tuple[Piece, Allocation]] = []
        require_room(sum(p.size_bytes for p in pieces))
        by_buffer: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_buffer.setdefault(piece.buffer_address, []).append(piece)
        for sharing in by_buffer.values():
            first = min(p.offset_bytes for p in sharing) // GRANULE * GRANULE
            end = max(p.offset_bytes + p.size_bytes for p in sharing)
            start = memory.reserve(end - first) - first
            for piece in sharing:
                self.placed.append((piece, self._place(piece, start + piece.offset_bytes)))

    def _place(self, piece: Piece, address: int) -> Allocation:
        return self._memory.place(
            address, piece.size_bytes, _bytes_of(piece), piece.name,
            initialised=not piece.written, read_only=not piece.written,
        )  # fmt: skip

    @property
    def addresses(self) -> dict[str, int]:
        return {piece.name: allocation.address for piece, allocation in self.placed}

    def copy_out(self) -> None:
        """Bring what kernels may have written to where the host has it, whatever was checked."""
        for piece, allocation in self.placed:
            if piece.written:
                _bytes_of(piece)[:] = self._memory.read(allocation, np.uint8)


def _bytes_of(piece: Piece) -> Array:
    """The piece itself, not a copy."""
    if not piece.size_bytes:
        return np.empty(0, np.uint8)
    cells = (ctypes.c_uint8 * piece.size_bytes).from_address(
        piece.buffer_address + piece.offset_bytes
    )
    return np.ctypeslib.as_array(cells)
