"""Non-bulk asynchronous copies in flight, and the groups that threads wait for.

Source: PTX ISA, Data Movement and Conversion Instructions: cp.async, commit_group, wait_group.
Groups are counted by warp: its lanes commit and wait together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import COPY_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.mbarrier_objects import MBarrier

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class Copy:
    """One cp.async of the warps of a convoy; the rows that have taken effect leave it.

    target: bytes in the machine's shared memory; source: bytes in the arena. kept: how many bytes
    come from the source, the others are zero; None for all.
    """

    stream = None

    def __init__(
        self, machine: Machine, size: int, target: Array, source: Array, kept: Array | None,
        rows: Array, groups: Array,
    ) -> None:  # fmt: skip
        self._machine, self._size = machine, size
        self._target, self._source, self._kept = target, source, kept
        self._rows, self._groups = rows, groups
        self.serial = 0

    def is_of(self, row: int) -> bool:
        """Whether something of a warp's is left to be done."""
        return bool((self._rows == row).any())

    def perform(self) -> None:
        self._write(self._target, self._source, self._kept)
        self._rows = self._rows[:0]

    def perform_up_to(self, groups: Array) -> bool:
        """Take effect up to a group of each row; True when nothing is left."""
        due = self._groups <= groups[self._rows]
        count = np.count_nonzero(due)
        if count == due.size:
            self.perform()
            return True
        if count:
            kept = None if self._kept is None else self._kept[due]
            self._write(self._target[due], self._source[due], kept)
            left = ~due
            self._target, self._source = self._target[left], self._source[left]
            self._kept = None if self._kept is None else self._kept[left]
            self._rows, self._groups = self._rows[left], self._groups[left]
        return False

    def _write(self, target: Array, source: Array, kept: Array | None) -> None:
        storage, size = self._machine.storage, self._size
        shift = size.bit_length() - 1
        data = storage.table("global", size, 1).take(source >> shift, mode="clip")
        if kept is not None:
            whole = kept >= size
            if np.count_nonzero(whole) != whole.size:
                parts = data.view(np.uint8).reshape(-1, size)
                parts = np.where(np.arange(size) < kept[:, None], parts, np.uint8(0))
                data = np.ascontiguousarray(parts).view(data.dtype).reshape(-1)
        storage.table("shared", size, 1)[target >> np.uint32(shift)] = data


class CopyArrival:
    """cp.async.mbarrier.arrive of one warp: its lanes arrive when its copies so far have ended.

    known: the copies, and what has happened before the arrival was issued.
    """

    stream = None

    def __init__(
        self, machine: Machine, row: int, serial: int,
        arrivals: list[tuple[MBarrier, int, int]], known: Array | None, at: int,
    ) -> None:  # fmt: skip
        """arrivals: (mbarrier, how many lanes arrive there, the first one's thread)."""
        self._machine, self._row, self._serial = machine, row, serial
        self._arrivals, self._known, self._at = arrivals, known, at

    def perform(self) -> None:
        self._machine.copies.force(self._row, self._serial)
        for barrier, count, thread in self._arrivals:
            self._machine.mbarriers.arrive_later(barrier, self._known, self._at, thread, count)


class CopyGroups:
    """Per warp: how many groups it has committed, and when each was closed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        rows = machine.geometry.threads // WARP
        self.committed = np.zeros(rows, np.int64)
        self._closed_at: list[Array] = []
        self._in_flight: list[Copy] = []
        self._serial = 0

    def reset(self) -> None:
        self.committed[:] = 0
        self._closed_at.clear()
        self._in_flight.clear()

    def issue(
        self, size: int, target: Array, source: Array, kept: Array | None, rows: Array
    ) -> None:
        """Start a copy; all arrays are per executing lane."""
        groups = self.committed[rows]
        copy = Copy(self._machine, size, target, source, kept, rows, groups)
        if self._machine.choices.is_eager:
            copy.perform()
        else:
            self._serial += 1
            copy.serial = self._serial
            self._in_flight.append(copy)
            self._machine.engine.pending.append(copy)

    def commit(self, rows: Array) -> None:
        """Close the open group of each warp."""
        machine = self._machine
        number = self.committed[rows]
        self.committed[rows] += 1
        if machine.log is not None:
            until = machine.clocks.until_now()
            for _ in range(len(self._closed_at), int(self.committed.max())):
                self._closed_at.append(np.zeros(self.committed.size, np.int32))
            closed = self._closed_at
            for group in np.unique(number):
                closed[group][rows[number == group]] = until
            machine.clocks.tick()

    def wait(self, rows: Array, open_groups: int) -> None:
        """Wait until at most so many of each warp's groups are in flight."""
        limits = np.full(self.committed.size, -1, np.int64)
        limits[rows] = self.committed[rows] - open_groups - 1
        self._force(limits)
        machine = self._machine
        if machine.log is None:
            return
        due = limits[rows] >= 0
        if due.any():
            machine.log.flush()
            chosen = rows[due]
            last = limits[chosen]
            until = np.array(
                [self._closed_at[g][r] for g, r in zip(last.tolist(), chosen.tolist(), strict=True)]
            )
            machine.clocks.learn(chosen, COPY_AGENT, until)

    def wait_all(self, rows: Array) -> None:
        """Wait for everything that the warps have issued."""
        limits = np.full(self.committed.size, -1, np.int64)
        limits[rows] = self.committed[rows]
        self._force(limits)
        machine = self._machine
        if machine.log is not None:
            machine.log.flush()
            until = np.full(rows.size, machine.clocks.until_now(), np.int32)
            machine.clocks.learn(rows, COPY_AGENT, until)
            machine.clocks.tick()

    def arrive(self, convoy: Convoy, mask: Array | None, index: Array, adds: bool, at: int) -> None:
        """The lanes arrive at mbarriers when their copies end; adds: in excess of its count."""
        machine, threads = self._machine, convoy.lanes(mask)
        for row in np.unique(threads // WARP).tolist():
            arrivals = []
            mine = threads[threads // WARP == row]
            places = index[mine - convoy.lo]
            for place in dict.fromkeys(places.tolist()):
                here = mine[places == place]
                barrier = machine.mbarriers.find(place, int(here[0]), at)
                barrier.pending += adds * here.size
                arrivals.append((barrier, here.size, int(here[0])))
            known = None
            if machine.log is not None:
                clocks, rows = machine.clocks, np.array([row])
                known = clocks.only_happened(clocks.released(rows)[0])  # before it is issued
                known[clocks.agents_of(rows, COPY_AGENT)] = clocks.until_now()
            machine.engine.issue(CopyArrival(machine, row, self._serial, arrivals, known, at))
        if machine.log is not None:
            machine.clocks.tick()

    def force(self, row: int, serial: int) -> None:
        """Perform the copies of a warp up to one of them."""
        pending = self._machine.engine.pending
        for copy in self._in_flight:
            if copy.serial <= serial and copy in pending and copy.is_of(row):
                pending.remove(copy)
                copy.perform()
        self._in_flight = [copy for copy in self._in_flight if copy in pending]

    def _force(self, limits: Array) -> None:
        left = []
        pending = self._machine.engine.pending
        for copy in self._in_flight:
            if copy not in pending:  # the schedule has performed it
                continue
            if copy.perform_up_to(limits):
                pending.remove(copy)
            else:
                left.append(copy)
        self._in_flight = left
