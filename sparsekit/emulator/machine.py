"""The machine: a batch of blocks, and what runs next.

Threads stand in one array ordered by warp, then by unit (a block, or a cluster of blocks), then by
lane, so that one warp of all units is one range. The lanes that stand at the lowest block of code
run first, which brings diverged lanes together again; a warp that an instruction needs whole waits
for its other lanes as long as anything else can run.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.access_log import AccessLog
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.barriers import Barriers
from sparsekit.emulator.bulk import BulkCopies
from sparsekit.emulator.calls import CallStack
from sparsekit.emulator.clocks import Clocks
from sparsekit.emulator.cluster_barrier import ClusterBarrier
from sparsekit.emulator.code import Block, Code
from sparsekit.emulator.convoy import WARP, Convoy
from sparsekit.emulator.copies import CopyGroups
from sparsekit.emulator.engine import Engine
from sparsekit.emulator.fences import Fences
from sparsekit.emulator.findings import Findings, StopLaunch
from sparsekit.emulator.geometry import Geometry
from sparsekit.emulator.global_races import GlobalRaces
from sparsekit.emulator.mbarriers import MBarriers
from sparsekit.emulator.schedule import Choices
from sparsekit.emulator.storage import Storage
from sparsekit.emulator.table import is_warp_wide
from sparsekit.emulator.tensor_memory import TensorMemory
from sparsekit.emulator.translate import Binder, BlockFunction, translate
from sparsekit.emulator.warpgroups import WARPS_OF_GROUP, Warpgroups
from sparsekit.ptx.operands import Immediate, Register

_NOWHERE = np.iinfo(np.int32).max  # where a thread stands that waits or has exited
_MOST_MBARRIERS = 128  # of one unit
_FAIR_STEP = 256  # every so often a warp that is not the lowest runs, so that spinning ends


class Translations:
    """The blocks of a Code as Python, made when first run; shared by all launches of it."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._binders: dict[tuple[int, bool], Binder] = {}

    def of(self, block: int, masked: bool) -> Binder:
        found = self._binders.get((block, masked))
        if found is None:
            found = translate(self._code, self._code.blocks[block], masked)
            self._binders[block, masked] = found
        return found


class Machine:
    """Executes one batch of units after the other. at: per thread the block it stands at."""

    def __init__(
        self, code: Code, translations: Translations, geometry: Geometry, storage: Storage,
        findings: Findings, choices: Choices, races: GlobalRaces | None, step_limit: int,
    ) -> None:  # fmt: skip
        self.code, self.geometry, self.storage = code, geometry, storage
        self.findings, self.choices = findings, choices
        self.cluster_size = geometry.shape.cluster_size
        self.rows = geometry.row
        self.shared_stride = storage.shared_stride
        self.shared_base, self.unit_base = storage.shared_base, storage.unit_base
        self.local_base = storage.local_base
        self.constants: dict[tuple[float, str, int], Array] = {}
        barriers = _MOST_MBARRIERS * code.is_asynchronous
        self.clocks = Clocks(geometry.threads // WARP, geometry.warps_per_unit, barriers)
        self.log = AccessLog(self, races) if findings.checks else None
        self.engine = Engine(choices)
        self.copies = CopyGroups(self)
        self.bulk = BulkCopies(self)
        self.warpgroups = Warpgroups(self)
        self.tensor_memory = TensorMemory(self)
        self.barriers = Barriers(self)
        self.cluster_barrier = ClusterBarrier(self)
        self.mbarriers = MBarriers(self)
        self.progress = 0
        self.calls = CallStack(self)
        self.fences = Fences(self, races)
        self._races = races
        self.block_of_row = np.zeros(geometry.threads // WARP, np.int64)
        checked = code.suspects and "undefined-register" in findings.checks
        self.defined: dict[int, Array] | None = {} if checked else None
        self.at = np.full(geometry.threads, _NOWHERE, np.int32)
        self.live = np.zeros(geometry.threads, np.bool_)
        self.executed = np.zeros(len(code.blocks), np.int64)
        self.warps_executed = np.zeros(len(code.blocks), np.int64)
        self.register, self.special = storage.register, storage.special
        self.param, self.symbol_address = storage.param, storage.symbol_address
        self._translations = translations
        self._convoys: dict[tuple[int, int], Convoy] = {}
        self._functions: dict[tuple[int, int, int, bool], BlockFunction] = {}
        self.steps, self._step_limit = 0, step_limit
        self._kept_waiting = False
        warp, units = geometry.warp[::WARP], geometry.units
        rows = np.arange(len(warp))
        self._groups = rows - warp % WARPS_OF_GROUP * units  # the first row of a warpgroup

    # ---- running

    def run(self, first_unit: int, units: int) -> None:
        """Run the batch of `units` units from first_unit on, to the end or to a fatal fault."""
        self.geometry.start_batch(first_unit)
        self.storage.start_batch()
        self.clocks.reset()
        self.barriers.reset()
        self.cluster_barrier.reset()
        self.mbarriers.reset()
        self.copies.reset()
        self.bulk.reset()
        self.warpgroups.reset()
        self.tensor_memory.reset()
        self.calls.reset()
        self.fences.reset()
        self.block_of_row[:] = self.geometry.block_number()[::WARP]
        if self._races is not None:
            self._races.start_batch(self.geometry)
        if self.defined is not None:
            self.defined.clear()
        self.live[:] = self.geometry.exists & (self.geometry.unit < units)
        self.at[:] = np.where(self.live, self.code.first_block[self.code.entry.name], _NOWHERE)
        if self.log is not None:
            self.log.start_batch()
        try:
            while (convoy := self._next()) is not None:
                self._execute(convoy)
            self.engine.drain()
            self.barriers.check_finished()
            self.mbarriers.check_finished()
            self.bulk.check_finished()
            self.tensor_memory.check_finished()
        finally:
            if self.log is not None:
                self.log.flush()

    def _execute(self, convoy: Convoy) -> None:
        number, mask = convoy.block, convoy.mask
        key = (number, convoy.lo, convoy.hi, mask is not None)
        function = self._functions.get(key)
        if function is None:
            function = self._translations.of(number, mask is not None)(convoy)
            self._functions[key] = function
        block = self.code.blocks[number]
        self.executed[number] += 1
        self.warps_executed[number] += (
            convoy.last_row - convoy.first_row if mask is None else len(convoy.warps(mask))
        )
        values = function(mask)
        if block.last is not None and block.last.form.control is not None:
            block.last.form.control(self, convoy, block.last, values)
        elif block.successors:
            self.move(convoy, mask, number + 1)
        else:
            self.calls.leave(convoy, mask)

    def move(self, convoy: Convoy, mask: Array | None, block: int) -> None:
        """Let threads stand at another block."""
        if mask is None:
            self.at[convoy.lo : convoy.hi] = block
        else:
            self.at[convoy.lo : convoy.hi][mask] = block

    def park(self, convoy: Convoy, mask: Array | None) -> None:
        """Take threads out of the run; wake brings them back."""
        self.move(convoy, mask, _NOWHERE)

    def wake(self, threads: Array, block: int) -> None:
        self.at[threads] = block

    def exit(self, convoy: Convoy, mask: Array | None) -> None:
        if mask is None:
            self.live[convoy.lo : convoy.hi] = False
        else:
            self.live[convoy.lo : convoy.hi][mask] = False
        self.park(convoy, mask)
        self.progress += 1
        self.barriers.threads_left()
        self.cluster_barrier.threads_left()

    def fault(self, kind: str, message: str, at: int | None, thread: int | None) -> None:
        """Note a fault, after those of earlier accesses. Raises StopLaunch for a fatal one."""
        if self.log is not None:
            self.log.flush()
        self.findings.add(self.geometry, kind, message, at, thread)

    def line(self, index: int) -> int:
        """The PTX line of an instruction."""
        return self.code.matched[index].instruction.line

    def defined_in(self, slot: int) -> Array:
        """Per thread whether it has written a register that some path may read unwritten."""
        assert self.defined is not None
        if slot not in self.defined:
            self.defined[slot] = np.zeros(self.geometry.threads, np.bool_)
        return self.defined[slot]

    # ---- choosing

    def _next(self) -> Convoy | None:
        """The threads that run next; None when all have exited."""
        self.steps += 1
        if self.steps > self._step_limit:
            self.fault("limit", f"no end after {self._step_limit} steps", None, None)
        if self.choices.run_an_operation():
            self.engine.advance()
        while True:
            convoy = self._ready()
            if convoy is not None:
                return convoy
            if self.engine.advance():
                continue
            if not np.count_nonzero(self.live):
                return None
            if self.mbarriers.give_up():
                continue
            if self._kept_waiting and self.mbarriers.waiting() is None:
                return self._diverged()
            self.barriers.report_deadlock()
            raise StopLaunch

    def _ready(self) -> Convoy | None:
        standing = self.at
        parked = False
        while True:
            number, threads = self._choose(standing)
            if number == _NOWHERE:
                self._kept_waiting = parked
                return None
            convoy = self._convoy(number, threads)
            block = self.code.blocks[number]
            partial = convoy.mask is not None and (block.converge or block.members is not None)
            if not (partial or block.warpgroup):
                return convoy
            waiting = self._waiting_warps(convoy, block)
            if not waiting.size:
                return convoy
            if standing is self.at:
                standing = self.at.copy()
            standing.reshape(-1, WARP)[waiting] = np.where(
                standing.reshape(-1, WARP)[waiting] == number, _NOWHERE,
                standing.reshape(-1, WARP)[waiting],
            )  # fmt: skip
            parked = True

    def _choose(self, standing: Array) -> tuple[int, Array]:
        """(block, the threads there that run): the lowest, or what the schedule draws."""
        if self.choices.is_random:
            lowest = standing.reshape(-1, WARP).min(axis=1)
            ready = np.flatnonzero(lowest != _NOWHERE)
            if not ready.size:
                return _NOWHERE, standing
            row = int(ready[self.choices.below(ready.size)])
            number = int(lowest[row])
            threads = standing == number
            others = lowest != number  # lanes of one warp stay in order
            if self.choices.run_one_warp():
                kept = self._together(number)
                others |= kept != kept[row]
            threads.reshape(-1, WARP)[others] = False
            return number, threads
        number = int(standing.min())
        if self.steps % _FAIR_STEP == 0 and number != _NOWHERE:
            present = np.unique(standing)
            number = int(
                present[self.steps // _FAIR_STEP % (len(present) - (present[-1] == _NOWHERE))]
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
            convoy = self._convoys[lo, hi] = Convoy(self, lo, hi)
        convoy.mask = None if count == hi - lo else threads[lo:hi]
        convoy.block = number
        return convoy

    def _waiting_warps(self, convoy: Convoy, block: Block) -> Array:
        """The rows of warps that are to wait for lanes that are not here yet."""
        mask = np.ones(convoy.n, np.bool_) if convoy.mask is None else convoy.mask
        here = mask.reshape(-1, WARP)
        missing = self.live[convoy.lo : convoy.hi].reshape(-1, WARP) & ~here
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
        if self.code.blocks[number].warpgroup:
            return self._groups
        return np.arange(len(self._groups))

    def _named_lanes(self, convoy: Convoy, block: Block, here: Array) -> Array:
        """[warps, lanes]: the lanes in the membermasks of those that are here."""
        operand = block.members
        if isinstance(operand, Register):
            slot = self.code.slots[block.function, operand.name]
            masks = self.register(slot.index)[convoy.lo : convoy.hi].reshape(-1, WARP)
        else:
            value = operand.value if isinstance(operand, Immediate) else -1
            masks = np.full(here.shape, value % (1 << WARP), np.uint32)
        named = np.bitwise_or.reduce(np.where(here, masks, 0).astype(np.uint32), axis=1)
        lanes: Array = ((named[:, None] >> np.arange(WARP, dtype=np.uint32)) & 1) != 0
        return lanes

    def _diverged(self) -> Convoy:
        """The lowest lanes of those that wait in vain for the rest of their warps."""
        number = int(self.at.min())
        convoy = self._convoy(number, self.at == number)
        block = self.code.blocks[number]
        rows = self._waiting_warps(convoy, block)
        row = int(rows[0])
        lanes = slice(row * WARP, row * WARP + WARP)
        absent = np.flatnonzero(self.live[lanes] & (self.at[lanes] != number))
        inside = self.code.matched[block.start : block.stop]
        needing = next(m for m in inside if is_warp_wide(m.instruction))
        lanes_absent = f"lanes {', '.join(map(str, absent))} of the warp"
        self.fault(
            "divergence",
            f"{lanes_absent if absent.size else 'other warps of the warpgroup'} are needed and "
            "never get here",
            needing.index, int(np.flatnonzero(self.at[lanes] == number)[0]) + row * WARP,
        )  # fmt: skip
        return convoy
