"""This program again, in a process of its own that may crash or hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsekit.settings import own_environment

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How it ended. code: None where it had to be ended after the limit. stderr: empty where the
    user saw it."""

    code: int | None
    stderr: str = ""


def run_again(arguments: Sequence[str], limit_s: float, *, talks: bool = False) -> Ended:
    """`sparsekit` with these arguments, ended with all its children after the limit.

    talks: what it says beside its result goes to the user. Raises OSError where it cannot start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sparsekit", *arguments], env=_environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=None if talks else subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        _, stderr = process.communicate(timeout=limit_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return Ended(None)
    return Ended(process.returncode, stderr or "")


def _environment() -> dict[str, str]:
    """Ours, so that the GPUs have the same numbers; with the same packages."""
    path = os.pathsep.join([str(_PACKAGE_ROOT), *filter(None, sys.path)])
    return own_environment({"PYTHONPATH": path})
