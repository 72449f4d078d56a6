"""The barrier of a cluster of blocks: arrive, go on, and wait later.

Source: PTX ISA, Parallel Synchronization and Communication Instructions: barrier.cluster. A phase
completes when all threads of the cluster that have not exited have arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import INIT_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class ClusterBarrier:
    """Per thread how often it has arrived, per unit how many phases have completed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._unit = machine.geometry.unit
        units, width = machine.geometry.units, machine.clocks.width
        self._arrived = np.zeros(machine.geometry.threads, np.int64)
        self._waited = np.zeros(machine.geometry.threads, np.int64)
        self._phase = np.zeros(units, np.int64)
        self._arriving = np.zeros((units, width), np.int32)
        self._completed = np.zeros((units, width), np.int32)
        self._published = np.zeros((len(machine.clocks.known), width), np.int32)
        self._resume = np.full(machine.geometry.threads, -1, np.int64)
        self._index = 0

    def reset(self) -> None:
        for table in (self._arrived, self._waited, self._phase, self._arriving, self._completed,
                      self._published):  # fmt: skip
            table[...] = 0
        self._resume[:] = -1

    def arrive(self, convoy: Convoy, mask: Array | None, index: int, *, release: bool) -> None:
        machine, threads = self._machine, convoy.lanes(mask)
        ahead = self._arrived[threads] > self._waited[threads]
        if ahead.any():
            text = "a second arrival at the cluster's barrier without a wait between"
            machine.fault("barrier", text, index, int(threads[int(ahead.argmax())]))
        self._arrived[threads] += 1
        rows = convoy.warps(mask)
        if machine.log is not None:
            known = machine.log.release(rows)
            if not release:
                happened = machine.clocks.only_happened(known)
                known = np.maximum(self._published[rows], happened)
                fenced = machine.fences.passed_on(rows)
                known = known if fenced is None else np.maximum(known, fenced)
            np.maximum.at(self._arriving, self._unit[rows * WARP], known)
        self._complete(np.unique(self._unit[threads]))

    def publish_mbarriers(self, rows: Array) -> None:
        """What the warps' arrivals that are relaxed pass on from now on."""
        clocks = self._machine.clocks
        if clocks.proxies:
            agents = clocks.agents_of(rows, INIT_AGENT)
            for part in (0, clocks.agents):  # also to the async proxy
                self._published[rows, part + agents] = clocks.until_now()
            clocks.publish(rows, INIT_AGENT)
            clocks.tick()

    def wait(self, convoy: Convoy, mask: Array | None, index: int, resume: int) -> None:
        machine, threads = self._machine, convoy.lanes(mask)
        behind = self._arrived[threads] <= self._waited[threads]
        if behind.any():
            text = "a wait at the cluster's barrier without an arrival before"
            machine.fault("barrier", text, index, int(threads[int(behind.argmax())]))
        self._index = index
        machine.park(convoy, mask)
        self._resume[threads] = resume
        self._release(threads)

    def threads_left(self) -> None:
        """Threads have exited: the phases that wait for them may be complete now."""
        if self._arrived.any():
            self._complete(np.unique(self._unit))

    def _complete(self, units: Array) -> None:
        machine = self._machine
        for unit in units.tolist():
            members = (self._unit == unit) & machine.live
            if members.any() and (self._arrived[members] > self._phase[unit]).all():
                self._phase[unit] += 1
                self._completed[unit] = self._arriving[unit]
                self._release(np.flatnonzero((self._unit == unit) & (self._resume >= 0)))

    def _release(self, threads: Array) -> None:
        """Let those go on whose phase has completed."""
        machine = self._machine
        free = threads[self._arrived[threads] <= self._phase[self._unit[threads]]]
        if not free.size:
            return
        self._waited[free] = self._arrived[free]
        if machine.log is not None:
            rows = np.unique(free // WARP)
            machine.log.acquire(rows, self._completed[self._unit[rows * WARP]])
        machine.at[free] = self._resume[free]
        self._resume[free] = -1

    def waiting(self) -> tuple[str, int, int] | None:
        """(who waits for whom, instruction, thread) when threads wait; None when none do."""
        threads = np.flatnonzero(self._resume >= 0)
        if not threads.size:
            return None
        unit = int(self._unit[threads[0]])
        members = np.flatnonzero((self._unit == unit) & self._machine.live)
        absent = members[self._arrived[members] <= self._phase[unit]]
        warps = np.unique(absent // WARP).size
        text = f"{threads.size} threads wait at the cluster's barrier, where {warps} warps"
        return f"{text} have not arrived", self._index, int(threads[0])
