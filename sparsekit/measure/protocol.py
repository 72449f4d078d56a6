"""How samples are taken and become one figure: ours, and the two seeds' own methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sparsekit.measure.schedule import alternating_orders, balanced_orders

# Samples [..., rounds, iterations] to a figure [...].
Figure = Callable[[Any], Any]


def median(samples: Any) -> Any:
    """The median of all samples."""
    return np.median(samples.reshape(*samples.shape[:-2], -1), axis=-1)


def median_of_medians(samples: Any) -> Any:
    """The median over the rounds of each round's median."""
    return np.median(np.median(samples, axis=-1), axis=-1)


def best_median(samples: Any) -> Any:
    """The least of the rounds' medians."""
    return np.median(samples, axis=-1).min(axis=-1)


@dataclass(frozen=True)
class Protocol:
    """rounds: each takes every candidate `iterations` times. order: of the candidates in a round;
    alternating rounds interleave their iterations. l2, method: None leaves them to the options and
    the duration. window_s: the least length of a graph's sample."""

    name: str
    rounds: int
    iterations: int
    order: Literal["balanced", "alternating"]
    figure: Figure
    said: str
    l2: Literal["cold", "warm"] | None = None
    method: Literal["graph", "events"] | None = None
    window_s: float = 1e-3
    warm_rounds: int = 3

    def orders(self, count: int, seed: int) -> list[tuple[int, ...]]:
        """An order of the candidates for each round."""
        if self.order == "balanced":
            return balanced_orders(count, self.rounds, seed)
        return alternating_orders(count, self.rounds)


DEFAULT_ROUNDS = 40
PROTOCOLS = {
    "sparsekit": Protocol(
        "sparsekit", DEFAULT_ROUNDS, 1, "balanced", median,
        "median over rounds that sample every candidate once, in shuffled balanced order",
    ),
    "seed1": Protocol(
        "seed1", 3, 100, "alternating", median_of_medians,
        "median of the medians of 100 interleaved iterations in 3 alternating rounds",
        l2="warm", method="events",
    ),
    "seed2": Protocol(
        "seed2", 2, 10, "alternating", best_median,
        "best of two medians over 10 replays of a CUDA graph of about 20 ms",
        l2="warm", method="graph", window_s=20e-3,
    ),
}  # fmt: skip
