"""Fixtures that every test may use, and the skip of what this machine cannot run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from warm_cli import WarmCli

from sparsekit.runtime.probe import Probe, probe_devices

ROOT = Path(__file__).resolve().parents[1]
MAKE_TOOLCHAINS = "SPARSEKIT_TEST_TOOLCHAINS"
RUN_SLOW = "SPARSEKIT_TEST_SLOW"
# By mark, the variable without which its tests are skipped, and what it is set for.
ASKED_FOR = {
    "toolchains": (MAKE_TOOLCHAINS, "to fetch compilers"),
    "slow": (RUN_SLOW, "for what takes minutes"),
}
AT_START = ("PYTHON", "LD_")  # variables that the interpreter and the loader read
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
COMPILERS = (
    "triton==3.6.0", "triton==3.7.1", "triton==3.8.0", "triton==3.9.0", "nvrtc==13.5.37",
)  # fmt: skip


def pytest_configure() -> None:
    """Workers side by side have a core each; threads of torch and numpy wait for each other there,
    spinning."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        for variable in THREADS:
            os.environ.setdefault(variable, "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        probe = probe_devices()
        if not probe.devices:
            reason = f"no GPU: {probe.problem or 'the driver shows none'}"
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason=reason))
    for mark, (variable, purpose) in ASKED_FOR.items():
        if not os.environ.get(variable):
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=f"set {variable}=1 {purpose}"))


@pytest.fixture(scope="session")
def probe() -> Probe:
    return probe_devices()


@pytest.fixture(scope="session")
def known_digests(tmp_path_factory) -> Path:
    """The digests of the compilers' files, kept from one test's store to the next."""
    return tmp_path_factory.mktemp("digests") / "compilers.json"


@pytest.fixture(scope="session")
def warm_cli():
    """Started with the first call."""
    started: list[WarmCli] = []

    def call(*call) -> subprocess.CompletedProcess[str]:
        if not started:
            started.append(WarmCli(ROOT, os.environ))
        return started[0].run(*call)

    yield call
    for process in started:
        process.close()


@pytest.fixture
def run_cli(tmp_path: Path, known_digests: Path, warm_cli):
    """Run `python -m sparsekit` as a user would; the store is a folder of the test's own.

    In an interpreter of its own only where a variable is given that is read at its start.
    """

    def run(*args: str, cwd: Path = ROOT, timeout: float = 300, **env: str):
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("SPARSEKIT_")}
        full = {
            **inherited,
            "SPARSEKIT_CACHE_DIR": str(tmp_path / "store"),
            "COLUMNS": "200",
            **env,
        }
        full["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        own = tmp_path / "store" / known_digests.name
        if known_digests.exists() and not own.parent.exists():
            own.parent.mkdir(mode=0o700)
            shutil.copy(known_digests, own)
        if any(name.startswith(AT_START) for name in env):
            done = subprocess.run(
                [sys.executable, "-m", "sparsekit", *args], cwd=cwd, env=full, text=True,
                capture_output=True, timeout=timeout, check=False,
            )  # fmt: skip
        else:
            done = warm_cli(args, cwd, full, timeout)
        if own.exists():
            shutil.copy(own, known_digests)
        return done

    return run


def common_folder(tmp_path_factory, variable: str, name: str) -> Path:
    """One folder for all processes of a run; the variable names one that outlives it."""
    folder = Path(os.environ.get(variable) or common_root(tmp_path_factory) / name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def common_root(tmp_path_factory) -> Path:
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def shipped_store(tmp_path_factory) -> Path:
    """A store of what we ship: who needs an artifact first builds it, and others find it.

    $SPARSEKIT_TEST_STORE keeps it between runs.
    """
    return common_folder(tmp_path_factory, "SPARSEKIT_TEST_STORE", "shipped")


@pytest.fixture
def run_shipped(run_cli, shipped_store):
    """`run_cli` with the store of what we ship."""
    return partial(run_cli, SPARSEKIT_CACHE_DIR=str(shipped_store))


@pytest.fixture(scope="session")
def toolchain_data_dir(tmp_path_factory) -> Path:
    """A data folder with the compilers; $SPARSEKIT_TEST_TOOLCHAIN_DIR keeps it between runs."""
    data = common_folder(tmp_path_factory, "SPARSEKIT_TEST_TOOLCHAIN_DIR", "data")
    command = [sys.executable, "-m", "sparsekit", "toolchain", "add", *COMPILERS]
    env = {**os.environ, "SPARSEKIT_DATA_DIR": str(data), "PYTHONPATH": str(ROOT)}
    with (data / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(command, check=True, env=env, cwd=data)
    return data
