"""Warpgroup matrix instructions in flight: their groups, and the registers that they hold.

Source: PTX ISA, Asynchronous Warpgroup Level Matrix Instructions. Between wgmma.mma_async and the
wait for its group nobody may touch its accumulators, nor write its fragments of A; what others
have touched needs a wgmma.fence before the next wgmma.mma_async uses it. Copies of registers are
the compiler's to remove: they carry the state along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import WGMMA_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


WARPS_OF_GROUP = 4

Group = tuple[int, "list[int]", Array]
"""(the row of its first warp, the rows of all, its threads in the machine)."""


@dataclass(frozen=True)
class Touch:
    """An instruction other than wgmma that uses registers of wgmma. copies: it is a mov."""

    at: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    copies: bool


class Warpgroups:
    """Per warp: groups committed and when; registers in flight; registers touched."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._checks = "wgmma" in machine.findings.checks
        rows = machine.geometry.threads // WARP
        self._committed = [0] * rows
        self._closed_at: list[dict[int, int]] = [{} for _ in range(rows)]
        self._results: list[dict[int, int]] = [{} for _ in range(rows)]
        self._inputs: list[dict[int, int]] = [{} for _ in range(rows)]
        self._touched: list[dict[int, int]] = [{} for _ in range(rows)]
        self._fenced = [False] * rows
        self._groups: dict[bytes, list[Group]] = {}

    def reset(self) -> None:
        self._committed[:] = [0] * len(self._committed)
        self._fenced[:] = [False] * len(self._fenced)
        for tables in (self._closed_at, self._results, self._inputs, self._touched):
            for table in tables:
                table.clear()

    def leader(self, row: int) -> int:
        """The row of the first warp of a warp's group."""
        geometry = self._machine.geometry
        return row - int(geometry.warp[row * WARP]) % WARPS_OF_GROUP * geometry.units

    def members(self, leader: int) -> Array:
        """The rows of a group's warps."""
        found: Array = leader + np.arange(WARPS_OF_GROUP) * self._machine.geometry.units
        return found

    def groups_of(self, rows: Array) -> list[Group]:
        """The groups of some warps, by the first row."""
        key = rows.tobytes()
        if key not in self._groups:
            self._groups[key] = [
                (leader, members.tolist(), (members[:, None] * WARP + np.arange(WARP)).reshape(-1))
                for leader in sorted({self.leader(row) for row in rows.tolist()})
                for members in (self.members(leader),)
            ]
        return self._groups[key]

    # ---- registers

    def touch(self, convoy: Convoy, touches: tuple[Touch, ...], mask: Array | None) -> None:
        """The warps have executed instructions on registers that wgmma uses."""
        if not self._checks:
            return
        for row in convoy.warps(mask).tolist():
            results, inputs, touched = self._results[row], self._inputs[row], self._touched[row]
            for touch in touches:
                if results or inputs:
                    self._check(row, touch, results, inputs)
                if not touch.copies:
                    for slot in (*touch.reads, *touch.writes):
                        touched[slot] = touch.at

    def _check(
        self, row: int, touch: Touch, results: dict[int, int], inputs: dict[int, int]
    ) -> None:
        slots = (*touch.reads, *touch.writes)
        if touch.copies:
            (source, target) = (touch.reads[:1], touch.writes[:1])
            if source and target and source[0] in results:
                results[target[0]] = results[source[0]]
                return
            slots = touch.writes
        for slot in slots:
            held = results.get(slot) is not None
            if held or (slot in touch.writes and slot in inputs):
                verb = "writes" if slot in touch.writes else "reads"
                what = "result" if held else "fragment of A"
                text = f"{verb} {self._name(slot)}, a {what} of a wgmma in flight"
                self._machine.fault("wgmma", text, touch.at, row * WARP)

    def start(self, row: int, results: tuple[int, ...], inputs: tuple[int, ...], at: int) -> None:
        """A warp executes wgmma.mma_async on these registers."""
        if not self._checks:
            return
        thread, touched = row * WARP, self._touched[row]
        if not self._fenced[row]:
            text = "no wgmma.fence comes before the warp's first wgmma.mma_async"
            self._machine.fault("wgmma", text, at, thread)
            self._fenced[row] = True
        uses = (*results, *inputs)
        for slot in () if touched.keys().isdisjoint(uses) else uses:
            if slot in touched:
                line = self._machine.line(touched[slot])
                text = f"{self._name(slot)} is used since PTX line {line} without a wgmma.fence"
                self._machine.fault("wgmma", text, at, thread)
                break
        for slot in inputs:
            if slot in self._results[row]:
                text = f"reads {self._name(slot)}, a result of a wgmma in flight"
                self._machine.fault("wgmma", text, at, thread)
        group = self._committed[row]
        self._results[row].update(dict.fromkeys(results, group))
        self._inputs[row].update(dict.fromkeys(inputs, group))

    def fence(self, convoy: Convoy, mask: Array | None) -> None:
        for row in convoy.warps(mask).tolist():
            self._touched[row].clear()
            self._fenced[row] = True

    def _name(self, slot: int) -> str:
        return self._machine.code.register_name(slot)

    # ---- groups

    def agent(self, leader: int) -> int:
        return self._machine.clocks.agent_of(leader, WGMMA_AGENT)

    def commit(self, convoy: Convoy, mask: Array | None) -> None:
        machine = self._machine
        for row in convoy.warps(mask).tolist():
            self._closed_at[row][self._committed[row]] = machine.clocks.until_now()
            self._committed[row] += 1
        if machine.log is not None:
            machine.clocks.tick()

    def wait(self, convoy: Convoy, mask: Array | None, open_groups: int) -> None:
        """The warps learn that all but so many of their groups have ended."""
        machine = self._machine
        if machine.log is not None:
            machine.log.flush()
        for row in convoy.warps(mask).tolist():
            last = self._committed[row] - open_groups - 1
            if last < 0:
                continue
            for table in (self._results[row], self._inputs[row]):
                for slot in [s for s, group in table.items() if group <= last]:
                    del table[slot]
            agent = self.agent(self.leader(row))
            known = machine.clocks.known
            known[row, agent] = max(int(known[row, agent]), self._closed_at[row][last])
