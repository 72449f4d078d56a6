"""Checks of accesses to global and local memory: bounds, alignment, initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import READS
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.global_proxies import GlobalProxies
from sparsekit.emulator.memory import ALLOCATED, GLOBAL_BASE, INITIALISED, READ_ONLY

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.global_races import GlobalRaces
    from sparsekit.emulator.machine import Machine


_IN_ORDER = frozenset({"race", "proxy-fence"})
_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class GlobalChecks:
    """The state of global memory's bytes against each access."""

    def __init__(self, machine: Machine, races: GlobalRaces | None) -> None:
        self._machine = machine
        self._races = races
        checks = machine.findings.checks
        self._proxies = None
        if machine.code.copies_in_bulk and checks & _IN_ORDER:
            self._proxies = GlobalProxies(machine)
        self._bounds, self._uninitialised = "bounds" in checks, "uninitialised" in checks

    def reset(self) -> None:
        """Start a batch."""
        if self._proxies is not None:
            self._proxies.reset()

    def check(self, bucket: Bucket) -> None:
        """Check accesses to global memory, and note what they wrote."""
        machine, size = self._machine, bucket.size_bytes
        index = bucket.index
        if size > 1 and np.bitwise_or.reduce(index) & (size - 1):
            at, thread = bucket.origin(int(((index & (size - 1)) != 0).argmax()))
            text = f"an access of {size} bytes to global memory that is not aligned to them"
            machine.findings.add(machine.geometry, "alignment", text, at, thread)
        state = machine.storage.memory.state()
        is_read = bucket.kind in READS
        wanted = ALLOCATED
        if is_read and self._uninitialised:
            wanted |= INITIALISED
        if int(index.view("u8").max()) + size > state.size:
            self._slow(bucket, state, wanted)
            return
        width = min(size, 8)
        table = state.view(_TYPES[width])
        cells = index >> (width.bit_length() - 1)
        common, union = self._bits(table, cells, width)
        for part in range(1, size // width):
            more, others = self._bits(table, cells + part, width)
            common, union = common & more, union | others
        if common & wanted != wanted or (not is_read and union & READ_ONLY):
            self._slow(bucket, state, wanted)
        if not is_read and not common & INITIALISED:
            pattern = INITIALISED * int.from_bytes(b"\1" * width, "little")
            for part in range(size // width):
                table[cells + part] |= _TYPES[width](pattern)
        if self._proxies is not None:
            self._proxies.check(bucket)
        if self._races is not None:
            self._races.add(bucket)

    @staticmethod
    def _bits(table: Array, cells: Array, width: int) -> tuple[int, int]:
        """The state bits that all bytes have, and those that any has."""
        found = table.take(cells)
        common = int(np.bitwise_and.reduce(found))
        union = int(np.bitwise_or.reduce(found))
        all_bits, any_bits = 0xFF, 0
        for _ in range(width):
            all_bits &= common & 0xFF
            any_bits |= union & 0xFF
            common >>= 8
            union >>= 8
        return all_bits, any_bits

    def _slow(self, bucket: Bucket, state: Array, wanted: int) -> None:
        """Find the access at fault and report it."""
        machine, index, size = self._machine, bucket.index, bucket.size_bytes
        outside = (index < 0) | (index > state.size - size)
        spans = np.where(outside, 0, index)[:, None] + np.arange(size)
        found = np.bitwise_and.reduce(np.where(outside[:, None], 0, state[spans]), axis=1)
        missing = (found & ALLOCATED) == 0
        memory = machine.storage.memory
        verb = "reads" if bucket.kind in READS else "writes"
        if self._bounds and missing.any():
            position = int(missing.argmax())
            address = int(index[position]) + GLOBAL_BASE
            at, thread = bucket.origin(position)
            text = f"{verb} {size} bytes at {memory.describe(address % (1 << 64))}"
            machine.findings.add(machine.geometry, "bounds", text, at, thread)
        if bucket.kind in READS:
            unready = ((found & INITIALISED) == 0) & ~missing
            if self._uninitialised and unready.any():
                position = int(unready.argmax())
                at, thread = bucket.origin(position)
                where = memory.describe(int(index[position]) + GLOBAL_BASE)
                text = f"reads {where}, which nothing has written"
                machine.findings.add(machine.geometry, "uninitialised", text, at, thread)
            return
        constant = (found & READ_ONLY) != 0
        if constant.any():
            position = int(constant.argmax())
            at, thread = bucket.origin(position)
            where = memory.describe(int(index[position]) + GLOBAL_BASE)
            machine.findings.add(
                machine.geometry, "bounds", f"writes to read-only memory, {where}", at, thread
            )

    def check_local(self, bucket: Bucket) -> None:
        """Accesses to a thread's own memory: inside its frame, and aligned."""
        machine, size = self._machine, bucket.size_bytes
        stride = machine.storage.local_bytes
        threads = bucket.threads()
        inside = bucket.index - threads * stride
        for kind, bad in (
            ("alignment", (inside & (size - 1)) != 0),
            ("bounds", (inside < 0) | (inside + size > stride)),
        ):
            if bad.any():
                position = int(bad.argmax())
                at, thread = bucket.origin(position)
                text = f"{size} bytes at {int(inside[position])} of {stride} bytes of local memory"
                machine.findings.add(machine.geometry, kind, text, at, thread)
