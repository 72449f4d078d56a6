"""Building aside: one lock per key, a folder of its own for every attempt, and sweeping the dead.

The key's lock keeps two processes from compiling the same thing; the lock on a staged folder tells
whether its owner still lives: the kernel drops both when a process dies, however it dies.
Correctness never hangs on them (publishing is a rename), so a file system without locks costs
double work only. Nothing is removed but by who holds its lock, and sees that it still has its name.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsekit.errors import StoreError
from sparsekit.store.layout import FOLDER_MODE

_POLL_S = 0.05
_WAIT_S = 120.0  # behind the lock of another process; then we build for ourselves
_FOREIGN_AGE_S = 24 * 3600.0  # a staged folder of another host is dead after this
_ATTEMPTS = 8  # a sweep may take a new folder before its owner has locked it


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents, closed to others whatever the umask."""
    missing = [folder, *folder.parents]
    for part in reversed([p for p in missing if not p.exists()]):
        part.mkdir(mode=FOLDER_MODE, exist_ok=True)


def never() -> bool:
    return False


@contextmanager
def key_lock(
    folder: Path, key: str, *, wait_s: float | None = None, stop: Callable[[], bool] = never
) -> Iterator[bool | None]:
    """Hold the key's lock, or go ahead without it: False when it cannot be had in time, None where
    the file system has no locks.

    stop(): asked while waiting; StoreError when it says so.
    """
    file = folder / f"{key}.lock"
    held, descriptor = _acquire(file, _WAIT_S if wait_s is None else wait_s, stop)
    try:
        yield held
    finally:
        if descriptor is not None:
            if _is_at(descriptor, file):
                file.unlink(missing_ok=True)
            os.close(descriptor)


def _acquire(file: Path, wait_s: float, stop: Callable[[], bool]) -> tuple[bool | None, int | None]:
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            held = _wait(descriptor, deadline, stop)
            if held and _is_at(descriptor, file):
                return True, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if not held:
            return held, None  # its owner unlinks it; ours would be one that nobody respects


def _wait(descriptor: int, deadline: float, stop: Callable[[], bool]) -> bool | None:
    while True:
        tried = _try(descriptor)
        if tried is not False or time.monotonic() > deadline:
            return tried
        if stop():
            raise StoreError("stopped while another process was building the same")
        time.sleep(_POLL_S)


def _try(descriptor: int) -> bool | None:
    """Whether the lock is ours now; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether what we locked is still what has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def aside(folder: Path, key: str) -> Path:
    """A free name for a folder of the key's that `sweep` knows how to judge."""
    return folder / f"{key}.{_host()}.{secrets.token_hex(4)}"


@contextmanager
def staged_folder(folder: Path, key: str) -> Iterator[Path]:
    """A new empty folder for one attempt, locked while it is used; what is left of it afterwards is
    removed. Raises OSError when none can be made."""
    stage, descriptor = _new_stage(folder, key)
    try:
        yield stage
    finally:
        discard(stage)
        os.close(descriptor)


def _new_stage(folder: Path, key: str) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        stage = aside(folder, key)
        stage.mkdir(mode=FOLDER_MODE)
        try:
            descriptor = os.open(stage, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        if _try(descriptor) is not False and _is_at(descriptor, stage):
            return stage, descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"every new folder in {folder} is removed at once")


def discard(path: Path) -> None:
    """Remove a folder (or a file) as far as it goes; what stays is swept another time."""
    if path.is_file():
        path.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove staged folders whose owner is dead, and locks that nobody holds."""
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone, or none of ours
        try:
            _sweep_one(path, descriptor)
        finally:
            os.close(descriptor)


def _sweep_one(path: Path, descriptor: int) -> None:
    held = _try(descriptor)
    if held is False or not _is_at(descriptor, path):
        return
    if not path.is_dir():
        if held and path.suffix == ".lock":
            path.unlink(missing_ok=True)
        return
    # The locks of another host may not reach us over a shared file system.
    ours = path.name.partition(".")[2].startswith(f"{_host()}.")
    if (held and ours) or _age_s(path) > _FOREIGN_AGE_S:
        discard(path)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _host() -> str:
    return socket.gethostname().partition(".")[0] or "localhost"
