"""Tensor memory of the blocks of a batch: cells, columns allocated, who wrote and read what.

Source: PTX ISA, Tensor Memory; Tensor Memory Allocation and Management. A cell is 32 bits of one of
128 lanes and 512 columns. Order is that of the clocks, as in shared memory; the operations of one
thread of one kind (products and copies; loads; stores) are in order among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import KINDS
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.tensor_layouts import COLUMNS, LANES

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


FEWEST_COLUMNS = 32
_GARBAGE = 0x7FC0DEAD


@dataclass(frozen=True)
class Region:
    """Some lanes of some columns of one block's tensor memory."""

    block: int
    lanes: Array
    columns: slice

    @property
    def index(self) -> tuple[Any, ...]:
        first, count = int(self.lanes[0]), self.lanes.size
        if int(self.lanes[-1]) - first == count - 1:  # they are in order
            return self.block, slice(first, first + count), self.columns
        return self.block, self.lanes, self.columns


class TensorMemory:
    """Made when first used. cells, writer, written_at: [blocks, lanes, columns]."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        geometry = machine.geometry
        blocks = geometry.units * geometry.shape.cluster_size
        used = machine.code.uses_tensor_memory
        shape = (blocks if used else 0, LANES, COLUMNS)
        self.cells = np.full(shape, _GARBAGE, np.uint32)
        self._writer = np.zeros(shape, np.int32)
        self._written_at = np.zeros(shape, np.int32)
        self._reads: dict[int, Array] = {}
        self._allocated: list[dict[int, tuple[int, int]]] = [{} for _ in range(blocks)]
        self._relinquished: set[int] = set()
        self._block = geometry.batch_block
        self._checks = machine.findings.checks
        self._fences = "tensor-fence" in self._checks

    def reset(self) -> None:
        self.cells[:] = _GARBAGE
        self._writer[:] = 0
        self._reads.clear()
        for columns in self._allocated:
            columns.clear()
        self._relinquished.clear()

    def block_of(self, thread: int) -> int:
        """A thread's block within the batch."""
        return int(self._block[thread])

    # ---- allocation

    def allocate(self, thread: int, count: int, at: int) -> int:
        """The first column of so many that nobody has."""
        machine, block = self._machine, self.block_of(thread)
        if count < FEWEST_COLUMNS or count > COLUMNS or count & (count - 1):
            text = f"{count} columns of tensor memory; it takes a power of two from 32 to 512"
            machine.fault("tensor-memory", text, at, thread)
        if block in self._relinquished:
            text = "tensor memory is allocated after the permit was relinquished"
            machine.fault("tensor-memory", text, at, thread)
        taken = np.zeros(COLUMNS, np.bool_)
        for start, (size, _) in self._allocated[block].items():
            taken[start : start + size] = True
        for start in range(0, COLUMNS, max(count, FEWEST_COLUMNS)):
            if not taken[start : start + count].any():
                self._allocated[block][start] = (count, at)
                return start
        text = f"waits for {count} columns of tensor memory, which its block has in use"
        machine.fault("deadlock", text, at, thread)
        return 0

    def free(self, thread: int, column: int, count: int, at: int) -> None:
        block = self.block_of(thread)
        size, _ = self._allocated[block].get(column, (0, 0))
        if size != count:
            text = f"{count} columns from {column} on are freed; {size} were allocated there"
            self._machine.fault("tensor-memory", text, at, thread)
        self._allocated[block].pop(column, None)

    def relinquish(self, thread: int) -> None:
        self._relinquished.add(self.block_of(thread))

    def check_finished(self) -> None:
        """A block must free what it has allocated."""
        for block, columns in enumerate(self._allocated):
            for start, (count, at) in columns.items():
                thread = int(np.flatnonzero(self._block == block)[0])
                text = f"{count} columns of tensor memory from {start} on are never freed"
                self._machine.fault("tensor-memory", text, at, thread)

    # ---- access

    def region(
        self, block: int, lanes: Array, column: int, count: int, at: int, thread: int
    ) -> Region:
        """Cells that must be allocated."""
        inside = any(
            start <= column and column + count <= start + size
            for start, (size, _) in self._merged(block)
        )
        if not inside or int(lanes.max()) >= LANES:
            text = (
                f"lanes {int(lanes.min())} to {int(lanes.max())}, columns {column} to "
                f"{column + count - 1} of tensor memory are not allocated"
            )
            self._machine.fault("tensor-memory", text, at, thread)
            self._machine.fault("outside", text, at, thread)
        return Region(block, lanes, slice(column, column + count))

    def _merged(self, block: int) -> list[tuple[int, tuple[int, int]]]:
        """Allocations, neighbours as one."""
        merged: list[tuple[int, tuple[int, int]]] = []
        for start, (size, at) in sorted(self._allocated[block].items()):
            if merged and merged[-1][0] + merged[-1][1][0] == start:
                first, (before, _) = merged.pop()
                merged.append((first, (before + size, at)))
            else:
                merged.append((start, (size, at)))
        return merged

    def note_read(self, region: Region, agent: int, at: int, thread: int) -> None:
        """An agent reads cells, issued by a thread."""
        if not self._checks:
            return
        stamps = self._writer[region.index]
        if not stamps.all():
            where = self._at(stamps == 0, region)
            text = f"reads cells of tensor memory that nothing has written, {where}"
            self._machine.fault("uninitialised", text, at, thread)
        self._check_writes(stamps, region, agent, "reads", at, thread)
        table = self._reads.get(agent)
        if table is None:
            table = self._reads[agent] = np.zeros(self._writer.shape, np.int32)
        table[region.index] = self._machine.clocks.stamp() | agent

    def note_write(
        self, region: Region, agent: int, at: int, thread: int, *, released: bool = False
    ) -> None:
        """An agent writes cells. released: they are given back, which is no asynchronous operation
        and needs no fence behind loads."""
        if not self._checks:
            return
        clocks = self._machine.clocks
        self._check_writes(self._writer[region.index], region, agent, "writes", at, thread)
        known = clocks.known[thread // WARP]
        for reader, table in self._reads.items():
            if reader != agent:
                late = table[region.index] > known[reader]
                if np.count_nonzero(late):
                    self._report("writes", late, region, reader, "reads", at, thread)
                if self._fences and not released:
                    self._check_read_fences(table[region.index], region, reader, at, thread)
        self._writer[region.index] = clocks.stamp() | agent
        self._written_at[region.index] = at

    def forget(self, region: Region) -> None:
        """The cells are nobody's any more, and hold nothing."""
        self._writer[region.index] = 0
        for table in self._reads.values():
            table[region.index] = 0

    def _check_writes(
        self, stamps: Array, region: Region, agent: int, does: str, at: int, thread: int
    ) -> None:
        clocks = self._machine.clocks
        known = clocks.known[thread // WARP]
        if self._fences:
            self._check_fences(stamps, region, does, at, thread)
        first = int(stamps.flat[0])
        if (stamps == first).all():
            writer = first & int(clocks.agent_mask)
            if writer == agent or first <= known[writer]:
                return
        writers = stamps & clocks.agent_mask
        late = (stamps > known[writers]) & (writers != agent)
        if np.count_nonzero(late):
            position = np.unravel_index(int(late.argmax()), late.shape)
            written_at = int(self._written_at[region.index][position])
            what = f"wrote in PTX line {self._machine.line(written_at)}"
            self._report(does, late, region, int(writers[position]), what, at, thread)

    def _check_fences(self, stamps: Array, region: Region, does: str, at: int, thread: int) -> None:
        """Operations of other warps that are in order, but for want of a tcgen05.fence."""
        clocks = self._machine.clocks
        row = thread // WARP
        writers = stamps & clocks.agent_mask
        late = (stamps > clocks.ordered[row][writers]) & (stamps <= clocks.known[row][writers])
        if np.count_nonzero(late):
            position = np.unravel_index(int(late.argmax()), late.shape)
            line = self._machine.line(int(self._written_at[region.index][position]))
            text = (
                f"{does} cells of tensor memory written in PTX line {line} by another warp; no "
                "tcgen05.fence::before_thread_sync follows that, or no after_thread_sync precedes"
            )
            self._machine.fault("tensor-fence", text, at, thread)

    def _check_read_fences(
        self, stamps: Array, region: Region, reader: int, at: int, thread: int
    ) -> None:
        """The same of what another warp has read (PTX ISA, Non-pipelined instructions, different
        thread: a load, its wait, a fence on each side, then the product)."""
        clocks = self._machine.clocks
        row = thread // WARP
        late = (stamps > clocks.ordered[row][reader]) & (stamps <= clocks.known[row][reader])
        if np.count_nonzero(late):
            kind, number = clocks.agent(reader)
            text = (
                f"writes cells of tensor memory that {KINDS[kind]} {number} has read; no "
                "tcgen05.fence::before_thread_sync follows that, or no after_thread_sync precedes, "
                f"{self._at(late, region)}"
            )
            self._machine.fault("tensor-fence", text, at, thread)

    def _report(
        self, does: str, bad: Array, region: Region, other: int, what: str, at: int, thread: int
    ) -> None:
        kind, number = self._machine.clocks.agent(other)
        text = (
            f"{does} cells of tensor memory that {KINDS[kind]} {number} {what}, and nothing orders "
            f"the two, {self._at(bad, region)}"
        )
        self._machine.fault("race", text, at, thread)

    @staticmethod
    def _at(bad: Array, region: Region) -> str:
        lane, column = np.unravel_index(int(bad.argmax()), bad.shape)
        return f"lane {int(region.lanes[lane])}, column {region.columns.start + int(column)}"
