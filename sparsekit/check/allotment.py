"""Which task a worker does next: rather one of a kind whose preparation it has behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Allotment(Generic[T]):
    """Tasks that wait, in their order, each of a kind.

    A worker goes on with the kinds that it has begun, then begins the first that nobody has, and
    helps with the one of most tasks left when there is none.
    """

    def __init__(self, tasks: Sequence[T], kind_of: Callable[[T], Hashable]) -> None:
        self._left = [(number, kind_of(task)) for number, task in enumerate(tasks)]
        self._begun: dict[Hashable, set[Hashable]] = {}  # by worker

    def next(self, worker: Hashable) -> int | None:
        """The number of the worker's next task; None when all have been given out."""
        if not self._left:
            return None
        own = self._begun.setdefault(worker, set())
        others = set().union(*self._begun.values())
        most = Counter(kind for _, kind in self._left).most_common(1)[0][0]
        wanted = (own.__contains__, lambda kind: kind not in others, lambda kind: kind == most)
        position = next(
            position
            for accepts in wanted
            for position, (_, kind) in enumerate(self._left)
            if accepts(kind)
        )
        number, kind = self._left.pop(position)
        own.add(kind)
        return number
