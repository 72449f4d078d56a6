"""Barrier objects in shared memory: arrivals, bytes of copies, phases, and who waits for them.

Source: PTX ISA, Parallel Synchronization and Communication Instructions: mbarrier. A phase
completes when no arrival and no byte is awaited. What those knew that arrived, and that issued the
copies, is known to whoever finds the phase complete. A phase must not complete before all that
waited for the one before have seen it: they could not tell the two apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import INIT_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.findings import StopLaunch
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.mbarrier_objects import MBarrier, MBarrierTexts, MWait, MWaiting
from sparsekit.emulator.mbarrier_order import MBarrierOrder

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


MBARRIER_BYTES = 8
MOST_ARRIVALS = (1 << 20) - 1
_IDLE_ROUNDS = 3  # how often waits may end without success while nothing at all happens


class MBarriers:
    """All mbarriers of a batch, by their place in shared memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._texts = MBarrierTexts(machine)
        self._place = self._texts.place
        self.order = MBarrierOrder(machine, self._texts)
        self._objects: dict[int, MBarrier] = {}
        self._numbers: dict[int, int] = {}
        self._idle = 0
        self._seen_progress = -1

    def reset(self) -> None:
        self._objects.clear()
        self._idle, self._seen_progress = 0, -1

    def make(
        self, convoy: Convoy, mask: Array | None, index: Array, counts: Array, at: int
    ) -> None:
        """mbarrier.init by each lane."""
        machine, clocks = self._machine, self._machine.clocks
        self._log_write(convoy, mask, index, at)
        for thread in convoy.lanes(mask).tolist():
            place, count = int(index[thread - convoy.lo]), int(counts[thread - convoy.lo])
            if not 1 <= count <= MOST_ARRIVALS:
                text = f"an mbarrier for {count} arrivals; it takes 1 to {MOST_ARRIVALS}"
                machine.fault("mbarrier", text, at, thread)
            if place in self._objects:
                text = f"the mbarrier at {self._place(place)} is initialised again while in use"
                machine.fault("mbarrier", text, at, thread)
            maker = thread // WARP
            stamp = clocks.stamp() + clocks.agent_of(maker, INIT_AGENT)
            barrier = MBarrier(
                place, count, clocks.barrier_agent(self._number(place)), at, maker, stamp,
                clocks.nothing(), clocks.nothing(), count,
            )  # fmt: skip
            self._objects[place] = barrier

    def _number(self, place: int) -> int:
        """The number of the mbarriers at one place of all units: they share an agent."""
        inside = place % (self._machine.cluster_size * self._machine.shared_stride)
        return self._numbers.setdefault(inside, len(self._numbers))

    def place_of(self, number: int) -> str:
        """Where the mbarriers of a number are, for a message."""
        return next(self._place(p) for p, n in self._numbers.items() if n == number)

    def unmake(self, convoy: Convoy, mask: Array | None, index: Array, at: int) -> None:
        """mbarrier.inval: the memory is free for other uses."""
        for thread in convoy.lanes(mask).tolist():
            barrier = self.find(int(index[thread - convoy.lo]), thread, at)
            if barrier.waiting:
                text = f"the mbarrier at {self._place(barrier.index)} ends while threads wait at it"
                self._machine.fault("mbarrier", text, at, thread)
            self._check_bytes(barrier, at, thread)
            self.order.check_seen(barrier, thread, at)
            del self._objects[barrier.index]
        self._log_write(convoy, mask, index, at)

    def _log_write(self, convoy: Convoy, mask: Array | None, index: Array, at: int) -> None:
        if convoy.log is not None:
            lanes = convoy.lanes(mask) - convoy.lo
            blank = np.zeros(lanes.size, np.uint64)
            convoy.log.add(
                "shared", WRITE, MBARRIER_BYTES, index[lanes], lanes, True, convoy, at, (blank,)
            )

    def find(self, place: int, thread: int, at: int) -> MBarrier:
        """The mbarrier at a place, whose initialisation the thread must know of."""
        machine = self._machine
        barrier = self._objects.get(place)
        if barrier is None:
            text = f"there is no mbarrier at {self._place(place)}: nothing has initialised one"
            machine.fault("mbarrier", text, at, thread)
            machine.fault("outside", text, at, thread)
            raise StopLaunch
        self.order.check_ordered(barrier, thread, at)
        machine.remote.arrive(place, thread, at)
        return barrier

    def _find_for(self, place: int, threads: Array, at: int) -> MBarrier:
        """The same for several threads."""
        barrier = self.find(place, int(threads[0]), at)
        for row in np.unique(threads // WARP)[1:].tolist():
            self.order.check_ordered(barrier, int(threads[threads // WARP == row][0]), at)
        return barrier

    # ---- arrivals and bytes

    def arrive(
        self, convoy: Convoy, mask: Array | None, index: Array, counts: Array | None,
        tx_bytes: Array | None, at: int, *, releases: bool = True, drops: bool = False,
        may_complete: bool = True,
    ) -> Array:  # fmt: skip
        """Each lane arrives, after it has added to the bytes awaited. The states before, u8."""
        states = np.zeros(convoy.n, np.uint64)
        threads = convoy.lanes(mask)
        places = index[threads - convoy.lo]
        for place in dict.fromkeys(places.tolist()):
            mine = threads[places == place]
            barrier = self._find_for(place, mine, at)
            if self._machine.log is not None:
                rows = np.unique(mine // WARP)
                known = self._machine.log.release(rows).max(axis=0)
                self._learn(barrier, known if releases else self._passed_on(known, rows))
            for thread in mine.tolist():
                lane = thread - convoy.lo
                states[lane] = barrier.phase << 32 | barrier.pending
                count = 1 if counts is None else int(counts[lane])
                if tx_bytes is not None:
                    barrier.tx_bytes += int(tx_bytes[lane])
                if drops:
                    barrier.expected -= count
                self._count(barrier, count, at, thread, may_complete)
        return states

    def _count(self, barrier: MBarrier, count: int, at: int, thread: int, may: bool) -> None:
        if count > barrier.pending or count < 1:
            text = (
                f"{count} arrivals at the mbarrier at {self._place(barrier.index)}, whose phase "
                f"{barrier.phase} lacks {barrier.pending} of {barrier.expected}"
            )
            self._machine.fault("mbarrier", text, at, thread)
        barrier.pending = max(barrier.pending - count, 0)
        if not may and barrier.pending == 0:
            text = "an arrival that must not complete the phase is the last one"
            self._machine.fault("mbarrier", text, at, thread)
        self.settle(barrier, at, thread)

    def _passed_on(self, known: Array, rows: Array) -> Array:
        """What of all that they know the warps pass on by a relaxed arrival."""
        passed = self._machine.clocks.only_happened(known)
        fenced = self._machine.fences.passed_on(rows)
        return passed if fenced is None else np.maximum(passed, fenced)

    @staticmethod
    def _learn(barrier: MBarrier, known: Array) -> None:
        np.maximum(barrier.arriving, known, out=barrier.arriving)

    def expect(self, barrier: MBarrier, tx_bytes: int) -> None:
        barrier.tx_bytes += tx_bytes
        self._machine.progress += 1

    def complete_bytes(
        self, barrier: MBarrier, tx_bytes: int, known: Array | None, at: int, thread: int
    ) -> None:
        """Bytes have come; known: what their issuer knew, and what of the copy is known now.

        None where a thread says so, which makes nothing visible.
        """
        barrier.tx_bytes -= tx_bytes
        if known is not None:
            self._learn(barrier, known)
        elif self._machine.log is not None:
            own = self._machine.log.release(np.array([thread // WARP]))[0]
            self._learn(barrier, self._machine.clocks.only_happened(own))
        self.settle(barrier, at, thread)

    def arrive_later(
        self, barrier: MBarrier, known: Array | None, at: int, thread: int, count: int = 1
    ) -> None:
        """Arrivals by an asynchronous operation, one after the other."""
        while count > 0:
            if known is not None:
                self._learn(barrier, known)
            in_phase = min(count, max(barrier.pending, 1))
            self._count(barrier, in_phase, at, thread, True)
            count -= in_phase

    def settle(self, barrier: MBarrier, at: int, thread: int) -> None:
        """End the phase if nothing more is awaited, and let go those that wait for it."""
        machine = self._machine
        machine.progress += 1
        if barrier.pending or barrier.tx_bytes:
            return
        if machine.log is not None:
            machine.log.flush()
            self.order.check_overrun(barrier, at, thread)
            np.maximum(barrier.completed, barrier.arriving, out=barrier.completed)
            barrier.arriving[:] = 0
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.seen.clear()
        done = [w for w in barrier.waiting if w.phase < barrier.phase]
        barrier.waiting = [w for w in barrier.waiting if w.phase >= barrier.phase]
        for waiting in done:
            self._succeed(barrier, waiting.threads, waiting.wait)

    # ---- waiting

    def wait(
        self, convoy: Convoy, mask: Array | None, index: Array, phases: Array, wait: MWait, *,
        by_parity: bool,
    ) -> None:  # fmt: skip
        """Threads wait for the phase of a parity, or of a state that an arrival gave."""
        threads = convoy.lanes(mask)
        lanes = threads - convoy.lo
        values = phases[lanes].astype(np.int64)
        self._machine.park(convoy, mask)
        for place, value in dict.fromkeys(zip(index[lanes].tolist(), values.tolist(), strict=True)):
            mine = threads[(index[lanes] == place) & (values == value)]
            barrier = self._find_for(place, mine, wait.at)
            if by_parity:
                if value not in (0, 1):
                    text = f"a phase parity of {value}; it is 0 or 1"
                    self._machine.fault("mbarrier", text, wait.at, int(mine[0]))
                phase = barrier.phase - (barrier.phase + value) % 2
            else:
                phase = value >> 32
                if not barrier.phase - 1 <= phase <= barrier.phase:
                    text = f"a wait for phase {phase} in phase {barrier.phase}"
                    self._machine.fault("mbarrier", text, wait.at, int(mine[0]))
            if phase < barrier.phase:
                self._succeed(barrier, mine, wait)
            elif self._machine.choices.end_a_wait_early():
                self._answer(mine, wait, False)
            else:
                barrier.waiting.append(MWaiting(mine, phase, wait))

    def _succeed(self, barrier: MBarrier, threads: Array, wait: MWait) -> None:
        machine = self._machine
        self._answer(threads, wait, True)
        if machine.log is None or barrier.phase == 0:
            return
        rows = np.unique(threads // WARP)
        if wait.acquires:
            machine.log.acquire(rows, barrier.completed)
        else:
            machine.fences.learn_later(rows, barrier.completed)
            machine.log.acquire(rows, machine.clocks.only_happened(barrier.completed))
        now = machine.clocks.stamp()
        for row in rows.tolist():
            barrier.seen[row] = (now, wait.at)

    def _answer(self, threads: Array, wait: MWait, value: bool) -> None:
        machine = self._machine
        if wait.slot is not None:
            machine.register(wait.slot)[threads] = value
            if machine.defined is not None:
                machine.defined_in(wait.slot)[threads] = True
        machine.wake(threads, wait.resume)

    def give_up(self) -> bool:
        """End all waits without success, as hardware may at any time; nothing else can run.

        False where that has not helped before.
        """
        machine = self._machine
        self._idle = self._idle + 1 if machine.progress == self._seen_progress else 0
        self._seen_progress = machine.progress
        if self._idle >= _IDLE_ROUNDS:
            return False
        given_up = False
        for barrier in self._objects.values():
            waiting, barrier.waiting = barrier.waiting, []
            for one in waiting:
                self._answer(one.threads, one.wait, False)
                given_up = True
        return given_up

    # ---- what is wrong

    def waiting(self) -> tuple[str, int, int] | None:
        """(who waits for what, instruction, thread) when threads wait; None when none do."""
        parts = []
        first: MWaiting | None = None
        for barrier in self._objects.values():
            for waiting in barrier.waiting:
                first = first or waiting
                parts.append(self._texts.waiting(barrier, waiting))
        if first is None:
            return None
        return "; ".join(dict.fromkeys(parts)), first.wait.at, int(first.threads[0])

    def check_finished(self) -> None:
        """At the end of a batch no bytes may be missing or left over."""
        for barrier in self._objects.values():
            self._check_bytes(barrier, barrier.made_at, barrier.maker * WARP)

    def _check_bytes(self, barrier: MBarrier, at: int, thread: int) -> None:
        if barrier.tx_bytes:
            self._machine.fault("mbarrier", self._texts.bytes_left(barrier), at, thread)
