"""From samples to times, ratios and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparsekit.measure.engine import Samples
from sparsekit.measure.protocol import Protocol
from sparsekit.measure.statistics import (
    interval_of,
    noise_floor,
    ratio_interval_of,
    verdict_of,
)
from sparsekit.model.bench import Ceilings, Interval, Timing
from sparsekit.model.op import Work


@dataclass(frozen=True)
class Summary:
    """timings in the order of the candidates; control: the base against itself."""

    timings: tuple[Timing, ...]
    control: float | None
    control_interval: Interval | None


def summarise(
    timings: Sequence[Timing], samples: Samples, protocol: Protocol, *, base: int,
    control: int | None, margin: float, resolution_s: float, work: Work | None,
    ceilings: Ceilings | None,
) -> Summary:  # fmt: skip
    """The timings with what their samples say.

    base, control: places in the samples; the control is a second row of the base. resolution_s: of
    one sample, per call; a time that is not above it is not told. margin: 0.01 for 1 %.
    """
    arrays = [np.array(rounds, dtype=np.float64) for rounds in samples.seconds]
    ratio_of_control: float | None = None
    control_interval: Interval | None = None
    told_apart = _above(arrays[base], resolution_s)
    if control is not None and told_apart and _above(arrays[control], resolution_s):
        ratio_of_control = _ratio(arrays[control], arrays[base], protocol)
        control_interval = ratio_interval_of(arrays[control], arrays[base], protocol.figure)
    floor = noise_floor(control_interval)
    if told_apart:
        # two times cannot be told apart below a step of the timer
        floor = max(floor, resolution_s / float(protocol.figure(arrays[base])))
    found = []
    for place, timing in enumerate(timings):
        rounds = samples.seconds[place]
        timed = _timed(replace(timing, samples_s=rounds), arrays[place], protocol, resolution_s)
        if place != base and timed.time_s is not None and told_apart:
            interval = ratio_interval_of(arrays[place], arrays[base], protocol.figure)
            timed = replace(
                timed, ratio=_ratio(arrays[place], arrays[base], protocol),
                ratio_interval=interval, verdict=verdict_of(interval, margin, floor),
            )  # fmt: skip
        found.append(_with_rates(timed, work, ceilings))
    return Summary(tuple(found), ratio_of_control, control_interval)


def _timed(timing: Timing, samples: Any, protocol: Protocol, resolution_s: float) -> Timing:
    if not samples.size:
        return replace(timing, problem="no sample was kept: the GPU was slowed down throughout")
    if not _above(samples, resolution_s):
        return replace(timing, below_resolution=True)
    return replace(
        timing, time_s=float(protocol.figure(samples)),
        interval_s=interval_of(samples, protocol.figure),
    )  # fmt: skip


def _above(samples: Any, resolution_s: float) -> bool:
    """Whether the samples can be told from nothing; events may even differ by less than 0."""
    return bool(samples.size) and float(np.median(samples)) > resolution_s


def _ratio(samples: Any, base: Any, protocol: Protocol) -> float | None:
    below = float(protocol.figure(base))
    return float(protocol.figure(samples)) / below if below > 0 else None


def _with_rates(timing: Timing, work: Work | None, ceilings: Ceilings | None) -> Timing:
    if timing.time_s is None or work is None:
        return timing
    tflops, gbps = work.flop / timing.time_s / 1e12, work.bytes / timing.time_s / 1e9
    if ceilings is None:
        return replace(timing, tflops=tflops, gbps=gbps)
    return replace(
        timing, tflops=tflops, gbps=gbps, matmul_share=tflops / ceilings.matmul_tflops,
        copy_share=gbps / ceilings.copy_gbps,
    )  # fmt: skip
