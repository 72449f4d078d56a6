"""Running compile jobs: what is in the store is taken from there, the rest goes to workers."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
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
        for thread in self._threads:
            thread.start()
        try:
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
            thread.join()

    def _run(self) -> None:
        worker: Worker | None = None
        try:
            while not self._stop.is_set():
                try:
                    job = self._jobs.popleft()
                except IndexError:
                    return
                worker = self._suited(worker, WorkerKind.of(job))
                self._done.put(self._outcome(job, worker))
        finally:
            self._retire(worker)

    def _suited(self, worker: Worker | None, kind: WorkerKind) -> Worker:
        if worker is not None and worker.kind == kind and worker.alive:
            return worker
        self._retire(worker)
        started = Worker(kind)
        with self._lock:
            self._workers.add(started)
        return started

    def _retire(self, worker: Worker | None) -> None:
        if worker is not None:
            with self._lock:
                self._workers.discard(worker)
            worker.close()

    def _outcome(self, job: CompileJob, worker: Worker) -> Outcome:
        started = time.perf_counter()
        try:
            artifact, status = self._build(job, worker)
        except SparsekitError as error:
            return Outcome(job, "failed", time.perf_counter() - started, error=error)
        except Exception as error:  # a fault of ours must not lose the other jobs
            wrapped = CompileError(f"unexpected {type(error).__name__}: {error}")
            return Outcome(job, "failed", time.perf_counter() - started, error=wrapped)
        return Outcome(job, status, time.perf_counter() - started, artifact)

    def _build(
        self, job: CompileJob, worker: Worker
    ) -> tuple[Artifact, Literal["built", "cached"]]:
        with self._store.building(job.key) as stage:
            # Another process may have built it while we waited for its lock.
            found = None if self._force else self._store.get(job.key)
            if found is not None:
                return found, "cached"
            record = worker.compile(job, stage)
            if self._force:
                self._store.remove(job.key)
            return self._store.publish(stage, _manifest(job, record)), "built"


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
