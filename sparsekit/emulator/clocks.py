"""Vector clocks: what each warp knows to have happened, of every agent of its unit.

An agent is what accesses memory on its own: a warp, its atomic accesses, its asynchronous copies.
One clock ticks for the whole batch at each release; an access is stamped with the time and its
agent, packed into one int32. A warp knows an agent's accesses up to some time; an earlier access is
ordered before what the warp does next, a later one is not.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.errors import UsageError

KINDS = ("warp", "atomic accesses of warp", "cp.async of warp")
"""The kinds of agent; one of each per warp."""
WARP_AGENT, ATOMIC_AGENT, COPY_AGENT = range(len(KINDS))
_FOREVER = np.iinfo(np.int32).max


class Clocks:
    """known: int32 [warps of the batch, agents of a unit], the packed time up to which it knows."""

    def __init__(self, rows: int, warps_per_unit: int) -> None:
        self.warps = warps_per_unit
        self.agents = len(KINDS) * warps_per_unit
        self._bits = int(self.agents).bit_length()
        self.agent_mask = np.int32((1 << self._bits) - 1)
        self._last = (1 << (31 - self._bits)) - 2
        self.units = rows // warps_per_unit
        self.warp_of_row = np.arange(rows) // self.units
        self.known = np.zeros((rows, self.agents), np.int32)
        self.floor = np.zeros(rows, np.int32)
        self.reset()

    def reset(self) -> None:
        """Start a batch: nothing has happened."""
        self.time = 1
        rows = np.arange(len(self.known))
        self.known[:] = self.agent_mask
        self.known[rows, self.warp_of_row] = _FOREVER
        self.known[rows, self.warps + self.warp_of_row] = _FOREVER
        self._floor_is_old = True

    def stamp(self) -> int:
        """The present, packed for agent 0: the agent's number is added."""
        return self.time << self._bits

    def until_now(self) -> int:
        """What a warp knows of an agent after waiting for all it has done so far."""
        return self.stamp() | int(self.agent_mask)

    def tick(self) -> None:
        """The present becomes the past."""
        self.time += 1
        if self.time > self._last:
            raise UsageError(
                "more synchronisation than the race check can number in one launch; "
                "switch off the check `race`, or launch fewer blocks"
            )

    def agent(self, stamp: int) -> tuple[int, int]:
        """(kind, warp of the unit) of the agent that made a stamp."""
        return divmod(stamp & int(self.agent_mask), self.warps)

    def kind_of(self, stamps: Array) -> Array:
        """The kinds of the agents that made stamps."""
        kinds: Array = (stamps & self.agent_mask) // self.warps
        return kinds

    def released(self, rows: Array) -> Array:
        """What the warps know, their own doings up to now included: [rows, agents]."""
        known = self.known[rows]
        own = self.warp_of_row[rows]
        index = np.arange(len(rows))
        known[index, own] = known[index, self.warps + own] = self.until_now()
        return known

    def acquire(self, rows: Array, known: Array) -> None:
        """The warps learn what known says; [agents] or [rows, agents]."""
        self.known[rows] = np.maximum(self.known[rows], known)
        self._floor_is_old = True

    def learn(self, rows: Array, kind: int, until: Array) -> None:
        """Each warp learns of its own agent of that kind up to a packed time."""
        column = kind * self.warps + self.warp_of_row[rows]
        self.known[rows, column] = np.maximum(self.known[rows, column], until)

    def floors(self) -> Array:
        """Per row the packed time up to which it knows of every warp."""
        if self._floor_is_old:
            self.floor = self.known[:, : self.warps].min(axis=1)
            self._floor_is_old = False
        return self.floor
