"""Opening the store: who may use it, and what happens where it cannot be written."""

from __future__ import annotations

import atexit
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from sparsekit.errors import StoreError
from sparsekit.model.artifact import Artifact
from sparsekit.store.local import STAGING, Store
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


def refuse_unsafe(root: Path) -> None:
    """Raise StoreError when the folder belongs to, or may be written by, somebody else."""
    found = root.stat()
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"the store {root} belongs to user {found.st_uid}, and you are {os.geteuid()}; its "
            "code would run as you. Set SPARSEKIT_CACHE_DIR to a folder of your own"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(
            f"the store {root} may be written by others (mode {stat.S_IMODE(found.st_mode):o}); "
            f"chmod 700 {root}, and clear it if you do not know what is in it"
        )
