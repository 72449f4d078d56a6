"""`python -m sparsekit` without its start: children of a process that has imported what is slow.

Each call is a fork with arguments, folder, environment and output files of its own, and ends as an
interpreter does. What an interpreter reads while it starts (PYTHON*, LD_*) cannot be given to one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NoReturn

PRELOADED = (
    "click", "rich.console", "rich.table", "numpy", "torch", "safetensors.torch", "platformdirs",
    "sparsekit.__main__", "sparsekit.cli.session", "sparsekit.report.markdown",
)  # fmt: skip


class WarmCli:
    """The process, and calls of it one after the other."""

    def __init__(self, root: Path, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=root, env={**env, "PYTHONPATH": str(root)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self, args: tuple[str, ...], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """The call's exit code and output. Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("stdout", "stderr")]
            self._say(args=args, cwd=str(cwd), env=dict(env), files=list(map(str, files)))
            child = self._answer()
            timer = threading.Timer(timeout, os.killpg, (child, signal.SIGKILL))
            timer.start()
            code = self._answer()
            late = not timer.is_alive()
            timer.cancel()
            if late:
                raise subprocess.TimeoutExpired(list(args), timeout)
            told = (file.read_bytes().decode() for file in files)
            return subprocess.CompletedProcess(list(args), code, *told)

    def close(self) -> None:
        """End the process."""
        _pipe(self._process.stdin).close()
        self._process.wait()

    def _say(self, **request: object) -> None:
        pipe = _pipe(self._process.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()

    def _answer(self) -> int:
        return int(_pipe(self._process.stdout).readline())


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def serve() -> None:
    """Start a child for each line of standard input; its number and its exit code are told."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _end(_become(**json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(args: list[str], cwd: str, env: dict[str, str], files: list[str]) -> int:
    """Run the command here; its exit code."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for descriptor, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0] = cwd
    sys.argv = ["sparsekit", *args]
    del sys.modules["sparsekit.__main__"]
    try:
        runpy.run_module("sparsekit", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as an interpreter does, but for taking apart what was imported, which takes longest."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
