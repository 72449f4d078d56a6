"""Python's search for cycles of objects: not while much is made, of which nothing is a cycle."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Python does not look for cycles meanwhile. It would go through all instructions of all
    programs each time, and neither parsing nor a launch leaves cycles to be found."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
