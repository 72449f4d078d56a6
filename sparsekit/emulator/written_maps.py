"""Tensor maps that a launch has written, and that must be acquired before copies use them.

Source: PTX ISA, fence.proxy.tensormap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class WrittenMaps:
    """By block: tensor maps that it has written in global memory and not acquired yet."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._written: dict[tuple[int, int], int] = {}

    def reset(self) -> None:
        self._written.clear()

    def write(self, thread: int, address: int, at: int) -> None:
        self._written[int(self._machine.tensor_memory.block_of(thread)), address] = at

    def acquire(self, thread: int, address: int) -> None:
        self._written.pop((self._machine.tensor_memory.block_of(thread), address), None)

    def check(self, thread: int, address: int, at: int) -> None:
        """A copy uses a tensor map."""
        machine = self._machine
        written_at = self._written.get((machine.tensor_memory.block_of(thread), address))
        if written_at is not None:
            text = (
                f"a copy uses the tensor map that PTX line {machine.line(written_at)} has written, "
                "and there is no fence.proxy.tensormap::generic.acquire between the two"
            )
            machine.fault("proxy-fence", text, at, thread)
