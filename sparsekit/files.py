"""Files that are whole or not there, what JSON files hold, and paths as typed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsekit.errors import UsageError


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `file` at one stroke.

    Where `file` is a symlink, its target is replaced. What is no regular file, a fifo or a device,
    stays what it is and gets the content written into it. Raises UsageError when it cannot be
    written; nothing is left behind then.
    """
    try:
        mode = _mode(file)
        if mode is None or stat.S_ISREG(mode):
            _replace(Path(os.path.realpath(file)), write, mode)
        else:
            _write_through(file, write)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error


def parse_json(text: str | bytes) -> Any:
    """What JSON holds. Raises ValueError for what is none, or is nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def expanded(path: str | Path, origin: str) -> Path:
    """The absolute path, `~` and `~user` replaced. origin: what the user knows it by.

    Raises UsageError for a user that does not exist, and for what no file system can look up.
    """
    try:
        found = Path(path).expanduser().absolute()
        _mode(found)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{origin} {str(path)!r} is no path: {error}") from error
    except PermissionError:  # it may be there; who opens it is told
        return found
    except OSError as error:
        raise UsageError(f"{origin} {str(path)!r} is no path: {error.strerror}") from error
    return found


def is_folder(path: str) -> bool:
    """Whether there is a folder of that path, as typed."""
    try:
        return Path(path).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


def _mode(file: Path) -> int | None:
    """The mode of what the path leads to; None where there is nothing yet."""
    try:
        return file.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _replace(file: Path, write: Callable[[Path], object], mode: int | None) -> None:
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:32]}.")
        os.close(descriptor)
        temporary = Path(name)
        write(temporary)
        os.chmod(temporary, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
        os.replace(temporary, file)
        temporary = None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _write_through(file: Path, write: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory(prefix="sparsekit-") as folder:
        content = Path(folder) / "content"
        write(content)
        with content.open("rb") as source, file.open("wb") as target:
            shutil.copyfileobj(source, target)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
