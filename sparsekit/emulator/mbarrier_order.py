"""Order about mbarriers: made before use, seen before the next phase ends, ended last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.mbarrier_objects import MBarrier, MBarrierTexts

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class MBarrierOrder:
    """Finds what nothing orders, by the clocks."""

    def __init__(self, machine: Machine, texts: MBarrierTexts) -> None:
        self._machine, self._texts = machine, texts

    def check_seen(self, barrier: MBarrier, thread: int, at: int) -> None:
        """Whoever ends an mbarrier must know that all have seen its last phase."""
        clocks = self._machine.clocks
        for row, (stamp, waited_at) in barrier.seen.items():
            if clocks.known[thread // WARP, clocks.happened + clocks.warp_of_row[row]] < stamp:
                text = self._texts.ends_early(barrier, row, waited_at)
                self._machine.fault("mbarrier", text, at, thread)

    def check_ordered(self, barrier: MBarrier, thread: int, at: int) -> None:
        """Whoever uses an mbarrier must know of its initialisation."""
        machine = self._machine
        if machine.log is not None:
            clocks = machine.clocks
            if clocks.known[thread // WARP, barrier.stamp & int(clocks.agent_mask)] < barrier.stamp:
                machine.fault("mbarrier", self._texts.used_early(barrier), at, thread)

    def check_visible(self, barrier: MBarrier, at: int, thread: int) -> None:
        """Whether the async proxy sees the mbarrier on which a thread's copy completes."""
        clocks = self._machine.clocks
        agent = barrier.stamp & int(clocks.agent_mask)
        if clocks.known[thread // WARP, clocks.agents + agent] < barrier.stamp:
            text = self._texts.not_visible(barrier)
            self._machine.fault("mbarrier-proxy-fence", text, at, thread)

    def check_overrun(self, barrier: MBarrier, at: int, thread: int) -> None:
        """A phase must not end before all have seen the one before end."""
        clocks = self._machine.clocks
        for row, (stamp, waited_at) in barrier.seen.items():
            if barrier.arriving[clocks.happened + clocks.warp_of_row[row]] < stamp:
                text = self._texts.overrun(barrier, row, waited_at)
                self._machine.fault("mbarrier", text, at, thread)
