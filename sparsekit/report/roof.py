"""The roofline as numbers: points under the roof of a run's copy and matmul, both axes of logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsekit.model.bench import Ceilings


@dataclass(frozen=True)
class Point:
    """One measured call: FLOP per byte moved, and TFLOP/s reached. series: what shares a colour."""

    label: str
    flop_per_byte: float
    tflops: float
    series: str = ""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis."""

    low: float
    high: float

    def share(self, value: float) -> float:
        """Where a value stands, 0 at the low end and 1 at the high one."""
        low = math.log(self.low)
        return (math.log(max(value, self.low)) - low) / (math.log(self.high) - low)

    def value(self, share: float) -> float:
        return self.low * math.pow(self.high / self.low, share)

    @property
    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        return [10.0**power for power in range(first, last + 1)]


@dataclass(frozen=True)
class Roof:
    """What a GPU can reach. ridge: the FLOP per byte from which on the matmul bounds it."""

    ceilings: Ceilings

    @property
    def ridge(self) -> float:
        return self.ceilings.matmul_tflops * 1e3 / self.ceilings.copy_gbps

    def by_copy(self, flop_per_byte: float) -> float:
        """TFLOP/s that the copy's bytes allow."""
        return self.ceilings.copy_gbps * flop_per_byte / 1e3

    def height(self, flop_per_byte: float) -> float:
        """TFLOP/s."""
        return min(self.by_copy(flop_per_byte), self.ceilings.matmul_tflops)

    def axes(self, points: Sequence[Point]) -> tuple[Axis, Axis]:
        """FLOP per byte, and TFLOP/s, with room for every point, the ridge and the matmul."""
        placed = [p.flop_per_byte for p in points] + [self.ridge]
        x = Axis(min(placed) / 2, max(placed) * 2)
        low = min([p.tflops for p in points] + [self.by_copy(x.low)]) / 2
        high = max([p.tflops for p in points] + [self.ceilings.matmul_tflops]) * 1.6
        return x, Axis(low, high)
