"""Opening the store: who may use it, and what happens where it cannot be written."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from sparsekit.errors import StoreError
from sparsekit.model.artifact import Artifact
from sparsekit.store.layout import STAGING, refuse_unsafe
from sparsekit.store.local import Store
from sparsekit.store.staging import discard, make_folder, sweep


class ReadOnlyStore(Store):
    """A store that may be read, with a temporary one above it for what has to be built."""

    def __init__(self, below: Store, root: Path, notify: Callable[[str], None]) -> None:
        super().__init__(root, notify)
        self._below = below

    def has(self, key: str) -> bool:
        return super().has(key) or self._below.has(key)

    def get(self, key: str) -> Artifact | None:
        return super().get(key) or self._below.get(key)


def open_store(root: Path, notify: Callable[[str], None]) -> Store:
    """The store at `root`, made if missing and freed of what dead builders left.

    Raises StoreError when others could write into it.

    Where it cannot be written, one warning, and artifacts go into a temporary folder that lives as
    long as the process.
    """
    problem = _made_writable(root)
    if problem is None:
        return Store(root, notify)
    notify(
        f"the store {root} cannot be written ({problem}); what is built now is lost at the end. "
        "Set SPARSEKIT_CACHE_DIR to a folder of yours"
    )
    temporary = Path(tempfile.mkdtemp(prefix="sparsekit-"))
    atexit.register(discard, temporary)
    return ReadOnlyStore(Store(root, notify), temporary, notify)


def writable_store(root: Path, notify: Callable[[str], None]) -> Store:
    """The same for a change of the store itself. Raises StoreError where it cannot be written."""
    problem = _made_writable(root)
    if problem is not None:
        raise StoreError(
            f"the store {root} cannot be written ({problem}); name one of yours with --cache-dir "
            "or SPARSEKIT_CACHE_DIR"
        )
    return Store(root, notify)


def _made_writable(root: Path) -> str | None:
    """Make the store if it is missing, and tidy it; what is in the way, None for nothing."""
    try:
        make_folder(root)
        refuse_unsafe(root)
        if not os.access(root, os.W_OK | os.X_OK):
            return "it is not writable"
        sweep(root / STAGING)
    except OSError as error:
        return error.strerror or str(error)
    return None
