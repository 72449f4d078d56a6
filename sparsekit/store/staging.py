"""Building aside: one lock per key, a folder of its own for every attempt, and sweeping the dead.

The lock keeps two processes from compiling the same thing, and tells whether the owner of a staged
folder still lives: the kernel drops it when a process dies, however it dies. Correctness never
hangs on it (publishing is a rename), so a file system without locks costs double work only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.05
_WAIT_S = 120.0  # behind the lock of another process; then we build for ourselves
_FOREIGN_AGE_S = 24 * 3600.0  # a staged folder of another host is dead after this
_DIR_MODE = 0o700


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents, closed to others whatever the umask."""
    missing = [folder, *folder.parents]
    for part in reversed([p for p in missing if not p.exists()]):
        part.mkdir(mode=_DIR_MODE, exist_ok=True)


@contextmanager
def key_lock(folder: Path, key: str) -> Iterator[None]:
    """Hold the key's lock; go ahead without it when it cannot be had in time, or at all."""
    file = folder / f"{key}.lock"
    descriptor = _acquire(file)
    try:
        yield
    finally:
        if descriptor is not None:
            file.unlink(missing_ok=True)
            os.close(descriptor)


def _acquire(file: Path) -> int | None:
    deadline = time.monotonic() + _WAIT_S
    while True:
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        held = _wait(descriptor, deadline)
        if held and _is_at(descriptor, file):
            return descriptor
        os.close(descriptor)
        if not held:
            return None  # its owner unlinks it; ours would be a lock that nobody respects


def _wait(descriptor: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        except OSError:
            return False  # no locks on this file system


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether the file that we locked is still the one with that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def aside(folder: Path, key: str) -> Path:
    """A free name for a folder of the key's that `sweep` knows how to judge."""
    return folder / f"{key}.{_host()}.{secrets.token_hex(4)}"


@contextmanager
def staged_folder(folder: Path, key: str) -> Iterator[Path]:
    """A new empty folder for one attempt; what is left of it afterwards is removed."""
    stage = aside(folder, key)
    stage.mkdir(mode=_DIR_MODE)
    try:
        yield stage
    finally:
        discard(stage)


def discard(path: Path) -> None:
    """Remove a folder as far as it goes; what stays is swept another time."""
    shutil.rmtree(path, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove staged folders whose owner is dead, and locks that nobody holds."""
    if not folder.is_dir():
        return
    for stage in [p for p in folder.iterdir() if p.is_dir()]:
        key, _, rest = stage.name.partition(".")
        ours = rest.startswith(f"{_host()}.")
        if (ours and _unheld(folder / f"{key}.lock")) or _age_s(stage) > _FOREIGN_AGE_S:
            discard(stage)
    for lock in folder.glob("*.lock"):
        if _unheld(lock):
            lock.unlink(missing_ok=True)


def _unheld(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _host() -> str:
    return socket.gethostname().partition(".")[0] or "localhost"
