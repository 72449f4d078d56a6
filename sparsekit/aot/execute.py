"""Running compile jobs: what is in the store is taken from there, the rest goes to workers."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sparsekit.aot.process import Worker, WorkerKind
from sparsekit.errors import CompileError, SparsekitError, ToolchainError
from sparsekit.model.artifact import Artifact, CompileJob, Manifest, entry_record_from_json
from sparsekit.store.local import Store
from sparsekit.version import VERSION

_POLL_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """What came of a job. error is set when it failed, artifact when it did not."""

    job: CompileJob
    status: Literal["built", "cached", "failed"]
    seconds: float
    artifact: Artifact | None = None
    error: SparsekitError | None = None

    def __str__(self) -> str:
        return f"{self.job}, {self.seconds:.2f} s"


def execute(
    jobs: Sequence[CompileJob], store: Store, *, workers: int, force: bool = False
) -> Iterator[Outcome]:
    """Outcomes as they come, cached ones first. A failing job does not stop the others.

    Leaving the iteration early (Ctrl-C) ends the workers and leaves nothing half-built.
    """
    missing: deque[CompileJob] = deque()
    for job in jobs:
        started = time.perf_counter()
        artifact = None if force else store.get(job.key)
        if artifact is None and not job.toolchain.compiles:
            yield Outcome(job, "failed", time.perf_counter() - started, error=_elsewhere(job))
        elif artifact is None:
            missing.append(job)
        else:
            yield Outcome(job, "cached", time.perf_counter() - started, artifact)
    if missing:
        yield from _Pool(missing, store, min(workers, len(missing)), force).outcomes()


def _elsewhere(job: CompileJob) -> ToolchainError:
    return ToolchainError(
        f"{job} is in no bundle that was imported, and {job.toolchain.id} is not here to build it; "
        f"where it is: {job.build_command}, then sparsekit bundle export"
    )


class _Pool:
    """Threads that each keep one worker process, and take jobs of its kind first."""

    def __init__(self, jobs: deque[CompileJob], store: Store, size: int, force: bool) -> None:
        # Triton first: its jobs are the long ones.
        order = sorted(jobs, key=lambda j: (j.kernel.lang != "triton", j.toolchain.id))
        self._jobs, self._store, self._force = deque(order), store, force
        self._done: queue.Queue[Outcome] = queue.Queue()
        self._stop = threading.Event()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(size)]

    def outcomes(self) -> Iterator[Outcome]:
        expected = len(self._jobs)
        try:
            for thread in self._threads:
                thread.start()
            while expected:
                try:
                    outcome = self._done.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                expected -= 1
                yield outcome
        finally:
            self._end()

    def _end(self) -> None:
        self._stop.set()
        with self._lock:
            for worker in self._workers:
                worker.kill()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        held = _Held(self._register, self._unregister)
        try:
            while not self._stop.is_set():
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    return
                self._done.put(self._outcome(job, held))
        finally:
            held.retire()

    def _register(self, worker: Worker) -> None:
        """Let `_end` reach the worker; one that comes after it is dead at once."""
        with self._lock:
            self._workers.add(worker)
            if self._stop.is_set():
                worker.kill()

    def _unregister(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)

    def _outcome(self, job: CompileJob, held: _Held) -> Outcome:
        """The one outcome of the job, whatever happens to it."""
        started = time.perf_counter()
        try:
            artifact, status = self._build(job, held)
        except SparsekitError as error:
            return Outcome(job, "failed", time.perf_counter() - started, error=error)
        except Exception as error:  # a fault of ours must not lose the other jobs
            wrapped = CompileError(f"unexpected {type(error).__name__}: {error}")
            return Outcome(job, "failed", time.perf_counter() - started, error=wrapped)
        return Outcome(job, status, time.perf_counter() - started, artifact)

    def _build(self, job: CompileJob, held: _Held) -> tuple[Artifact, Literal["built", "cached"]]:
        with self._store.building(job.key, stop=self._stop.is_set) as stage:
            # Another process may have built it while we waited for its lock.
            found = None if self._force else self._store.get(job.key)
            if found is not None:
                return found, "cached"
            record = held.worker(WorkerKind.of(job)).compile(job, stage)
            if self._force:
                self._store.remove(job.key)
            return self._store.publish(stage, _manifest(job, record)), "built"


class _Held:
    """The worker that a thread keeps from one job to the next of its kind."""

    def __init__(
        self, register: Callable[[Worker], None], unregister: Callable[[Worker], None]
    ) -> None:
        self._register, self._unregister = register, unregister
        self._worker: Worker | None = None

    def worker(self, kind: WorkerKind) -> Worker:
        """A living worker of that kind. Raises CompileError when none can be started."""
        if self._worker is not None and self._worker.kind == kind and self._worker.alive:
            return self._worker
        self.retire()
        try:
            self._worker = Worker(kind)
        except OSError as error:
            raise CompileError(f"cannot start a process to compile in: {error}") from error
        self._register(self._worker)
        return self._worker

    def retire(self) -> None:
        retired, self._worker = self._worker, None
        if retired is not None:
            self._unregister(retired)
            retired.close()


def _manifest(job: CompileJob, record: dict[str, Any]) -> Manifest:
    return Manifest(
        key=job.key,
        identity=job.identity,
        entries=tuple(entry_record_from_json(e) for e in record["entries"]),
        ptx=record["ptx"],
        warnings=tuple(record["warnings"]),
        provenance={
            "sparsekit": VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": record["seconds"],
        },
    )
