"""Schedules: which warps run next, and when asynchronous operations take effect.

eager: at once; lazy: as late as a wait allows; random: at times, and with warps in an order, that
the seed draws. Faults are found from the order that synchronisation enforces, so a schedule can
only change results, and those of a right kernel it cannot change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sparsekit.errors import UsageError

KINDS = ("eager", "lazy", "random")
_RUN_AN_OPERATION = 0.3  # how often a random step performs an operation instead of a block
_END_A_WAIT = 0.2  # how often a random try or test of an mbarrier ends without success
_RUN_ONE_WARP = 0.5  # how often a random step leaves the other warps at the block behind


@dataclass(frozen=True)
class Schedule:
    """One way to run a launch. seed matters to random only."""

    kind: str = "lazy"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"unknown schedule {self.kind!r}; there are {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"random({self.seed})" if self.kind == "random" else self.kind


class Choices:
    """The draws of one launch."""

    def __init__(self, schedule: Schedule) -> None:
        self.is_random = schedule.kind == "random"
        self.is_eager = schedule.kind == "eager"
        self._random = random.Random(schedule.seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)

    def run_an_operation(self) -> bool:
        return self.is_random and self._random.random() < _RUN_AN_OPERATION

    def run_one_warp(self) -> bool:
        return self._random.random() < _RUN_ONE_WARP

    def end_a_wait_early(self) -> bool:
        return self.is_random and self._random.random() < _END_A_WAIT
