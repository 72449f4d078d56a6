"""Asynchronous operations in flight: what the hardware does behind the threads' backs.

An operation is issued by threads, takes effect when the schedule says so, and is forced by a wait
for it. What orders its effects is kept in the clocks, so faults do not depend on when that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sparsekit.emulator.schedule import Choices


class Operation(Protocol):
    """One issue of an asynchronous instruction. stream: operations of one take effect in turn."""

    @property
    def stream(self) -> object | None: ...

    def perform(self) -> None:
        """Take effect, in whole or in what is left."""


class Engine:
    """The operations that have been issued and have not yet taken effect, oldest first."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.pending: list[Operation] = []

    def issue(self, operation: Operation) -> None:
        if self._choices.is_eager:
            operation.perform()
        else:
            self.pending.append(operation)

    def advance(self) -> bool:
        """Perform one operation, the oldest or a drawn one; False where none is in flight."""
        if not self.pending:
            return False
        chosen = self._choices.below(len(self.pending)) if self._choices.is_random else 0
        stream = self.pending[chosen].stream
        if stream is not None:
            chosen = next(i for i, op in enumerate(self.pending) if op.stream == stream)
        self.pending.pop(chosen).perform()
        return True

    def force(self, wanted: Callable[[Operation], bool]) -> None:
        """Perform those wanted, and what comes before them in their streams."""
        due = [op for op in self.pending if wanted(op)]
        for operation in due:
            for earlier in list(self.pending):
                if earlier is operation:
                    break
                if operation.stream is not None and earlier.stream == operation.stream:
                    self._perform(earlier)
            if operation in self.pending:
                self._perform(operation)

    def _perform(self, operation: Operation) -> None:
        self.pending.remove(operation)
        operation.perform()

    def drain(self) -> None:
        while self.advance():
            pass
