"""What an mbarrier is and who waits at it, and how both are told of in messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.barriers import numbers_text
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


@dataclass
class MWait:
    """What a wait instruction does. slot: of its predicate, None for a sink; resume: the block."""

    at: int
    slot: int | None
    resume: int
    acquires: bool


@dataclass
class MWaiting:
    """Threads that wait for the end of a phase."""

    threads: Array
    phase: int
    wait: MWait


@dataclass
class MBarrier:
    """One mbarrier. index: its byte in the machine's shared memory; agent: of its copies.

    arriving: what is known so far of those who arrived in this phase; completed: of those of all
    phases before. seen: by row of a warp, when it saw the last phase complete.
    """

    index: int
    expected: int
    agent: int
    made_at: int
    maker: int
    stamp: int
    arriving: Array
    completed: Array
    pending: int = 0
    tx_bytes: int = 0
    phase: int = 0
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    waiting: list[MWaiting] = field(default_factory=list)


class MBarrierTexts:
    """Mbarriers in words."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def place(self, index: int) -> str:
        """Where an mbarrier is, by its place in the machine's shared memory."""
        machine = self._machine
        block, offset = divmod(index, machine.shared_stride)
        rank = block % machine.cluster_size
        where = f" of block {rank} of the cluster" if machine.cluster_size > 1 else ""
        return f"{offset:#x} of shared memory{where}"

    def warp(self, row: int) -> int:
        return int(self._machine.geometry.warp[int(row) * WARP])

    def waiting(self, barrier: MBarrier, waiting: MWaiting) -> str:
        """Who waits for what, and what of it is missing."""
        machine = self._machine
        warps = numbers_text({self.warp(row) for row in np.unique(waiting.threads // WARP)})
        text = "has all arrivals"
        if barrier.pending:
            text = f"lacks {barrier.pending} of {barrier.expected} arrivals"
        if barrier.tx_bytes > 0:
            text += f", and {barrier.tx_bytes} bytes have not come"
        elif barrier.tx_bytes < 0:
            text += f", and {-barrier.tx_bytes} bytes have come that were not expected"
        return (
            f"warps {warps} of block {machine.geometry.block_of(int(waiting.threads[0]))} wait at "
            f"the mbarrier at {self.place(barrier.index)} (PTX line "
            f"{machine.line(waiting.wait.at)}) for phase {waiting.phase}, parity "
            f"{waiting.phase % 2}, which {text}"
        )

    def overrun(self, barrier: MBarrier, row: int, waited_at: int) -> str:
        """That a phase ends before a warp must have seen the one before end."""
        return (
            f"phase {barrier.phase} of the mbarrier at {self.place(barrier.index)} completes, and "
            f"nothing orders that after warp {self.warp(row)} has seen phase {barrier.phase - 1} "
            f"complete in PTX line {self._machine.line(waited_at)}: it could miss it (phase "
            "overrun)"
        )

    def used_early(self, barrier: MBarrier) -> str:
        return (
            f"the mbarrier at {self.place(barrier.index)} is used, and nothing orders that after "
            f"its initialisation in PTX line {self._machine.line(barrier.made_at)}"
        )

    def not_visible(self, barrier: MBarrier) -> str:
        return (
            f"a copy completes on the mbarrier at {self.place(barrier.index)}, and neither "
            "fence.mbarrier_init nor a proxy fence follows its initialisation in PTX line "
            f"{self._machine.line(barrier.made_at)}"
        )

    def ends_early(self, barrier: MBarrier, row: int, waited_at: int) -> str:
        return (
            f"the mbarrier at {self.place(barrier.index)} ends, and nothing orders that after the "
            f"wait of warp {self.warp(row)} in PTX line {self._machine.line(waited_at)}"
        )

    def bytes_left(self, barrier: MBarrier) -> str:
        come = "did not come" if barrier.tx_bytes > 0 else "came without being expected"
        return (
            f"{abs(barrier.tx_bytes)} bytes {come} in phase {barrier.phase} of the mbarrier at "
            f"{self.place(barrier.index)}"
        )
