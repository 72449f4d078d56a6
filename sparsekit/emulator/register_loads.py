"""Registers that tcgen05.ld has yet to fill: whoever uses them must have waited.

Source: PTX ISA, tcgen05.ld, tcgen05.wait::ld. Hardware also waits by itself where a register is
used, and some compilers rely on it, so the check is one of the strict ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.warpgroups import Touch

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class RegisterLoads:
    """Per warp the registers in flight, with the instruction that loads each."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._checks = "tensor-load" in machine.findings.checks
        self._loading: dict[int, dict[int, int]] = {}

    def reset(self) -> None:
        self._loading.clear()

    def start(self, row: int, slots: tuple[int, ...], at: int) -> None:
        if self._checks:
            self._loading.setdefault(row, {}).update(dict.fromkeys(slots, at))

    def wait(self, rows: Array) -> None:
        for row in rows.tolist():
            self._loading.pop(row, None)

    def touch(self, convoy: Convoy, touches: tuple[Touch, ...], mask: Array | None) -> None:
        """The warps have executed instructions on registers that tcgen05.ld uses."""
        if not self._loading:
            return
        for row in convoy.warps(mask).tolist():
            loading = self._loading.get(row)
            for touch in touches if loading else ():
                self._check(row, touch, loading or {})

    def _check(self, row: int, touch: Touch, loading: dict[int, int]) -> None:
        if touch.copies and touch.reads and touch.reads[0] in loading:
            loading.update(dict.fromkeys(touch.writes, loading[touch.reads[0]]))
            return
        for slot in touch.reads:
            if slot in loading:
                name = self._machine.code.register_name(slot)
                text = (
                    f"reads {name}, which a tcgen05.ld in PTX line "
                    f"{self._machine.line(loading[slot])} has yet to fill: there is no "
                    "tcgen05.wait::ld between the two"
                )
                self._machine.fault("tensor-load", text, touch.at, row * WARP)
