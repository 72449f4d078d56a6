"""What the worker processes of tests do; apart, because each of them imports this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from sparsekit.errors import UsageError


def doing(name: str):
    return {"echo": _echo, "die": _die, "fail": _fail, "refuse": _refuse, "threads": _threads}[name]


def _echo(task):
    return task


def _threads(task):
    return os.environ.get(task)


def _die(task):
    os.kill(os.getpid(), signal.SIGKILL)


def _fail(task):
    raise ZeroDivisionError("by zero")


def _refuse(task):
    raise UsageError("not this one")


def sleepers(folder: str):
    def work(task):
        Path(folder, str(os.getpid())).touch()
        time.sleep(1000 if task == 1 else 0)
        return task

    return work
