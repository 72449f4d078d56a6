"""Vector clocks: what each warp knows to have happened, of every agent of its unit.

An agent is what accesses memory on its own: a warp, its atomic accesses, its asynchronous
operations of one kind, or the copies that complete on one mbarrier. One clock ticks for the whole
batch at each release; an access is stamped with the time and its agent, packed into one int32. A
warp knows an agent's accesses up to some time; an earlier access is ordered before what the warp
does next, a later one is not. Of kernels with asynchronous operations a second part of what a warp
knows says the same of accesses that a proxy fence has made visible to the async proxy, a third one
of those in global memory; with tensor memory a fourth part says it of operations that
tcgen05.fence::before_thread_sync has ordered. What only has happened, whoever may see it, is the
last part, of warps alone: relaxed arrivals and those of copies pass on that much.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.errors import UsageError

KINDS = (
    "warp", "atomic accesses of warp", "cp.async of warp", "mbarrier initialisation of warp",
    "wgmma of warp", "bulk copies of warp", "bulk stores of warp",
    "tcgen05 of warp", "tcgen05.ld of warp", "tcgen05.st of warp",
    "copies that complete on mbarrier",
)  # fmt: skip
"""The kinds of agent; one of each per warp, of the last one per mbarrier."""
(
    WARP_AGENT, ATOMIC_AGENT, COPY_AGENT, INIT_AGENT, WGMMA_AGENT, BULK_AGENT, BULK_STORE_AGENT,
    TENSOR_AGENT, TENSOR_LOAD_AGENT, TENSOR_STORE_AGENT, BARRIER_AGENT,
) = range(len(KINDS))  # fmt: skip
_PLAIN_KINDS = COPY_AGENT + 1  # what kernels without asynchronous chapters need
_TENSOR_KINDS = (TENSOR_AGENT, TENSOR_LOAD_AGENT, TENSOR_STORE_AGENT)
SHARED_PART, GLOBAL_PART, TENSOR_PART = 1, 2, 3  # of what a warp knows
_FOREVER = np.iinfo(np.int32).max


class Clocks:
    """known: int32 [warps of the batch, width], the packed time up to which it knows.

    width: the agents of a unit, once for each part, and its warps. ordered: what
    tcgen05.fence::after_thread_sync has ordered before the warp's operations on tensor memory.
    """

    def __init__(
        self, rows: int, warps_per_unit: int, barriers: int = 0, *, tensor_memory: bool = False
    ) -> None:
        self.warps = warps_per_unit
        self.proxies = barriers > 0
        self.kinds = BARRIER_AGENT if self.proxies else _PLAIN_KINDS
        self.agents = self.kinds * warps_per_unit + barriers
        self._parts = 4 if tensor_memory else 3 if self.proxies else 1
        self.happened = self.agents * self._parts  # where the last part starts
        self.width = self.happened + (warps_per_unit if self.proxies else 0)
        self._bits = int(self.agents).bit_length()
        self.agent_mask = np.int32((1 << self._bits) - 1)
        self._last = (1 << (31 - self._bits)) - 2
        self.units = rows // warps_per_unit
        self.warp_of_row = np.arange(rows) // self.units
        self.known = np.zeros((rows, self.width), np.int32)
        self.ordered = np.zeros((rows, self.agents if tensor_memory else 0), np.int32)
        self.floor = np.zeros(rows, np.int32)
        self.reset()

    def reset(self) -> None:
        """Start a batch: nothing has happened."""
        self.time = 1
        rows = np.arange(len(self.known))
        self.known[:] = self.agent_mask
        for kind in self._own_kinds():
            self.known[rows, kind * self.warps + self.warp_of_row] = _FOREVER
        if self.proxies:
            self.known[rows, self.happened + self.warp_of_row] = _FOREVER
        if self.ordered.size:
            self.ordered[:] = self.agent_mask
            for kind in _TENSOR_KINDS:
                self.ordered[rows, kind * self.warps + self.warp_of_row] = _FOREVER
        self._floor_is_old = True

    def _own_kinds(self) -> tuple[int, ...]:
        """The agents that are the warp itself: what it does is in order with them."""
        if self.proxies:
            return WARP_AGENT, ATOMIC_AGENT, INIT_AGENT
        return WARP_AGENT, ATOMIC_AGENT

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
                "more synchronisation than the checks can number in one launch; "
                "switch them all off, or launch fewer blocks"
            )

    def agent(self, stamp: int) -> tuple[int, int]:
        """(kind, warp of the unit or number of the mbarrier) of the agent that made a stamp."""
        agent = stamp & int(self.agent_mask)
        if agent >= self.kinds * self.warps:
            return BARRIER_AGENT, agent - self.kinds * self.warps
        return divmod(agent, self.warps)

    def kind_of(self, stamps: Array) -> Array:
        """The kinds of the agents that made stamps."""
        kinds: Array = np.minimum((stamps & self.agent_mask) // self.warps, BARRIER_AGENT)
        return kinds

    def agents_of(self, rows: Array, kind: int) -> Array:
        """The agents of a kind of the warps."""
        found: Array = (kind * self.warps + self.warp_of_row[rows]).astype(np.int32)
        return found

    def agent_of(self, row: int, kind: int) -> int:
        """The agent of a kind of one warp."""
        return kind * self.warps + int(self.warp_of_row[row])

    def barrier_agent(self, number: int) -> int:
        """The agent of the copies that complete on the mbarrier of a number. Raises UsageError."""
        agent = self.kinds * self.warps + number
        if agent >= self.agents:
            raise UsageError(f"more than {number} mbarriers in one block or cluster")
        return agent

    def nothing(self) -> Array:
        """What somebody knows who knows nothing: [width]."""
        return np.zeros(self.width, np.int32)

    def released(self, rows: Array) -> Array:
        """What the warps know, their own doings up to now included: [rows, width]."""
        known = self.known[rows]
        own = self.warp_of_row[rows]
        index = np.arange(len(rows))
        for kind in self._own_kinds():
            known[index, kind * self.warps + own] = self.until_now()
        if self.proxies:
            known[index, self.happened + own] = self.until_now()
        return known

    def only_happened(self, known: Array) -> Array:
        """Of what is known, what has happened before: nothing of it need be visible."""
        kept = np.zeros_like(known)
        kept[..., self.happened :] = known[..., self.happened :]
        return kept

    def _part(self, part: int) -> slice:
        return slice(part * self.agents, (part + 1) * self.agents)

    def fence_proxy(self, rows: Array, parts: tuple[int, ...]) -> None:
        """What the warps know becomes visible to the async proxy, in shared or global memory."""
        known = self.released(rows)[:, : self.agents]
        for part in map(self._part, parts):
            self.known[rows, part] = np.maximum(self.known[rows, part], known)
        self.tick()

    def fence_tensor(self, rows: Array, *, before: bool) -> None:
        """tcgen05.fence before or after what orders the warps with others."""
        part = self._part(TENSOR_PART)
        if not before:
            self.ordered[rows] = np.maximum(self.ordered[rows], self.known[rows, part])
            return
        self.known[rows, part] = np.maximum(self.known[rows, part], self.ordered[rows])
        for kind in _TENSOR_KINDS:
            agents = TENSOR_PART * self.agents + self.agents_of(rows, kind)
            self.known[rows, agents] = self.until_now()
        self.tick()

    def let_know(self, known: Array, agent: int) -> None:
        """Who waits for an agent's operations knows of them, as if by a fence before."""
        known[agent] = self.until_now()
        if self._parts > TENSOR_PART:
            known[TENSOR_PART * self.agents + agent] = self.until_now()

    def publish(self, rows: Array, kind: int) -> None:
        """What the warps' agents of a kind have done becomes visible to the async proxy."""
        self.known[rows, self.agents + self.agents_of(rows, kind)] = self.until_now()

    def unfenced(self, rows: Array, stamps: Array, part: int = SHARED_PART) -> Array:
        """Which stamps the async proxy may not see yet when the warps act in it."""
        agents = stamps & self.agent_mask
        known = self.known.reshape(-1).take(rows * self.width + part * self.agents + agents)
        late: Array = (stamps > known) & (agents < INIT_AGENT * self.warps)
        return late

    def acquire(self, rows: Array, known: Array) -> None:
        """The warps learn what known says; [width] or [rows, width]."""
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
