"""Instructions that wait to be written together: many products become one call of numpy.

Waiting changes nothing, for they read and write registers only, and what they read has its name
already; they are written before anything reads a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_ITEMS = 64

Write = Callable[[Any, Any, "list[Any]", "list[str]"], None]
"""Called with the writer, how, the items, and names to give all their results in turn."""


class Deferred:
    """The instructions that wait, all of one kind. names: their results, not defined yet."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._kind: tuple[Write, Any] | None = None
        self._items: list[Any] = []
        self._results: list[str] = []

    def takes(self, write: Write, how: Any) -> bool:
        """Whether one more of this kind can wait with the others."""
        return self._kind in (None, (write, how)) and len(self._items) < _MOST_ITEMS

    def add(self, write: Write, how: Any, item: Any, results: list[str]) -> None:
        self._kind = (write, how)
        self._items.append(item)
        self._results += results
        self.names.update(results)

    def flush(self, writer: Any) -> None:
        """Write what waits."""
        if self._kind is None:
            return
        (write, how), items, results = self._kind, self._items, self._results
        self._kind, self._items, self._results = None, [], []
        self.names.clear()
        write(writer, how, items, results)
