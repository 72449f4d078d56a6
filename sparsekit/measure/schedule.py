"""The order in which candidates are sampled, so that no place in a round favours one.

Source: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
treatments", Austral. J. Sci. Res. A2 (1949).
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_orders(count: int, rounds: int, seed: int) -> list[tuple[int, ...]]:
    """An order of `count` candidates for each round.

    Over every whole design (`count` rounds, twice as many where count is odd) each candidate stands
    equally often at every place and behind every other. Which candidate is which, and the order of
    a design's rounds, are drawn anew for each design.
    """
    shuffle = random.Random(seed)
    orders: list[tuple[int, ...]] = []
    while len(orders) < rounds:
        names = shuffle.sample(range(count), count)
        design = [tuple(names[place] for place in row) for row in _williams(count)]
        orders += shuffle.sample(design, len(design))
    return orders[:rounds]


def alternating_orders(count: int, rounds: int) -> list[tuple[int, ...]]:
    """First to last, then last to first, and so on."""
    forward = tuple(range(count))
    return [forward if number % 2 == 0 else forward[::-1] for number in range(rounds)]


def _williams(count: int) -> Sequence[tuple[int, ...]]:
    """Rows in which each ordered pair of neighbours occurs equally often."""
    first = [
        (place + 1) // 2 if place % 2 else (count - place // 2) % count for place in range(count)
    ]
    rows = [tuple((start + step) % count for step in first) for start in range(count)]
    return rows if count % 2 == 0 else [*rows, *(row[::-1] for row in rows)]
