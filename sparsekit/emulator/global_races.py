"""Races between blocks of a launch in global memory.

Two accesses of different blocks to the same byte, one of them a write and not both strong, race
unless the blocks have synchronised between them (see fences). Most memory is only read or only
written by one block, so accesses are kept as they come, and looked at when the launch has ended or
blocks begin to synchronise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import (
    ASYNC_READ,
    ASYNC_WRITE,
    READ,
    STRONG_READ,
    STRONG_WRITE,
    WRITE,
)
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.memory import GLOBAL_BASE, GRANULE

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.findings import Findings
    from sparsekit.emulator.geometry import Geometry
    from sparsekit.emulator.memory import Memory


_PLAIN_KINDS = {ASYNC_READ: READ, ASYNC_WRITE: WRITE}
_NOBODY = -1
_MOST_KEPT = 1 << 21  # elements, before they are looked at
_LARGEST_CELL = 32  # bytes of the widest access


@dataclass(slots=True)
class _Accesses:
    """Accesses of one kind and time to one stretch. index: bytes; blocks, at: per element."""

    kind: int
    time: int
    size_bytes: int
    index: Array
    blocks: Array
    at: Array


class _Shadow:
    """Who wrote and read each cell of a stretch of memory last, when, and by which instruction.

    A cell is as large as the smallest access so far. One more of the largest stands behind the
    last, for an access out of alignment where nobody checks that.
    """

    _TABLES = (
        "writer", "written_at", "written_when", "write_was_strong", "reader", "read_at",
        "read_when", "read_was_strong",
    )  # fmt: skip

    def __init__(self, start: int, size: int) -> None:
        self.start, self.cell_bytes = start, _LARGEST_CELL
        cells = -(-size // _LARGEST_CELL) + 1
        self.writer, self.reader = (np.full(cells, _NOBODY, np.int32) for _ in range(2))
        self.written_at, self.read_at = (np.zeros(cells, np.int32) for _ in range(2))
        self.written_when, self.read_when = (np.zeros(cells, np.int32) for _ in range(2))
        self.write_was_strong, self.read_was_strong = (np.zeros(cells, np.bool_) for _ in range(2))

    def cells(self, accesses: _Accesses) -> tuple[Array, int]:
        """(the cells of all accesses in turn, how many each has); cells are split if need be."""
        if accesses.size_bytes < self.cell_bytes:
            parts = self.cell_bytes // accesses.size_bytes
            for name in self._TABLES:
                setattr(self, name, np.repeat(getattr(self, name), parts))
            self.cell_bytes = accesses.size_bytes
        first = (accesses.index - self.start) // self.cell_bytes
        count = accesses.size_bytes // self.cell_bytes
        if count == 1:
            return first, 1
        return (first[:, None] + np.arange(count)).reshape(-1), count


def _stretches(memory: Memory) -> list[tuple[int, int]]:
    """[(first, last + 1)] granules of the arena in which allocations lie.

    Views of one buffer may share a granule, or overlap: they are one stretch.
    """
    starts = ((a.address - GLOBAL_BASE, a.size_bytes) for a in memory.allocations if a.size_bytes)
    found: list[tuple[int, int]] = []
    for start, size in sorted(starts):
        first, end = start // GRANULE, -(-(start + size) // GRANULE)
        if found and first < found[-1][1]:
            first, end = found[-1][0], max(end, found.pop()[1])
        found.append((first, end))
    return found


class GlobalRaces:
    """The accesses to global memory of one launch, by the stretches that allocations lie in."""

    def __init__(self, memory: Memory, findings: Findings, blocks: int) -> None:
        self._memory, self._findings, self._blocks = memory, findings, blocks
        self._owner = np.full(memory.content().size // GRANULE + 1, _NOBODY, np.int32)
        self._stretches = _stretches(memory)
        for number, (first, end) in enumerate(self._stretches):
            self._owner[first:end] = number
        self._kept: dict[int, list[_Accesses]] = {}
        self._shadows: dict[int, _Shadow] = {}
        self._written: set[int] = set()
        self._elements = 0
        self._blocks_of_rows: Array = np.zeros(0, np.int32)
        self._geometry: Geometry | None = None
        self._known: Array | None = None  # [a, b]: up to when block a knows of block b's doings
        self._time = 1

    def start_batch(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._blocks_of_rows = geometry.block_number()[::WARP].astype(np.int32)

    def released(self, block: int) -> Array:
        """All that a block knows now, its own doings included; what it does next is later."""
        if self._known is None:
            known = np.zeros(self._blocks, np.int32)
        else:
            known = self._known[block].copy()
        known[block] = self._time
        self._time += 1
        return known

    def learn(self, block: int, known: Array) -> None:
        """A block takes in what others knew: from now on there is order between blocks."""
        if self._known is None:
            self.finish()
            self._known = np.zeros((self._blocks, self._blocks), np.int32)
        self._known[block] = np.maximum(self._known[block], known)

    def add(self, bucket: Bucket) -> None:
        """Take accesses to the arena; those that are in no stretch are nobody's concern."""
        kind = _PLAIN_KINDS.get(bucket.kind, bucket.kind)
        owners = self._owner.take(bucket.index // GRANULE, mode="clip")
        blocks = self._blocks_of_rows[bucket.rows]
        at = bucket.instructions().astype(np.int32)
        first = int(owners[0])
        if (owners == first).all():
            self._take(first, kind, bucket.size_bytes, bucket.index, blocks, at)
            return
        for owner in np.unique(owners):
            here = owners == owner
            self._take(
                int(owner), kind, bucket.size_bytes, bucket.index[here], blocks[here],
                at[here],
            )  # fmt: skip

    def _take(
        self, owner: int, kind: int, size: int, index: Array, blocks: Array, at: Array
    ) -> None:
        if owner == _NOBODY:
            return
        accesses = _Accesses(kind, self._time, size, index, blocks, at)
        if kind in (WRITE, STRONG_WRITE):
            self._written.add(owner)
        if self._known is not None:
            self._look(owner, accesses)
            return
        self._kept.setdefault(owner, []).append(accesses)
        self._elements += index.size
        if self._elements > _MOST_KEPT:
            for number, kept in self._kept.items():
                for one in kept:
                    self._look(number, one)
            self._kept.clear()
            self._elements = 0

    def finish(self) -> None:
        """Look at all that was kept of stretches that somebody wrote."""
        for owner, kept in self._kept.items():
            if owner in self._written:
                for accesses in kept:
                    self._look(owner, accesses)
        self._kept.clear()
        self._elements = 0

    def _look(self, owner: int, accesses: _Accesses) -> None:
        shadow = self._shadows.get(owner)
        if shadow is None:
            first, end = self._stretches[owner]
            shadow = _Shadow(first * GRANULE, (end - first) * GRANULE)
            self._shadows[owner] = shadow
        cells, count = shadow.cells(accesses)
        blocks, at = np.repeat(accesses.blocks, count), np.repeat(accesses.at, count)
        strong = accesses.kind in (STRONG_READ, STRONG_WRITE)
        is_read = accesses.kind in (READ, STRONG_READ)
        race = self._unordered(shadow.writer, shadow.written_when, cells, blocks)
        if strong:
            race &= ~shadow.write_was_strong[cells]
        if race.any():
            self._report(shadow, race, cells, blocks, at, "reads" if is_read else "writes", "wrote")
        if is_read:
            shadow.reader[cells], shadow.read_at[cells] = blocks, at
            shadow.read_when[cells] = accesses.time
            shadow.read_was_strong[cells] = strong
            return
        race = self._unordered(shadow.reader, shadow.read_when, cells, blocks)
        if strong:
            race &= ~shadow.read_was_strong[cells]
        if race.any():
            self._report(shadow, race, cells, blocks, at, "writes", "reads")
        shadow.writer[cells], shadow.written_at[cells] = blocks, at
        shadow.written_when[cells], shadow.write_was_strong[cells] = accesses.time, strong
        other = shadow.writer[cells] != blocks
        if not strong and other.any():
            self._report(shadow, other, cells, blocks, at, "writes", "wrote")

    def _unordered(self, who: Array, when: Array, cells: Array, blocks: Array) -> Array:
        others = who[cells]
        race: Array = (others != _NOBODY) & (others != blocks)
        if self._known is not None and race.any():
            race &= self._known[blocks, others] < when[cells]
        return race

    def _report(
        self, shadow: _Shadow, race: Array, cells: Array, blocks: Array, at: Array, does: str,
        did: str,
    ) -> None:  # fmt: skip
        position = int(race.argmax())
        cell = int(cells[position])
        table = shadow.writer if did == "wrote" else shadow.reader
        where_at = shadow.written_at if did == "wrote" else shadow.read_at
        assert self._geometry is not None
        other = self._geometry.block_index(int(table[cell]))
        line = self._findings.line(int(where_at[cell]))
        mine = self._geometry.block_index(int(blocks[position]))
        where = self._memory.describe(GLOBAL_BASE + shadow.start + cell * shadow.cell_bytes)
        text = (
            f"block {mine} {does} {where}, which block {other} {did} in PTX line {line}, "
            "and nothing orders the two"
        )
        self._findings.add_block("global-race", text, int(at[position]), mine)
