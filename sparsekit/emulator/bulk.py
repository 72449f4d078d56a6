"""Bulk copies in flight, their groups, and what is known when they have ended.

Source: PTX ISA, Data Movement and Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk.
Copies to shared memory complete on an mbarrier, copies to global memory in groups; groups are
counted by warp. Both read and write in the async proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import BULK_AGENT, BULK_STORE_AGENT
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.mbarrier_objects import MBarrier

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


@dataclass
class Signal:
    """Bytes that a copy reports to an mbarrier when it has ended."""

    barrier: MBarrier
    size_bytes: int


class Load:
    """A copy that completes on mbarriers. move: does it."""

    stream = None

    def __init__(
        self, machine: Machine, move: Callable[[], None], signals: list[Signal],
        known: Array | None, at: int, thread: int,
    ) -> None:  # fmt: skip
        self._machine, self._move, self._signals = machine, move, signals
        self._known, self._at, self._thread = known, at, thread

    def perform(self) -> None:
        self._move()
        for signal in self._signals:
            self._machine.mbarriers.complete_bytes(
                signal.barrier, signal.size_bytes, self._known, self._at, self._thread
            )


class GroupedCopy:
    """A copy that threads wait for by its group."""

    stream = None

    def __init__(self, move: Callable[[], None], row: int, group: int) -> None:
        self.perform = move
        self.row, self.group = row, group


class BulkCopies:
    """Starts bulk copies; per warp: how many groups it has committed, and when each was closed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        rows = machine.geometry.threads // WARP
        self._committed = np.zeros(rows, np.int64)
        self._closed_at: list[dict[int, int]] = [{} for _ in range(rows)]
        self._last: dict[int, tuple[int, int, int]] = {}

    def reset(self) -> None:
        self._committed[:] = 0
        for closed in self._closed_at:
            closed.clear()
        self._last.clear()

    def load(
        self, move: Callable[[], None], signals: list[Signal], at: int, thread: int, *,
        reads_shared: bool = False,
    ) -> None:  # fmt: skip
        """Start a copy that completes on mbarriers; its accesses have been logged."""
        machine = self._machine
        known = None
        if machine.log is not None:
            clocks, rows = machine.clocks, np.array([thread // WARP])
            for signal in signals:
                machine.mbarriers.order.check_visible(signal.barrier, at, thread)
            known = clocks.released(rows)[0]
            for signal in signals:
                known[signal.barrier.agent] = clocks.until_now()
            if reads_shared:
                known[clocks.agents_of(rows, BULK_AGENT)] = clocks.until_now()
            clocks.tick()
        machine.engine.issue(Load(machine, move, signals, known, at, thread))

    def store(self, move: Callable[[], None], at: int, thread: int) -> None:
        """Start a copy from shared memory that belongs to the warp's open group."""
        machine, row = self._machine, thread // WARP
        if machine.log is not None:
            machine.log.flush()
        self._last[row] = (machine.clocks.stamp(), at, thread)
        machine.engine.issue(GroupedCopy(move, row, int(self._committed[row])))

    def commit(self, rows: Array) -> None:
        """Close the open group of each warp."""
        machine = self._machine
        if machine.log is not None:
            machine.log.flush()
        for row in rows.tolist():
            self._closed_at[row][int(self._committed[row])] = machine.clocks.until_now()
            self._committed[row] += 1
        if machine.log is not None:
            machine.clocks.tick()

    def wait(self, rows: Array, open_groups: int, *, only_reads: bool) -> None:
        """Wait until at most so many of each warp's groups are in flight, or still read."""
        machine = self._machine
        limits = {row: int(self._committed[row]) - open_groups - 1 for row in rows.tolist()}
        machine.engine.force(
            lambda op: isinstance(op, GroupedCopy) and op.group <= limits.get(op.row, -1)
        )
        if machine.log is None:
            return
        machine.log.flush()
        for row, last in limits.items():
            if last >= 0:
                until = np.array([self._closed_at[row][last]], np.int32)
                machine.clocks.learn(np.array([row]), BULK_AGENT, until)
                if not only_reads:
                    machine.clocks.learn(np.array([row]), BULK_STORE_AGENT, until)

    def check_finished(self) -> None:
        """A block must not exit before its copies have read its shared memory."""
        machine = self._machine
        if machine.log is None or "race" not in machine.findings.checks:
            return
        clocks = machine.clocks
        for row, (stamp, at, thread) in self._last.items():
            agent = clocks.agent_of(row, BULK_AGENT)
            if clocks.known[row, agent] < stamp:
                text = "the copy may still read shared memory when its block exits: no wait for it"
                machine.fault("race", text, at, thread)
