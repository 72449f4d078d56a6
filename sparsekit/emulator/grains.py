"""How finely it is kept what is known of shared memory: in grains, as wide as its accesses allow.

Memory is a row of cells, which no access of the kernel splits, and sixteen bytes of cells are a
group. While a group is only accessed widely, the first cell of each of its grains stands for the
grain; the first narrower access splits them, and they stay split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array

_GROUP_SHIFT = 4  # log2 of bytes
GROUP_BYTES = 1 << _GROUP_SHIFT


@dataclass(frozen=True, slots=True)
class Touched:
    """What a vector of accesses touches. cells: the first of each grain, access by access.

    counts: the grains of an access: of all alike, or of each. owners: the access of each grain,
    where it is not the same for all how many an access has.
    """

    cells: Array
    counts: int | Array
    owners: Array | None = None

    def spread(self, values: Array) -> Array:
        """A value per access to one per grain."""
        if self.owners is not None:
            return values.take(self.owners)
        if isinstance(self.counts, int) and self.counts == 1:
            return values
        return np.repeat(values, self.counts)

    def accesses(self, positions: Array) -> Array:
        """The access that each of some grains belongs to."""
        if self.owners is not None:
            return self.owners[positions]
        return positions // self.counts


class Grains:
    """The grain of each group of a memory. tables: what is kept per cell, [..., cells] each."""

    def __init__(self, cells: int, cell_shift: int) -> None:
        self._cell_shift = np.uint32(cell_shift)
        self._group_shift = np.uint32(max(_GROUP_SHIFT, cell_shift))
        groups = -(-cells >> int(self._group_shift - self._cell_shift))
        self._shifts = np.full(groups, self._group_shift, np.uint8)  # log2 of bytes

    def touch(self, index: Array, size_bytes: int, tables: Iterable[Array]) -> Touched:
        """Accesses of size_bytes at byte index each; what they split is copied in the tables."""
        shift = size_bytes.bit_length() - 1
        groups = index >> self._group_shift
        shifts = self._shifts.take(groups)
        if int(shifts.max()) > shift:
            self._split(np.unique(groups[shifts > shift]), shift, tables)
            shifts = np.minimum(shifts, np.uint8(shift))
        lowest = shifts.min()
        step = 1 << int(lowest - self._cell_shift)
        cells = (index >> lowest).astype(np.intp) * step
        if lowest == shifts.max():
            return _regular(cells, size_bytes >> int(lowest), step)
        counts = (size_bytes >> shifts).astype(np.intp)
        steps = 1 << (shifts - self._cell_shift).astype(np.intp)
        owners = np.repeat(np.arange(counts.size), counts)
        starts = np.cumsum(counts) - counts
        within = np.arange(owners.size) - starts.take(owners)
        within *= steps.take(owners)
        within += (cells & ~(steps - 1)).take(owners)
        return Touched(within, counts, owners)

    def _split(self, groups: Array, shift: int, tables: Iterable[Array]) -> None:
        """Each cell of the groups gets what the first of its grain has."""
        ratio_shift = int(self._group_shift - self._cell_shift)
        cells = (groups.astype(np.intp)[:, None] << ratio_shift) + np.arange(1 << ratio_shift)
        steps = 1 << (self._shifts[groups] - self._cell_shift).astype(np.intp)
        first = cells & ~(steps[:, None] - 1)
        for table in tables:
            table[..., cells] = table[..., first]
        self._shifts[groups] = shift


def _regular(cells: Array, count: int, step: int) -> Touched:
    if count > 1:
        cells = (cells[:, None] + np.arange(0, count * step, step)).reshape(-1)
    return Touched(cells, count)
