"""The machine: a batch of blocks, and what runs next.

Threads stand in one array ordered by warp, then by unit (a block, or a cluster of blocks), then by
lane, so that one warp of all units is one range.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.access_log import AccessLog
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.barriers import Barriers
from sparsekit.emulator.bulk import BulkCopies
from sparsekit.emulator.calls import CallStack
from sparsekit.emulator.choosing import NOWHERE, Chooser
from sparsekit.emulator.clocks import Clocks
from sparsekit.emulator.cluster_barrier import ClusterBarrier
from sparsekit.emulator.code import Code
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.copies import CopyGroups
from sparsekit.emulator.engine import Engine
from sparsekit.emulator.fences import Fences
from sparsekit.emulator.findings import Findings
from sparsekit.emulator.geometry import WARP, Geometry
from sparsekit.emulator.global_races import GlobalRaces
from sparsekit.emulator.mbarriers import MBarriers
from sparsekit.emulator.register_loads import RegisterLoads
from sparsekit.emulator.remote_access import RemoteAccesses
from sparsekit.emulator.schedule import Choices
from sparsekit.emulator.storage import Storage
from sparsekit.emulator.tensor_memory import TensorMemory
from sparsekit.emulator.translate import Binder, BlockFunction, translate
from sparsekit.emulator.warpgroups import Touch, Warpgroups
from sparsekit.emulator.written_maps import WrittenMaps

_MOST_MBARRIERS = 128  # of one unit


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
        self.clocks = Clocks(
            geometry.threads // WARP, geometry.warps_per_unit, barriers,
            tensor_memory=code.uses_tensor_memory,
        )  # fmt: skip
        self.log = AccessLog(self, races) if findings.checks else None
        self.engine = Engine(choices)
        self.copies = CopyGroups(self)
        self.bulk = BulkCopies(self)
        self.warpgroups = Warpgroups(self)
        self.tensor_memory = TensorMemory(self)
        self.register_loads = RegisterLoads(self)
        self.written_maps = WrittenMaps(self)
        self.remote = RemoteAccesses(self)
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
        self.at = np.full(geometry.threads, NOWHERE, np.int32)
        self.live = np.zeros(geometry.threads, np.bool_)
        self.executed = np.zeros(len(code.blocks), np.int64)
        self.warps_executed = np.zeros(len(code.blocks), np.int64)
        self.register, self.special = storage.register, storage.special
        self.param, self.symbol_address = storage.param, storage.symbol_address
        self._translations = translations
        self._functions: dict[tuple[int, int, int, bool], BlockFunction] = {}
        self.steps = 0
        self.waiting_units: list[int] = []  # of the launch, that have not started
        self.chooser = Chooser(self, step_limit)

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
        self.register_loads.reset()
        self.written_maps.reset()
        self.remote.reset()
        self.calls.reset()
        self.fences.reset()
        self.block_of_row[:] = self.geometry.block_number()[::WARP]
        if self._races is not None:
            self._races.start_batch(self.geometry)
        if self.defined is not None:
            self.defined.clear()
        self.live[:] = self.geometry.exists & (self.geometry.unit < units)
        self.at[:] = np.where(self.live, self.code.first_block[self.code.entry.name], NOWHERE)
        if self.log is not None:
            self.log.start_batch()
        try:
            while (convoy := self.chooser.next()) is not None:
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

    def release(self) -> None:
        """Let go of everything: the parts refer back to the machine, and their arrays are large.

        Without this they would stay until the interpreter looks for cycles, which it seldom does.
        """
        vars(self).clear()

    def move(self, convoy: Convoy, mask: Array | None, block: int) -> None:
        """Let threads stand at another block."""
        if mask is None:
            self.at[convoy.lo : convoy.hi] = block
        else:
            self.at[convoy.lo : convoy.hi][mask] = block

    def park(self, convoy: Convoy, mask: Array | None) -> None:
        """Take threads out of the run; wake brings them back."""
        self.move(convoy, mask, NOWHERE)

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
        self.remote.threads_left()

    def fault(self, kind: str, message: str, at: int | None, thread: int | None) -> None:
        """Note a fault, after those of earlier accesses. Raises StopLaunch for a fatal one."""
        if self.log is not None:
            self.log.flush()
        self.findings.add(self.geometry, kind, message, at, thread)

    def touch(self, convoy: Convoy, touches: tuple[Touch, ...], mask: Array | None) -> None:
        """Instructions have used registers that tensor cores read or write by themselves."""
        self.warpgroups.touch(convoy, touches, mask)
        self.register_loads.touch(convoy, touches, mask)

    def line(self, index: int) -> int:
        """The PTX line of an instruction."""
        return self.code.matched[index].instruction.line

    def defined_in(self, slot: int) -> Array:
        """Per thread whether it has written a register that some path may read unwritten."""
        assert self.defined is not None
        if slot not in self.defined:
            self.defined[slot] = np.zeros(self.geometry.threads, np.bool_)
        return self.defined[slot]
