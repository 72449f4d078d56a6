"""This program again, in a process of its own that may crash or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sparsekit.settings import own_environment

_LAST_WORDS_S = 5.0  # a process that left the session may hold the pipe open
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How it ended. code: None where it had to be ended after the limit. stderr: empty where the
    user saw it."""

    code: int | None
    stderr: str = ""


def run_again(arguments: Sequence[str], limit_s: float, *, log: Path | None = None) -> Ended:
    """`sparsekit` with these arguments, ended with all its children after the limit.

    log: what it says beside its result goes to the user and, line by line, to this file, so that it
    is there whatever ends this process. Raises OSError where it cannot start or the file be made.
    """
    with contextlib.nullcontext() if log is None else log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "sparsekit", *arguments], env=_environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert process.stderr is not None
        told: list[str] = []
        reader = threading.Thread(target=_read, args=(process.stderr, told, file), daemon=True)
        reader.start()
        try:
            process.wait(limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Ended(None)
        finally:
            reader.join(_LAST_WORDS_S)
        return Ended(process.returncode, "" if log else "".join(told))


def _read(pipe: IO[str], told: list[str], file: IO[str] | None) -> None:
    """Each line to the list, or to the file and the user."""
    for line in pipe:
        if file is None:
            told.append(line)
        else:
            print(line, end="", file=file, flush=True)
            print(line, end="", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    """Ours, so that the GPUs have the same numbers; with the same packages."""
    path = os.pathsep.join([str(_PACKAGE_ROOT), *filter(None, sys.path)])
    return own_environment({"PYTHONPATH": path})
