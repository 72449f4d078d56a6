"""Order that fences and strong accesses make: between blocks, and between the warps of a block.

Source: PTX ISA, Memory Consistency Model, simplified. A strong write publishes at its address what
its agent knows, if it is a release, else what the agent knew at its last fence. A strong read of
that address takes this in, at once if it is an acquire, else at its agent's next fence. In global
memory the agent is a block: what any of its threads did before counts. In shared memory it is a
warp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access import generic_windows
from sparsekit.emulator.arrays import Array

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.global_races import GlobalRaces
    from sparsekit.emulator.machine import Machine


_RELEASES, _ACQUIRES = ("release", "acq_rel"), ("acquire", "acq_rel")
_BEYOND_BLOCK = ("gpu", "sys", "cluster")


class _Exchange:
    """What agents have published and taken in, in one memory.

    released(agent) -> all that the agent knows now; learn(agent, known).
    """

    def __init__(
        self, released: Callable[[int], Array], learn: Callable[[int, Array], None]
    ) -> None:
        self._released, self._learn = released, learn
        self._published: dict[int, Array] = {}
        self._fenced: dict[int, Array] = {}
        self._observed: dict[int, Array] = {}

    def fence(self, agent: int) -> None:
        observed = self._observed.pop(agent, None)
        if observed is not None:
            self._learn(agent, observed)
        self._fenced[agent] = self._released(agent)

    def fenced(self, agent: int) -> Array | None:
        """What the agent knew at its last fence."""
        return self._fenced.get(agent)

    def observe_known(self, agent: int, known: Array) -> None:
        """The agent learns this at its next fence."""
        before = self._observed.get(agent)
        self._observed[agent] = known.copy() if before is None else np.maximum(before, known)

    def publish(self, agent: int, address: int, order: str) -> None:
        known = self._released(agent) if order in _RELEASES else self._fenced.get(agent)
        if known is not None:
            before = self._published.get(address)
            self._published[address] = known if before is None else np.maximum(before, known)

    def observe(self, agent: int, address: int, order: str) -> None:
        known = self._published.get(address)
        if known is None:
            return
        if order in _ACQUIRES:
            self._learn(agent, known)
            return
        self.observe_known(agent, known)


class Fences:
    """The exchanges of a batch's shared memory and of the launch's global memory."""

    def __init__(self, machine: Machine, races: GlobalRaces | None) -> None:
        self._machine = machine
        self._global = None
        if races is not None:
            self._global = _Exchange(races.released, races.learn)
        self._shared: _Exchange | None = None

    def reset(self) -> None:
        log = self._machine.log
        if log is not None:  # races are not all that order matters to: mbarriers, proxies, exits
            self._shared = _Exchange(
                lambda row: log.release(np.array([row]))[0],
                lambda row, known: log.acquire(np.array([row]), known),
            )

    def fence(self, convoy: Convoy, mask: Array | None, level: str) -> None:
        """membar, fence: in the warps, and beyond the level of a block in the blocks, of a mask."""
        if self._shared is not None:
            for row in convoy.warps(mask).tolist():
                self._shared.fence(row)
        if self._global is not None and level in _BEYOND_BLOCK:
            assert self._machine.log is not None
            self._machine.log.flush()
            blocks = self._machine.block_of_row[convoy.warps(mask)]
            for block in np.unique(blocks).tolist():
                self._global.fence(block)

    def passed_on(self, rows: Array) -> Array | None:
        """What a relaxed arrival of warps passes on: what they knew at their last fences."""
        found = [] if self._shared is None else [self._shared.fenced(row) for row in rows.tolist()]
        known = [one for one in found if one is not None]
        return np.max(known, axis=0) if known else None

    def learn_later(self, rows: Array, known: Array) -> None:
        """What warps that have waited, relaxed, learn at their next fences."""
        if self._shared is not None:
            for row in rows.tolist():
                self._shared.observe_known(row, known)

    def access(
        self, convoy: Convoy, space: str, address: Array, offset: int, mask: Array | None,
        order: str, scope: str, what: str,
    ) -> None:  # fmt: skip
        """A strong access; what: r, w or rw."""
        if self._shared is None and self._global is None:
            return
        for where, own, lanes in generic_windows(convoy, space, address, offset, mask):
            chosen = lanes.nonzero()[0]
            rows = convoy.rows[chosen]
            if where == "shared":
                exchange, agents = self._shared, rows
                index = convoy.shared_index(own, offset)
            else:
                exchange, agents = self._global, self._machine.block_of_row[rows]
                index = convoy.global_index(own, offset)
                if scope == "cta":
                    continue
            if exchange is None:
                continue
            assert self._machine.log is not None
            self._machine.log.flush()
            pairs = dict.fromkeys(zip(agents.tolist(), index[chosen].tolist(), strict=True))
            for agent, cell in pairs:
                if "r" in what:
                    exchange.observe(agent, cell, order)
                if "w" in what:
                    exchange.publish(agent, cell, order)
