"""Taking the samples: interleaved rounds against a clock that is handed in.

Nothing here knows of a GPU: `clock(i)` is one sample of candidate i in seconds per call, `watch()`
one reading of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sparsekit.measure.protocol import Protocol
from sparsekit.model.bench import Reading

Clock = Callable[[int], float]
Watch = Callable[[], Reading]
# The device was not itself: it was too hot, or the board slowed it down.
SLOWDOWNS = frozenset({
    "hardware slowdown", "hardware thermal slowdown", "software thermal slowdown",
    "hardware power brake",
})  # fmt: skip
POWER_CAP = "software power cap"
_CLOCKS_MOVED = 0.05
_MOST_DISCARDED = 2  # rounds thrown away per round that is wanted, before giving up


@dataclass(frozen=True)
class Samples:
    """seconds: [candidate][round][iteration]. discarded: rounds that a slowdown spoilt."""

    seconds: tuple[tuple[tuple[float, ...], ...], ...]
    readings: tuple[Reading, ...]
    discarded: int


def take_samples(count: int, protocol: Protocol, clock: Clock, watch: Watch, seed: int) -> Samples:
    """Every candidate in every round. A round in which the device was slowed down is repeated.

    After too many of those the rounds that are left are returned, and `discarded` tells.
    """
    for order in protocol.orders(count, seed + 1)[: protocol.warm_rounds]:
        for candidate in order:
            clock(candidate)
    kept: list[list[tuple[float, ...]]] = [[] for _ in range(count)]
    readings: list[Reading] = []
    discarded = 0
    for order in protocol.orders(count, seed):
        while True:
            taken = _round(order, protocol.iterations, clock)
            reading = watch()
            if not SLOWDOWNS & set(reading.reasons):
                break
            discarded += 1
            if discarded > _MOST_DISCARDED * protocol.rounds:
                return _samples(kept, readings, discarded)
        readings.append(reading)
        for candidate, times in taken.items():
            kept[candidate].append(tuple(times))
    return _samples(kept, readings, discarded)


def _round(order: Sequence[int], iterations: int, clock: Clock) -> dict[int, list[float]]:
    taken: dict[int, list[float]] = {candidate: [] for candidate in order}
    for _ in range(iterations):
        for candidate in order:
            taken[candidate].append(clock(candidate))
    return taken


def _samples(
    kept: list[list[tuple[float, ...]]], readings: list[Reading], discarded: int
) -> Samples:
    return Samples(tuple(tuple(rounds) for rounds in kept), tuple(readings), discarded)


def cautions(samples: Samples) -> tuple[str, ...]:
    """What a reader must know of the device during the samples."""
    told: list[str] = []
    readings = samples.readings
    capped = sum(POWER_CAP in r.reasons for r in readings)
    if capped:
        told.append(f"power capped in {capped} of {len(readings)} rounds")
    if samples.discarded:
        told.append(f"{samples.discarded} rounds discarded: the GPU was hot or slowed by hardware")
    clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz]
    if clocks and max(clocks) > (1 + _CLOCKS_MOVED) * min(clocks):
        told.append(f"SM clocks moved between {min(clocks)} and {max(clocks)} MHz")
    return tuple(told)
