"""What the last plain write of each byte of shared memory has stored.

Two unordered writes of the same value are a fault of another kind than two of different ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.grains import Touched


class StoredValues:
    """The bytes of a memory of so many cells."""

    def __init__(self, cells: int, cell_bytes: int) -> None:
        self._cell = cell_bytes
        self._bytes = np.zeros(cells * cell_bytes, np.uint8)

    def note(self, bucket: Bucket) -> None:
        slots, index = self._slots(bucket)
        slots[index] = bucket.stored(bucket.size_bytes)

    def same(self, bucket: Bucket, touched: Touched, positions: Array) -> Array:
        """For some of the grains that writes touch, whether they store what is there."""
        accesses = touched.accesses(positions)
        slots, index = self._slots(bucket)
        per_access = bucket.size_bytes // self._cell
        there = slots[index[accesses]].view(f"V{self._cell}").reshape(-1, per_access)
        mine = bucket.stored(bucket.size_bytes)[accesses].view(f"V{self._cell}")
        differing = np.zeros((len(positions), per_access + 1), np.int8)
        np.cumsum(there != mine.reshape(-1, per_access), axis=1, out=differing[:, 1:])
        counts = touched.counts if isinstance(touched.counts, int) else touched.counts[accesses]
        first = touched.cells[positions] % per_access
        row = np.arange(len(positions))
        same: Array = differing[row, first] == differing[row, first + per_access // counts]
        return same

    def _slots(self, bucket: Bucket) -> tuple[Array, Array]:
        """The bytes as values of the size of a bucket's accesses, and which of them these name."""
        slots = self._bytes.view(f"V{bucket.size_bytes}")
        index = bucket.index.astype(np.intp) // bucket.size_bytes
        return slots, np.minimum(index, len(slots) - 1)
