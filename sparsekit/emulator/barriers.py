"""Barriers of a block: who has arrived, who waits, and what is wrong when nothing moves.

Source: PTX ISA, Parallel Synchronization and Communication Instructions: bar, barrier. A warp has
arrived, and counts with all 32 lanes, when those of its lanes that have not exited have. Without a
thread count a barrier expects all warps that have not exited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


BARRIERS = 16  # of one block
_ALL_LANES = (1 << WARP) - 1


@dataclass
class Arrival:
    """What an instruction does at a barrier. resume: the block after it.

    waits: whether its threads stay until the barrier completes.

    result: for bar.red, what the threads that wait take from (true, all) contributions.
    """

    index: int
    resume: int
    waits: bool
    predicate: Array | None = None
    result: Callable[[Array, int, int], None] | None = None


@dataclass
class Waiting:
    """Threads that wait, and where they go on."""

    threads: Array
    rows: Array
    arrival: Arrival


@dataclass
class Barrier:
    """One barrier in use. expected: in threads, None for all that have not exited.

    lanes: by row of a warp, bits of the lanes that have arrived.
    """

    index: int
    expected: int | None
    lanes: dict[int, int] = field(default_factory=dict)
    true: int = 0
    contributions: int = 0
    known: Array | None = None
    waiting: list[Waiting] = field(default_factory=list)


class Barriers:
    """All barriers of a batch, by block and number."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        geometry = machine.geometry
        self._block = geometry.batch_block
        blocks = self._block[::WARP]  # per row
        self._rows_by_block = np.argsort(blocks, kind="stable").reshape(int(blocks.max()) + 1, -1)
        self._in_use: dict[tuple[int, int], Barrier] = {}

    def reset(self) -> None:
        self._in_use.clear()

    def arrive(
        self, convoy: Convoy, mask: Array | None, numbers: Array, counts: Array | None,
        arrival: Arrival,
    ) -> None:  # fmt: skip
        """Threads arrive, each at the barrier that it names."""
        machine = self._machine
        machine.progress += 1
        threads = convoy.lanes(mask)
        own = numbers if mask is None else numbers[mask]
        highest = int(own.max())
        if highest >= BARRIERS:
            machine.fault("barrier", "a barrier number above 15", arrival.index, int(threads[0]))
        whole = self._whole_blocks(threads, counts, arrival)
        if whole is not None and np.all(numbers == numbers[0]):
            self._pass(whole)
            machine.move(convoy, mask, arrival.resume)
            return
        if arrival.waits:
            machine.park(convoy, mask)
        else:
            machine.move(convoy, mask, arrival.resume)
        key = self._block[threads] * BARRIERS + own.astype(np.int64)
        named = np.unique(key) if highest >= BARRIERS else np.flatnonzero(np.bincount(key))
        for one in named.tolist():
            chosen = threads[key == one]
            count = None if counts is None else int(counts[chosen[0] - convoy.lo])
            self._arrive(divmod(one, BARRIERS), chosen, count, convoy, arrival)

    def _whole_blocks(self, threads: Array, counts: Array | None, arrival: Arrival) -> Array | None:
        """The blocks whose threads all arrive at once, where nobody else has; None if not so."""
        if self._in_use or not arrival.waits or arrival.predicate is not None:
            return None
        block_threads = WARP * self._rows_by_block.shape[1]
        if counts is not None and not np.all(counts == block_threads):
            return None
        present = np.bincount(self._block[threads], minlength=len(self._rows_by_block))
        blocks: Array = present.nonzero()[0]
        return blocks if np.all(present[blocks] == block_threads) else None

    def _pass(self, blocks: Array) -> None:
        """The threads of blocks pass a barrier: each learns of all others of its block."""
        log, rows = self._machine.log, self._rows_by_block[blocks]
        if log is not None:
            known = log.release(rows.reshape(-1)).reshape(*rows.shape, -1).max(axis=1)
            log.acquire(rows.reshape(-1), np.repeat(known, rows.shape[1], axis=0))

    def _arrive(
        self, key: tuple[int, int], threads: Array, count: int | None, convoy: Convoy,
        arrival: Arrival,
    ) -> None:  # fmt: skip
        machine, first = self._machine, int(threads[0])
        if count is not None and (count % WARP or count == 0):
            text = f"a thread count of {count}, which is no multiple of {WARP}"
            machine.fault("barrier", text, arrival.index, first)
        barrier = self._in_use.get(key)
        if barrier is None:
            barrier = self._in_use[key] = Barrier(arrival.index, count)
        elif barrier.expected != count:
            text = f"barrier {key[1]} is awaited with {count or 'all'} threads here and with " + (
                f"{barrier.expected or 'all'} in PTX line {self._line(barrier.index)}"
            )
            machine.fault("barrier", text, arrival.index, first)
        rows, counts = rows_of(threads)
        for row, lane_count in zip(rows.tolist(), counts.tolist(), strict=True):
            lanes = _ALL_LANES
            if lane_count < WARP:
                lanes = sum(1 << t % WARP for t in threads[threads // WARP == row].tolist())
            if barrier.lanes.get(row, 0) & lanes:
                text = f"warp {self._warp(row)} arrives twice at barrier {key[1]} before it is free"
                machine.fault("barrier", text, arrival.index, first)
            barrier.lanes[row] = barrier.lanes.get(row, 0) | lanes
        if arrival.predicate is not None:
            barrier.contributions += len(threads)
            barrier.true += int(np.count_nonzero(arrival.predicate[threads - convoy.lo]))
        if machine.log is not None:
            known = machine.log.release(rows).max(axis=0)
            barrier.known = known if barrier.known is None else np.maximum(barrier.known, known)
        if arrival.waits:
            barrier.waiting.append(Waiting(threads, rows, arrival))
        self._complete(key, barrier, arrival.index)

    def _complete(self, key: tuple[int, int], barrier: Barrier, index: int) -> None:
        expected = barrier.expected
        if expected is None:
            expected = self._remaining(key[0])
        arrived = self._arrived(barrier)
        if arrived > expected:
            text = f"{arrived} threads arrive at barrier {key[1]}, which is for {expected}"
            self._machine.fault("barrier", text, index, None)
        if arrived < expected:
            return
        del self._in_use[key]
        for waiting in barrier.waiting:
            if self._machine.log is not None and barrier.known is not None:
                self._machine.log.acquire(waiting.rows, barrier.known)
            if waiting.arrival.result is not None:
                waiting.arrival.result(waiting.threads, barrier.true, barrier.contributions)
            self._machine.wake(waiting.threads, waiting.arrival.resume)

    def threads_left(self) -> None:
        """Threads have exited: barriers that wait for them may be complete now."""
        for key, barrier in list(self._in_use.items()):
            if key in self._in_use and self._remaining(key[0]):
                self._complete(key, barrier, barrier.index)

    def _arrived(self, barrier: Barrier) -> int:
        """Threads, by whole warps."""
        live = self._machine.live
        count = 0
        for row, lanes in barrier.lanes.items():
            if lanes == _ALL_LANES:
                count += 1
                continue
            alive = live[row * WARP : (row + 1) * WARP]
            count += all(lanes >> lane & 1 for lane in alive.nonzero()[0].tolist())
        return WARP * count

    def _remaining(self, block: int) -> int:
        """The threads of a block's warps that have not exited."""
        live = self._machine.live & (self._block == block)
        return WARP * int(np.count_nonzero(live.reshape(-1, WARP).any(axis=1)))

    # ---- what is wrong

    def report_deadlock(self) -> None:
        """Say who waits for whom; nothing can run. Raises StopLaunch."""
        waiting = [(k, b) for k, b in self._in_use.items() if b.waiting]
        others = [self._machine.mbarriers.waiting(), self._machine.cluster_barrier.waiting()]
        elsewhere = [found for found in others if found is not None]
        if not waiting and elsewhere:
            texts = "; ".join(text for text, _, _ in elsewhere)
            self._machine.fault("deadlock", texts, *elsewhere[0][1:])
        if not waiting:
            self._machine.fault("deadlock", "nothing can run and nothing is in flight", None, None)
        parts = [self._description(key, barrier) for key, barrier in waiting]
        parts += [text for text, _, _ in elsewhere]
        first = waiting[0][1].waiting[0]
        self._machine.fault(
            "deadlock", "; ".join(parts), first.arrival.index, int(first.threads[0])
        )

    def _description(self, key: tuple[int, int], barrier: Barrier) -> str:
        block, number = key
        machine = self._machine
        expected = barrier.expected or self._remaining(block)
        waiting = {self._warp(row) for w in barrier.waiting for row in w.rows}
        present = np.flatnonzero(self._block == block)
        warps = {self._warp(row) for row in np.unique(present // WARP)}
        live = {self._warp(row) for row in np.unique(present[machine.live[present]] // WARP)}
        gone = f", warps {numbers_text(warps - live)} have exited" if warps - live else ""
        where = machine.geometry.block_of(int(present[0]))
        return (
            f"warps {numbers_text(waiting)} of block {where} wait at barrier {number} "
            f"(PTX line {self._line(barrier.index)}), where {self._arrived(barrier)} of {expected} "
            f"threads have arrived{gone}"
        )

    def check_finished(self) -> None:
        """At the end of a batch no arrival may be left over."""
        for (block, number), barrier in self._in_use.items():
            thread = int(np.flatnonzero(self._block == block)[0])
            text = f"{self._arrived(barrier)} arrivals at barrier {number} that nobody waits for"
            self._machine.fault("barrier", text, barrier.index, thread)

    def _warp(self, row: int) -> int:
        return int(self._machine.geometry.warp[int(row) * WARP])

    def _line(self, index: int) -> int:
        return self._machine.line(index)


def rows_of(threads: Array) -> tuple[Array, Array]:
    """(the rows of threads in ascending order, how many of the threads are in each)."""
    rows = threads // WARP
    counts = np.bincount(rows - rows[0])
    found = np.flatnonzero(counts)
    return found + rows[0], counts[found]


def numbers_text(values: set[int]) -> str:
    """Warp numbers for a message, runs shortened: 0-3, 7."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
