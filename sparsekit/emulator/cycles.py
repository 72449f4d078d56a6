"""Python's search for cycles of objects: not while much is made, of which nothing is a cycle."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pause:
    """How many threads want no search now, and whether the first of them has switched it off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was_on = False

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_on:
                gc.enable()


_PAUSE = _Pause()


@contextmanager
def no_collection() -> Iterator[None]:
    """Python does not look for cycles meanwhile. It would go through all instructions of all
    programs each time, and neither parsing nor a launch leaves cycles to be found."""
    _PAUSE.enter()
    try:
        yield
    finally:
        _PAUSE.leave()
