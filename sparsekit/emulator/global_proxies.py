"""Global memory between proxies, within a block: who stored each piece last, and by which proxy.

What threads have stored, a bulk copy reads only after a proxy fence; what a bulk copy has stored,
threads read only after the wait for its group (not .read, which is for its source). Between blocks
the races in global memory tell. A piece is 16 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import ASYNC, READS
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import BULK_STORE_AGENT, GLOBAL_PART, WARP_AGENT
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.access_log import Bucket
    from sparsekit.emulator.machine import Machine


_PIECE_BITS = 4


class GlobalProxies:
    """stamp, unit, at: of the last store to each piece of the arena in this batch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        pieces = (machine.storage.memory.content().size >> _PIECE_BITS) + 1
        self._stamp = np.zeros(pieces, np.int32)
        self._unit = np.zeros(pieces, np.int32)  # counted from 1; untouched pages cost nothing
        self._used = False
        self._at = np.zeros(pieces, np.int32)
        self._unit_of_row = machine.geometry.unit[::WARP].astype(np.int32) + 1

    def reset(self) -> None:
        if self._used:
            self._unit = np.zeros_like(self._unit)
        self._used = False

    def check(self, bucket: Bucket) -> None:
        """Check accesses to global memory, and note the stores."""
        pieces = np.minimum(bucket.index >> _PIECE_BITS, self._stamp.size - 1)
        rows, clocks = bucket.rows, self._machine.clocks
        units = self._unit_of_row[rows]
        asynchronous = bucket.kind in ASYNC
        if bucket.kind in READS:
            stamps = np.where(self._unit[pieces] == units, self._stamp[pieces], 0)
            if not np.count_nonzero(stamps):
                return
            if asynchronous:
                late = clocks.unfenced(rows, stamps, GLOBAL_PART)
            else:
                agents = stamps & clocks.agent_mask
                late = clocks.kind_of(stamps) == BULK_STORE_AGENT
                late &= stamps > clocks.known.reshape(-1).take(rows * clocks.width + agents)
            if np.count_nonzero(late):
                self._report(bucket, int(late.argmax()), pieces, asynchronous)
            return
        kind = BULK_STORE_AGENT if asynchronous else WARP_AGENT
        stamps = (clocks.agents_of(rows, kind) + bucket.stamps).astype(np.int32)
        self._used = True
        for part in range(max(bucket.size_bytes >> _PIECE_BITS, 1)):
            cells = np.minimum(pieces + part, self._stamp.size - 1)
            self._stamp[cells], self._unit[cells] = stamps, units
            self._at[cells] = bucket.instructions()

    def _report(self, bucket: Bucket, position: int, pieces: Array, asynchronous: bool) -> None:
        machine = self._machine
        at, thread = bucket.origin(position)
        line = machine.line(int(self._at[pieces[position]]))
        kind, text = "race", (
            f"reads what a bulk copy stores in global memory in PTX line {line}, and there is no "
            "wait for the end of its group"
        )  # fmt: skip
        if asynchronous:
            kind, text = "proxy-fence", (
                f"a bulk copy reads what PTX line {line} has stored in global memory, and there is "
                "no fence.proxy.async between the two"
            )  # fmt: skip
        machine.findings.add(machine.geometry, kind, text, at, thread)
