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
_MOST_SPAN_BYTES = 1 << 33  # with the gaps between lines, which are addresses and no memory
_WIDE_BYTES = 4096  # a gap that is left out


def require_room(size_bytes: int, span_bytes: int) -> None:
    """Raise TooLargeError when tensors of so many bytes together are too large here.

    span_bytes: with the gaps that are left out.
    """
    for what, found, most in (
        ("hold", size_bytes, _MOST_BYTES), ("span", span_bytes, _MOST_SPAN_BYTES)
    ):  # fmt: skip
        if found > most:
            raise TooLargeError(
                f"the call's tensors {what} {found} bytes; the emulator takes {most}"
            )


def is_wide(gap_bytes: int) -> bool:
    """Whether a gap between the lines of a tensor that is only read is left out: touching it is
    out of bounds, and it takes no memory."""
    return gap_bytes >= _WIDE_BYTES


@dataclass(frozen=True)
class Piece:
    """A part of a host buffer that kernels may touch. written: by them, and not read before; its
    content goes along all the same, so that what they leave alone comes back as it was.

    Pieces of one buffer keep their distances, so that they may overlap. lines: (how many, bytes of
    each, bytes from one to the next) of a piece that is only read and has gaps.
    """

    name: str
    buffer_address: int
    offset_bytes: int
    size_bytes: int
    written: bool
    lines: tuple[int, int, int] | None = None

    @property
    def placed_lines(self) -> tuple[int, int, int] | None:
        """The lines where the gaps between them are left out."""
        wide = self.lines and not self.written and is_wide(self.lines[2] - self.lines[1])
        return self.lines if wide else None

    @property
    def placed_bytes(self) -> int:
        lines = self.placed_lines
        return lines[0] * lines[1] if lines else self.size_bytes


class HostMemory:
    """Pieces of host memory, placed in an emulated device's memory."""

    def __init__(self, memory: Memory, pieces: Sequence[Piece]) -> None:
        """Copies the pieces in. Raises TooLargeError where they are too large to be emulated."""
        self._memory = memory
        self.placed: list[tuple[Piece, Allocation]] = []
        require_room(sum(p.placed_bytes for p in pieces), sum(p.size_bytes for p in pieces))
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
            initialised=not piece.written, read_only=not piece.written, lines=piece.placed_lines,
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
