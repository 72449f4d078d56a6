"""Where the store keeps what, and who could have written there: what others may is never run."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sparsekit.errors import StoreError

ENTRIES, STAGING = "v1", "staging"
FOLDER_MODE = 0o700  # whatever the umask


def distrust(found: os.stat_result) -> str | None:
    """Why a folder is not ours alone to write; None when it is."""
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, and you are {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def refuse_unsafe(root: Path) -> None:
    """Raise StoreError when others could have written into the store.

    Only the root may be reached through a symbolic link.
    """
    folders = [(root, root.stat()), *((p, _lstat(p)) for p in (root / ENTRIES, root / STAGING))]
    for folder, found in folders:
        problem = distrust(found) if found is not None else None
        if problem is not None:
            raise StoreError(
                f"the store's folder {folder} {problem}; its code would run as you. Set "
                "SPARSEKIT_CACHE_DIR to a folder of your own, or remove it and "
                f"chmod 700 {root}"
            )


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
