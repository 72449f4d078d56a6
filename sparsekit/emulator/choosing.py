"""Choosing what runs next: threads that stand at one block of code, brought together again.

The lanes that stand at the lowest block run first; a warp that an instruction needs whole, or a
warpgroup, waits for what is missing of it as long as anything else can run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.code import Block
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.findings import StopLaunch
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.table import is_warp_wide
from sparsekit.emulator.warpgroups import WARPS_OF_GROUP
from sparsekit.ptx.operands import Immediate, Register

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


NOWHERE = np.iinfo(np.int32).max  # where a thread stands that waits or has exited
_FAIR_STEP = 256  # every so often another warp runs, or an operation, so that spinning ends


class Chooser:
    """Chooses from where a machine's threads stand."""

    def __init__(self, machine: Machine, step_limit: int) -> None:
        self._machine = machine
        self._step_limit = step_limit
        self._convoys: dict[tuple[int, int], Convoy] = {}
        self._without_group: dict[tuple[int, int], Array] = {}
        self._kept_waiting = False
        geometry = machine.geometry
        warp, units = geometry.warp[::WARP], geometry.units
        rows = np.arange(len(warp))
        self._groups = rows - warp % WARPS_OF_GROUP * units  # the first row of a warpgroup

    def next(self) -> Convoy | None:
        """The threads that run next; None when all have exited."""
        self._machine.steps += 1
        if self._machine.steps > self._step_limit:
            self._machine.fault("limit", f"no end after {self._step_limit} steps", None, None)
        fair = self._machine.steps % _FAIR_STEP == 0
        if fair or self._machine.choices.run_an_operation():
            self._machine.engine.advance()
        while True:
            convoy = self._ready()
            if convoy is not None:
                return convoy
            if self._machine.engine.advance():
                continue
            if not np.count_nonzero(self._machine.live):
                return None
            if self._machine.mbarriers.give_up():
                continue
            if self._kept_waiting and self._machine.mbarriers.waiting() is None:
                return self._diverged()
            self._machine.barriers.report_deadlock()
            raise StopLaunch

    def _ready(self) -> Convoy | None:
        standing = self._machine.at
        parked = False
        while True:
            number, threads = self._choose(standing)
            if number == NOWHERE:
                self._kept_waiting = parked
                return None
            convoy = self._convoy(number, threads)
            block = self._machine.code.blocks[number]
            partial = convoy.mask is not None and (block.converge or block.members is not None)
            if not (partial or block.warpgroup):
                return convoy
            waiting = self._waiting(convoy, block)
            if not waiting.size:
                return convoy
            if standing is self._machine.at:
                standing = self._machine.at.copy()
            standing.reshape(-1, WARP)[waiting] = np.where(
                standing.reshape(-1, WARP)[waiting] == number, NOWHERE,
                standing.reshape(-1, WARP)[waiting],
            )  # fmt: skip
            parked = True

    def _choose(self, standing: Array) -> tuple[int, Array]:
        """(block, the threads there that run): the lowest, or what the schedule draws."""
        if self._machine.choices.is_random:
            lowest = standing.reshape(-1, WARP).min(axis=1)
            ready = np.flatnonzero(lowest != NOWHERE)
            if not ready.size:
                return NOWHERE, standing
            row = int(ready[self._machine.choices.below(ready.size)])
            number = int(lowest[row])
            threads = standing == number
            others = lowest != number  # lanes of one warp stay in order
            if self._machine.choices.run_one_warp():
                kept = self._together(number)
                others |= kept != kept[row]
            threads.reshape(-1, WARP)[others] = False
            return number, threads
        number = int(np.minimum.reduce(standing))
        if self._machine.steps % _FAIR_STEP == 0 and number != NOWHERE:
            present = np.unique(standing)
            number = int(
                present[
                    self._machine.steps // _FAIR_STEP % (len(present) - (present[-1] == NOWHERE))
                ]
            )
        return number, standing == number

    def _convoy(self, number: int, threads: Array) -> Convoy:
        count = int(np.count_nonzero(threads))
        first = int(threads.argmax())
        if count == threads.size:
            lo, hi = 0, count
        else:
            lo = first // WARP * WARP
            hi = threads.size - int(threads[::-1].argmax()) // WARP * WARP
        convoy = self._convoys.get((lo, hi))
        if convoy is None:
            convoy = self._convoys[lo, hi] = Convoy(self._machine, lo, hi)
        convoy.mask = None if count == hi - lo else threads[lo:hi]
        convoy.block = number
        return convoy

    def _waiting(self, convoy: Convoy, block: Block) -> Array:
        """The same as _waiting_warps; what whole warps of a range wait for is found once."""
        if convoy.mask is not None:
            return self._waiting_warps(convoy, block)
        key = (convoy.lo, convoy.hi)
        found = self._without_group.get(key)
        if found is None:
            found = self._without_group[key] = self._waiting_warps(convoy, block)
        return found

    def _waiting_warps(self, convoy: Convoy, block: Block) -> Array:
        """The rows of warps that are to wait for lanes that are not here yet."""
        mask = np.ones(convoy.n, np.bool_) if convoy.mask is None else convoy.mask
        here = mask.reshape(-1, WARP)
        missing = self._machine.live[convoy.lo : convoy.hi].reshape(-1, WARP) & ~here
        if block.members is not None and not block.converge:
            missing &= self._named_lanes(convoy, block, here)
        rows: Array = np.flatnonzero(here.any(axis=1) & missing.any(axis=1)) + convoy.first_row
        if block.warpgroup:
            present = np.zeros(len(self._groups), np.bool_)
            present[convoy.warps(convoy.mask)] = True
            present[rows] = False
            whole = np.bincount(self._groups[present], minlength=len(self._groups))
            alone = present & (whole[self._groups] < WARPS_OF_GROUP)
            rows = np.union1d(rows, np.flatnonzero(alone))
        return rows

    def _together(self, number: int) -> Array:
        """Per row what stays together at a block of code: a warp, or a warpgroup."""
        if self._machine.code.blocks[number].warpgroup:
            return self._groups
        return np.arange(len(self._groups))

    def _named_lanes(self, convoy: Convoy, block: Block, here: Array) -> Array:
        """[warps, lanes]: the lanes in the membermasks of those that are here."""
        operand = block.members
        if isinstance(operand, Register):
            slot = self._machine.code.slots[block.function, operand.name]
            masks = self._machine.register(slot.index)[convoy.lo : convoy.hi].reshape(-1, WARP)
        else:
            value = operand.value if isinstance(operand, Immediate) else -1
            masks = np.full(here.shape, value % (1 << WARP), np.uint32)
        named = np.bitwise_or.reduce(np.where(here, masks, 0).astype(np.uint32), axis=1)
        lanes: Array = ((named[:, None] >> np.arange(WARP, dtype=np.uint32)) & 1) != 0
        return lanes

    def _diverged(self) -> Convoy:
        """The lowest lanes of those that wait in vain for the rest of their warps."""
        number = int(self._machine.at.min())
        convoy = self._convoy(number, self._machine.at == number)
        block = self._machine.code.blocks[number]
        rows = self._waiting_warps(convoy, block)
        row = int(rows[0])
        lanes = slice(row * WARP, row * WARP + WARP)
        absent = np.flatnonzero(self._machine.live[lanes] & (self._machine.at[lanes] != number))
        inside = self._machine.code.matched[block.start : block.stop]
        needing = next(m for m in inside if is_warp_wide(m.instruction))
        lanes_absent = f"lanes {', '.join(map(str, absent))} of the warp"
        self._machine.fault(
            "divergence",
            f"{lanes_absent if absent.size else 'other warps of the warpgroup'} are needed and "
            "never get here",
            needing.index, int(np.flatnonzero(self._machine.at[lanes] == number)[0]) + row * WARP,
        )  # fmt: skip
        return convoy
