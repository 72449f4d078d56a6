"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from sparsekit.errors import UsageError


def replace_file(file: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `file`, then put it in its place at one stroke.

    Raises UsageError when the folder does not take it; nothing is left behind then.
    """
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        os.close(descriptor)
        temporary = Path(name)
        write(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, file)
        temporary = None
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
