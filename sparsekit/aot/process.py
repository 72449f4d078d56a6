"""A supervised compile worker: started on demand, fed one job at a time, replaced when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsekit.aot.worker import KINDS
from sparsekit.errors import CompileError, SparsekitError, ToolchainError
from sparsekit.model.artifact import CompileJob
from sparsekit.settings import child_environment

_JOB_LIMIT_S = 900.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# How LLVM ends a process that it asks for a target it does not have.
_UNKNOWN_TARGET = re.compile(
    r"LLVM ERROR: [^\n]*does not support target[^\n]*|[^\n]*is not a recognized processor[^\n]*"
)


@dataclass(frozen=True)
class WorkerKind:
    """What a worker process is for: its toolchain and the environment that the compiler reads."""

    toolchain: str
    site: str
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, job: CompileJob) -> WorkerKind:
        environment = job.compiler.get("environment", {})
        site = str(job.toolchain.site)
        return cls(job.toolchain.fingerprint, site, tuple(sorted(environment.items())))


class Worker:
    """One worker process and what it runs. Closing it ends them, whatever they are doing.

    Raises OSError when there is no room for another process, its pipes or its folder.
    """

    def __init__(self, kind: WorkerKind) -> None:
        self.kind = kind
        self._killed = False
        with contextlib.ExitStack() as opened:
            # The worker makes it, so that no folder is left by who dies before there is a worker.
            folder = f"{tempfile.gettempdir()}/sparsekit-worker-{secrets.token_hex(8)}"
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            # Opened for appending, so that truncating it starts it anew.
            self._printed = opened.enter_context(tempfile.TemporaryFile(mode="a+b"))
            read_end, write_end = os.pipe()
            self._answers = opened.enter_context(os.fdopen(read_end, "r"))
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sparsekit.aot.worker", str(write_end), folder],
                    stdin=subprocess.PIPE,
                    stdout=self._printed,
                    stderr=self._printed,
                    pass_fds=(write_end,),
                    cwd="/",  # the same for all, since compilers look around them
                    env=_environment(kind, folder),
                    start_new_session=True,  # Ctrl-C is ours to handle, and `kill` takes them all
                    text=True,
                )
            finally:
                os.close(write_end)
            self._opened = opened.pop_all()

    def compile(self, job: CompileJob, stage: Path) -> dict[str, Any]:
        """The worker's record of the job, files in `stage`. Raises the error that stopped it.

        A worker that did not answer to this very job is dead afterwards.
        """
        try:
            answer = self._answer(job, stage)
            if answer["key"] != job.key:
                raise CompileError(f"the worker answered to {answer['key']}, and not to {job.key}")
        except BaseException:
            self.kill()
            raise
        if not answer["ok"]:
            raise KINDS[answer["kind"]](job.with_paths(answer["message"]))
        return answer

    def _answer(self, job: CompileJob, stage: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(_request(job, stage)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death(job) from None
        ready, _, _ = select.select([self._answers], [], [], _JOB_LIMIT_S)
        if not ready:
            raise CompileError(f"{job.toolchain.id} did not finish within {_JOB_LIMIT_S:.0f} s")
        line = self._answers.readline()
        if not line:
            raise self._death(job)
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def alive(self) -> bool:
        return not self._killed and self._end(os.WNOHANG) is None

    def kill(self) -> None:
        """End the process and its children. Not after `close`: the number may be another's then."""
        self._killed = True  # which takes a moment: until then the process looks alive
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a request that the dead process never read
            self._process.stdin.close()
        with contextlib.suppress(OSError):
            self._opened.close()

    def _end(self, options: int) -> os.waitid_result | None:
        """How the process ended. It is not reaped before `close`, so that its number stays ours."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options)

    def _death(self, job: CompileJob) -> SparsekitError:
        """What a worker that ended without an answer left behind, as one message."""
        end = self._end(0)
        assert end is not None
        printed = os.pread(self._printed.fileno(), 1 << 20, 0).decode(errors="replace")
        if told := _UNKNOWN_TARGET.search(printed):
            return ToolchainError(f"{job.toolchain.id} does not know {job.arch}: {told[0].strip()}")
        if end.si_code == os.CLD_EXITED:
            how = f"exit code {end.si_status}"
        else:
            how = f"signal {signal.Signals(end.si_status).name}"
        last = [line for line in printed.splitlines() if line.strip()][-3:]
        return CompileError("\n".join([f"{job.toolchain.id} died ({how})", *last]))


def _request(job: CompileJob, stage: Path) -> dict[str, Any]:
    tools = job.toolchain.tools
    return {
        "key": job.key,
        "job": {**job.identity, "dtypes": dict(job.instance.dtypes)},
        "stage": str(stage.absolute()),
        "sources": [[s.name, str(s.path.absolute()), s.sha256] for s in job.sources],
        "library": str(tools["library"].absolute()) if "library" in tools else None,
        "include": str(tools["include"].absolute()) if "include" in tools else None,
    }


def _environment(kind: WorkerKind, folder: str) -> dict[str, str]:
    """What the worker sees: our import path with the toolchain's site first, private folders."""
    path = [kind.site, str(_PACKAGE_ROOT), *(p for p in sys.path if p)]
    path = [os.path.abspath(p) for p in path]
    keep = {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)),
        "PYTHONSAFEPATH": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONHASHSEED": "0",
        "TMPDIR": folder,
        "TRITON_CACHE_DIR": folder,
        **dict(kind.environment),
    }
    return child_environment(keep)
