"""Opening the store: who may use it, and what happens where it cannot be written."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

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
    try:
        make_folder(root)
        refuse_unsafe(root)
        if os.access(root, os.W_OK | os.X_OK):
            sweep(root / STAGING)
            return Store(root, notify)
        problem = "it is not writable"
    except OSError as error:
        problem = error.strerror or str(error)
    notify(
        f"the store {root} cannot be written ({problem}); what is built now is lost at the end. "
        "Set SPARSEKIT_CACHE_DIR to a folder of yours"
    )
    temporary = Path(tempfile.mkdtemp(prefix="sparsekit-"))
    atexit.register(discard, temporary)
    return ReadOnlyStore(Store(root, notify), temporary, notify)
