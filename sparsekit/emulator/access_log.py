"""The log of memory accesses: checked in bulk, before anything that orders accesses.

Executing an access only notes it, and when it was. The checks come when a warp is about to learn of
others' doings (a barrier, a wait) or when much has piled up; until then no access can become
ordered with another one, so that nothing is lost by the delay. To pass on what it knows a warp need
not wait for them. Values that an access outside of all memory has read are garbage, and the launch
ends at the check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import ASYNC
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.global_checks import GlobalChecks
from sparsekit.emulator.shadow import SharedShadow

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.global_races import GlobalRaces
    from sparsekit.emulator.machine import Machine


_MOST_ELEMENTS = 1 << 20


@dataclass(slots=True)
class Access:
    """One executed access. index: bytes in the memory, per lane.

    stamp: when it was. lanes: which lanes of the convoy made it, None for all. packed: whether
    index holds those only.
    values: what a write stores, a vector per element. agent: who makes an asynchronous one.
    """

    space: str
    kind: int
    size_bytes: int
    index: Array
    lanes: Array | None
    packed: bool
    convoy: Convoy
    at: int
    stamp: int
    values: tuple[Array, ...] = ()
    agent: int | Array = 0

    def taken(self) -> tuple[Array, Array]:
        """(index, row) of each executing lane."""
        rows = self.convoy.rows
        if self.lanes is None:
            return self.index, rows
        return (self.index if self.packed else self.index[self.lanes]), rows[self.lanes]

    def thread(self, position: int) -> int:
        """The machine's number of the thread at a position among the executing lanes."""
        if self.lanes is None:
            return self.convoy.lo + position
        lanes = self.lanes.nonzero()[0] if self.lanes.dtype == np.bool_ else self.lanes
        return self.convoy.lo + int(lanes[position])


class Bucket:
    """Accesses of one kind and size, as one vector. index, rows: per lane of all of them.

    stamps: when they were, of agent 0; one number where that is the same for all.
    """

    def __init__(self, accesses: list[Access]) -> None:
        self.accesses = accesses
        self.size_bytes, self.kind = accesses[0].size_bytes, accesses[0].kind
        parts = [access.taken() for access in accesses]
        if len(parts) == 1:
            self.index, self.rows = parts[0]
        else:
            self.index = np.concatenate([index for index, _ in parts])
            self.rows = np.concatenate([rows for _, rows in parts])
        self.lengths = [index.size for index, _ in parts]
        self.stamps: int | Array = accesses[0].stamp
        if accesses[-1].stamp != self.stamps:
            times = np.array([access.stamp for access in accesses], np.int32)
            self.stamps = np.repeat(times, self.lengths)

    def origin(self, position: int) -> tuple[int, int]:
        """(instruction, thread) of the access at a position."""
        for access, length in zip(self.accesses, self.lengths, strict=True):
            if position < length:
                return access.at, access.thread(position)
            position -= length
        raise IndexError(position)

    def threads(self) -> Array:
        """Per lane the machine's number of the thread."""
        parts = [
            np.arange(a.convoy.n)[slice(None) if a.lanes is None else a.lanes] + a.convoy.lo
            for a in self.accesses
        ]
        return np.concatenate(parts)

    def stored(self, cell_bytes: int) -> Array:
        """What writes store, cell by cell."""
        parts = []
        for access in self.accesses:
            rows = np.stack(access.values, axis=1)
            parts.append(np.ascontiguousarray(rows).view(np.uint8).reshape(-1, cell_bytes))
        return np.concatenate(parts).view(f"V{cell_bytes}").reshape(-1)

    def agents(self) -> Array:
        """Per lane the agent of an asynchronous access."""
        parts = [
            np.broadcast_to(np.asarray(access.agent, np.int32), length)
            for access, length in zip(self.accesses, self.lengths, strict=True)
        ]
        return np.concatenate(parts)

    def instructions(self) -> Array:
        """Per lane the number of the instruction."""
        return np.repeat([access.at for access in self.accesses], self.lengths)


def _of_one_size(accesses: list[Access]) -> Iterator[list[Access]]:
    """Accesses of one kind by size; those of another time stay in order."""
    if len({access.size_bytes for access in accesses}) == 1:
        yield accesses
        return
    for _, group in groupby(accesses, key=lambda a: a.stamp):
        by_size: dict[int, list[Access]] = {}
        for access in group:
            by_size.setdefault(access.size_bytes, []).append(access)
        yield from by_size.values()


class AccessLog:
    """All accesses of a batch that are not checked yet, and what is known from those that are."""

    def __init__(self, machine: Machine, races: GlobalRaces | None) -> None:
        self._machine = machine
        self._pending: list[Access] = []
        self._elements = 0
        self._flushing = False
        self._shared = SharedShadow(machine)
        self._global = GlobalChecks(machine, races)

    def start_batch(self) -> None:
        self._pending.clear()
        self._elements = 0
        self._shared.reset()
        self._global.reset()

    def add(
        self, space: str, kind: int, size_bytes: int, index: Array, lanes: Array | None,
        packed: bool, convoy: Convoy, at: int, values: tuple[Array, ...] = (),
        agent: int | Array = 0,
    ) -> None:  # fmt: skip
        """Note an access; index and values must not change afterwards."""
        access = Access(
            space, kind, size_bytes, index, lanes, packed, convoy, at,
            self._machine.clocks.stamp(), values, agent,
        )  # fmt: skip
        self._pending.append(access)
        self._elements += index.size
        if self._elements > _MOST_ELEMENTS:
            self.flush()

    def release(self, rows: Array) -> Array:
        """What the warps pass on to those that wait for them: [rows, agents]."""
        known = self._machine.clocks.released(rows)
        self._machine.clocks.tick()
        return known

    def acquire(self, rows: Array, known: Array) -> None:
        """The warps learn what others passed on."""
        self.flush()
        self._machine.clocks.acquire(rows, known)

    def flush(self) -> None:
        """Check what has been noted. Raises StopLaunch after a fatal fault."""
        if not self._pending or self._flushing:
            return
        pending, self._pending, self._elements = self._pending, [], 0
        self._flushing = True
        try:
            pending.sort(key=lambda a: a.space)  # what one has is nothing to another
            for (space, _), group in groupby(pending, key=lambda a: (a.space, a.kind)):
                for accesses in _of_one_size(list(group)):
                    bucket = Bucket(accesses)
                    if not bucket.index.size:
                        continue
                    if space == "shared":
                        is_async = accesses[0].kind in ASYNC
                        self._machine.remote.note(bucket, bucket.agents() if is_async else None)
                        self._shared.check(bucket)
                    elif space == "global":
                        self._global.check(bucket)
                    else:
                        self._global.check_local(bucket)
        finally:
            self._flushing = False
