"""A supervised compile worker: started on demand, fed one job at a time, replaced when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
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
    """One worker process. Closing it ends the process, whatever it is doing."""

    def __init__(self, kind: WorkerKind) -> None:
        self.kind = kind
        self._folder = tempfile.TemporaryDirectory(prefix="sparsekit-worker-")
        # Opened for appending, so that truncating it starts it anew; closed with the worker.
        self._printed = tempfile.TemporaryFile(mode="a+b")  # noqa: SIM115
        read_end, write_end = os.pipe()
        self._answers = os.fdopen(read_end, "r")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sparsekit.aot.worker", str(write_end), self._folder.name],
                stdin=subprocess.PIPE,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=(write_end,),
                env=_environment(kind, self._folder.name),
                start_new_session=True,  # Ctrl-C is ours to handle
                text=True,
            )
        finally:
            os.close(write_end)

    def compile(self, job: CompileJob, stage: Path) -> dict[str, Any]:
        """The worker's record of the job, files in `stage`. Raises the error that stopped it."""
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
        if not answer["ok"]:
            raise KINDS[answer["kind"]](answer["message"])
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._answers, self._printed):
            if stream is not None and not stream.closed:
                _close_quietly(stream)
        self._folder.cleanup()

    def _death(self, job: CompileJob) -> SparsekitError:
        """What a worker that ended without an answer left behind, as one message."""
        code = self._process.wait()
        printed = os.pread(self._printed.fileno(), 1 << 20, 0).decode(errors="replace")
        if told := _UNKNOWN_TARGET.search(printed):
            return ToolchainError(f"{job.toolchain.id} does not know {job.arch}: {told[0].strip()}")
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        last = [line for line in printed.splitlines() if line.strip()][-3:]
        return CompileError("\n".join([f"{job.toolchain.id} died ({how})", *last]))


def _close_quietly(stream: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # a request that the dead process never read
        stream.close()


def _request(job: CompileJob, stage: Path) -> dict[str, Any]:
    tools = job.toolchain.tools
    return {
        "job": {**job.identity, "dtypes": dict(job.instance.dtypes)},
        "stage": str(stage),
        "sources": [[s.name, str(s.path), s.sha256] for s in job.sources],
        "library": str(tools.get("library", "")),
        "include": str(tools["include"]) if "include" in tools else None,
    }


def _environment(kind: WorkerKind, folder: str) -> dict[str, str]:
    """What the worker sees: our import path with the toolchain's site first, private folders."""
    path = [kind.site, str(_PACKAGE_ROOT), *(p for p in sys.path if p)]
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
