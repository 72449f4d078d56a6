"""Accesses of one block of a cluster to the shared memory of another, which must not have exited.

Source: PTX ISA, Cluster of CTAs; CUDA C++ Programming Guide, Distributed Shared Memory. The block
whose memory it is must know that an access has happened when it exits; what it only may have seen
by luck is a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import WARP_AGENT
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.machine import Machine


class RemoteAccesses:
    """By block: the last access to its memory of each agent of other blocks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        geometry = machine.geometry
        self._block = geometry.batch_block
        self._block_of_row = self._block[::WARP]
        self._last: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._exited: set[int] = set()
        self._checks = "exited-block" in machine.findings.checks and geometry.shape.cluster_size > 1

    def reset(self) -> None:
        self._last.clear()
        self._exited.clear()

    def note(self, bucket: Bucket, agents: Array | None) -> None:
        """Note the accesses of a bucket that reach another block. agents: of asynchronous ones."""
        if not self._checks:
            return
        targets = bucket.index // self._machine.shared_stride
        far = targets != self._block_of_row[bucket.rows]
        if not far.any():
            return
        clocks = self._machine.clocks
        own = clocks.agents_of(bucket.rows, WARP_AGENT) if agents is None else agents
        where = far.nonzero()[0]
        if not isinstance(bucket.stamps, int):
            where = where[::-1]  # the last of each counts
        _, first = np.unique(targets[where] * clocks.agents + own[where], return_index=True)
        for position in where[first].tolist():
            at, thread = bucket.origin(position)
            when = bucket.stamps if isinstance(bucket.stamps, int) else bucket.stamps[position]
            self._add(int(targets[position]), int(own[position]), int(when), at, thread)

    def arrive(self, place: int, thread: int, at: int) -> None:
        """Note the use of an mbarrier by a thread."""
        if self._checks:
            target = place // self._machine.shared_stride
            if target != int(self._block[thread]):
                rows = np.array([thread // WARP])
                agent = int(self._machine.clocks.agents_of(rows, WARP_AGENT)[0])
                self._add(target, agent, self._machine.clocks.stamp(), at, thread)

    def _add(self, target: int, agent: int, now: int, at: int, thread: int) -> None:
        if target in self._exited:
            text = "the shared memory of a block that may have exited is accessed"
            self._machine.findings.add(self._machine.geometry, "exited-block", text, at, thread)
        if (target, agent) not in self._last or self._last[target, agent][0] <= now | agent:
            self._last[target, agent] = (now | agent, at, thread)

    def threads_left(self) -> None:
        """Threads have exited: blocks that none is left of must know who has accessed them."""
        machine = self._machine
        if not self._checks or machine.log is None:
            return
        machine.log.flush()
        alive = set(np.unique(self._block[machine.live]).tolist())
        for block in np.unique(self._block).tolist():
            if block not in alive and block not in self._exited:
                self._exited.add(block)
                self._check(block)

    def _check(self, block: int) -> None:
        machine = self._machine
        rows = np.flatnonzero(self._block_of_row == block)
        known = machine.clocks.known[rows].max(axis=0)
        for (target, agent), (stamp, at, thread) in self._last.items():
            if target == block and known[agent] < stamp:
                rank = block % machine.cluster_size
                text = (
                    f"accesses the shared memory of block {rank} of the cluster, and nothing "
                    "orders that before that block exits"
                )
                machine.fault("exited-block", text, at, thread)
