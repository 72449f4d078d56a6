"""Figures with their uncertainty, and what may be said of two of them.

Intervals are percentile bootstraps (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap",
1993, chapter 13). Ratios resample both candidates together: what a round did to one, it did to the
other, and it cancels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsekit.measure.protocol import Figure
from sparsekit.model.bench import Interval, Verdict

CONFIDENCE = 0.99
RESAMPLES = 4000
LEAST_SAMPLES = 8  # below it the bootstrap of a median is too narrow to be believed


def interval_of(samples: Any, figure: Figure, seed: int = 0) -> Interval | None:
    """The 99 % interval of the figure; samples [rounds, iterations]. None with too few samples."""
    if samples.size < LEAST_SAMPLES:
        return None
    return _percentiles(figure(_resampled(samples, _draws(samples.shape, seed))))


def ratio_interval_of(samples: Any, base: Any, figure: Figure) -> Interval | None:
    """The 99 % interval of the ratio of the figures; both [rounds, iterations], paired. None with
    too few samples, or where a draw of the base comes to 0."""
    if samples.size < LEAST_SAMPLES:
        return None
    draws = _draws(samples.shape)
    with np.errstate(divide="ignore", invalid="ignore"):  # a base of 0 is no base
        return _percentiles(figure(_resampled(samples, draws)) / figure(_resampled(base, draws)))


def _draws(shape: tuple[int, int], seed: int = 0) -> Any:
    """Indices [RESAMPLES, rounds, iterations]: of rounds, or within rounds of many iterations."""
    rounds, iterations = shape
    random = np.random.default_rng(seed)
    if iterations == 1:
        return random.integers(0, rounds, (RESAMPLES, rounds, 1))
    own = np.arange(rounds)[None, :, None] * iterations
    return own + random.integers(0, iterations, (RESAMPLES, rounds, iterations))


def _resampled(samples: Any, draws: Any) -> Any:
    return samples.reshape(-1)[draws]


def _percentiles(figures: Any) -> Interval | None:
    if not np.isfinite(figures).all():
        return None
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(figures, (tail, 1 - tail))
    return Interval(float(low), float(high))


def noise_floor(control: Interval | None) -> float:
    """How far a ratio must be from 1 before it means anything, from the base against itself.

    0 where the control's interval holds 1: then the intervals tell the noise themselves.
    """
    if control is None or control.holds(1.0):
        return 0.0
    return max(abs(control.low - 1), abs(control.high - 1))


def verdict_of(ratio: Interval | None, margin: float, floor: float) -> Verdict:
    """What a ratio of times says. margin: of what counts as the same, 0.01 for 1 %.

    floor: of the noise, from `noise_floor`, or one step of the timer where that is more; a
    difference inside it cannot be told, nor that there is none where it passes the margin.
    """
    if ratio is None:
        return "can't tell"
    if floor <= margin and 1 - margin <= ratio.low and ratio.high <= 1 + margin:
        return "same"
    if ratio.high < 1 - floor:
        return "faster"
    if ratio.low > 1 + floor:
        return "slower"
    return "can't tell"
