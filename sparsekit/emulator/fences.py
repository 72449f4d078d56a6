"""Order that fences and atomics make between blocks, and between the warps of a block.

Source: PTX ISA, Memory Consistency Model, simplified. A release (an atomic that says so, or the
first one after a fence) at an address passes on what its block knows; an acquire (likewise, or a
fence after it) at the same address takes that in. Between blocks a block is one agent: what its
threads did before counts, whichever of them makes the fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.global_races import GlobalRaces
    from sparsekit.emulator.machine import Machine

Array = npt.NDArray[Any]


class Fences:
    """The knowledge that waits at addresses, and at fences to come."""

    def __init__(self, machine: Machine, races: GlobalRaces | None) -> None:
        self._machine, self._races = machine, races

    def fence(self, convoy: Convoy, mask: Array | None, level: str) -> None:
        """membar, fence."""

    def before_atomic(
        self, convoy: Convoy, where: str, index: Array, lanes: Array, order: tuple[str, str]
    ) -> None:
        """A strong access is about to happen."""

    def after_atomic(
        self, convoy: Convoy, where: str, index: Array, lanes: Array, order: tuple[str, str]
    ) -> None:
        """It has happened."""
