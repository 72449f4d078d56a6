"""Supervised workers: every job has one outcome, whatever becomes of the process it is given to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.aot import execute as execute_module
from sparsekit.aot import process
from sparsekit.aot.execute import execute
from sparsekit.aot.plan import Planner
from sparsekit.aot.process import Worker, WorkerKind
from sparsekit.discover import Catalog
from sparsekit.errors import CompileError
from sparsekit.model.arch import parse_archs
from sparsekit.model.artifact import CompileJob
from sparsekit.settings import load
from sparsekit.store import staging
from sparsekit.store.local import Store
from sparsekit.toolchain.find import Toolchains

SCALE = str(ROOT / "tests" / "fixtures" / "kernels" / "scale_cu")
# What a worker does that answers each request after a while: json, time, sys, os are imported.
_FAKE = """
import json, os, sys, time
answers = os.fdopen(int(sys.argv[1]), "w", buffering=1)
for line in sys.stdin:
    request = json.loads(line)
    {body}
"""


@pytest.fixture
def jobs(tmp_path) -> list[CompileJob]:
    planner = Planner(Toolchains(load(cache_dir=tmp_path / "store")))
    choices = Catalog(()).resolve([f"{SCALE}:plain"])
    return list(planner.plan(choices, parse_archs("8.0;9.0;12.0"), every_instance=False).jobs)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store", pytest.fail)


@pytest.fixture
def fake(monkeypatch):
    """Put a script in the place of the worker's module."""

    def use(body: str) -> None:
        real = subprocess.Popen
        script = _FAKE.format(body=body.replace("\n", "\n    "))

        def popen(command, **options):
            return real([sys.executable, "-c", script, *command[3:]], **options)

        monkeypatch.setattr(process.subprocess, "Popen", popen)

    return use


def finished(work, seconds: float = 30.0):
    """What `work` returns; a failure when it takes longer."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "never ended"
    return found[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_a_worker_that_cannot_be_started_fails_its_job(code, jobs, store, monkeypatch):
    def refuse(kind):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(execute_module, "Worker", refuse)
    outcomes = finished(lambda: list(execute(jobs, store, workers=2)))
    assert sorted(o.job.key for o in outcomes) == sorted(j.key for j in jobs)
    assert {o.status for o in outcomes} == {"failed"}
    assert all(os.strerror(code) in str(o.error) for o in outcomes)


def test_a_worker_that_took_too_long_is_not_asked_again(jobs, tmp_path, fake, monkeypatch):
    fake(
        'time.sleep(1.0 if request["job"]["arch"] == "sm_80" else 0.0)\n'
        'print(json.dumps({"key": request["key"], "ok": True}), file=answers)'
    )
    monkeypatch.setattr(process, "_JOB_LIMIT_S", 0.5)
    worker = Worker(WorkerKind.of(jobs[0]))
    try:
        with pytest.raises(CompileError, match="did not finish"):
            worker.compile(jobs[0], tmp_path)
        assert not worker.alive
        time.sleep(1.0)
        with pytest.raises(CompileError, match="died"):
            worker.compile(jobs[1], tmp_path)
    finally:
        worker.close()


def test_an_answer_to_another_job_is_refused(jobs, tmp_path, fake):
    fake('print(json.dumps({"key": "another", "ok": True}), file=answers)')
    worker = Worker(WorkerKind.of(jobs[0]))
    try:
        with pytest.raises(CompileError, match="answered to another"):
            worker.compile(jobs[0], tmp_path)
        assert not worker.alive
    finally:
        worker.close()


def test_what_a_worker_runs_ends_with_it(jobs, tmp_path, fake):
    fake(
        "import subprocess\n"
        'child = subprocess.Popen(["sleep", "60"])\n'
        'print(json.dumps({"key": request["key"], "ok": True, "pid": child.pid}), file=answers)'
    )
    worker = Worker(WorkerKind.of(jobs[0]))
    child = worker.compile(jobs[0], tmp_path)["pid"]
    worker.close()
    deadline = time.monotonic() + 10
    while _runs(child):
        assert time.monotonic() < deadline, "the child survives"
        time.sleep(0.01)


def test_what_a_worker_runs_ends_with_its_builder(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    script = (
        "import queue, subprocess, sys\n"
        "from pathlib import Path\n"
        "from sparsekit.aot.worker import _receive\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True)\n"
        "_receive(queue.SimpleQueue(), Path(sys.argv[1]))\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.DEVNULL, cwd=ROOT,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    child = int(worker.stdout.readline())
    worker.wait(timeout=20)
    worker.stdout.close()
    deadline = time.monotonic() + 10
    while _runs(child) or folder.exists():
        assert time.monotonic() < deadline, "the child or its folder survives"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_that_starts_while_all_end_is_ended(jobs, store, fake, monkeypatch):
    fake("time.sleep(60)")
    starting, go_on = threading.Event(), threading.Event()

    def slow_start(kind):
        starting.set()
        go_on.wait()
        return Worker(kind)

    monkeypatch.setattr(execute_module, "Worker", slow_start)
    pool = execute_module._Pool(jobs, store, 1, force=False)
    pool._threads[0].start()
    assert starting.wait(20)
    threading.Timer(0.5, go_on.set).start()
    finished(pool._end, seconds=20)


def test_waiting_behind_another_process_ends_with_the_pool(jobs, store):
    pool = execute_module._Pool(jobs[:1], store, 1, force=False)
    with staging.key_lock(store._staging(), jobs[0].key):
        pool._threads[0].start()
        time.sleep(0.3)
        finished(pool._end, seconds=10)


def test_the_worker_starts_in_a_folder_that_is_the_same_everywhere(jobs, tmp_path, fake):
    fake('print(json.dumps({"key": request["key"], "ok": True, "in": os.getcwd()}), file=answers)')
    worker = Worker(WorkerKind.of(jobs[0]))
    try:
        assert worker.compile(jobs[0], tmp_path)["in"] == "/"
    finally:
        worker.close()
