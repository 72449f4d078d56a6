"""Calls of device functions: where each thread goes on when it returns.

Source: PTX ISA, Control Flow Instructions: call, ret. A register belongs to a function, not to a
call, and so does a frame: there is no recursion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


class CallStack:
    """Per thread the blocks to return to, the innermost last."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        depth = len(machine.code.functions)  # no recursion: each function at most once
        self._return_to = np.zeros((depth, machine.geometry.threads), np.int32)
        self._depth = np.zeros(machine.geometry.threads, np.int32)

    def reset(self) -> None:
        self._depth[:] = 0

    def enter(self, convoy: Convoy, mask: Array | None, callee: str, return_to: int) -> None:
        threads = convoy.lanes(mask)
        self._return_to[self._depth[threads], threads] = return_to
        self._depth[threads] += 1
        self._machine.wake(threads, self._machine.code.first_block[callee])

    def leave(self, convoy: Convoy, mask: Array | None) -> None:
        """Return; from the entry, exit."""
        threads = convoy.lanes(mask)
        outer = self._depth[threads] == 0
        if not outer.any():
            self._depth[threads] -= 1
            self._machine.at[threads] = self._return_to[self._depth[threads], threads]
            return
        inner = threads[~outer]
        self._depth[inner] -= 1
        self._machine.at[inner] = self._return_to[self._depth[inner], inner]
        leaving = np.zeros(convoy.n, np.bool_)
        leaving[threads[outer] - convoy.lo] = True
        self._machine.exit(convoy, None if leaving.all() else leaving)
