"""Start-up loads click only: the light commands import nothing heavy and touch no device."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from conftest import ROOT

HEAVY = ("torch", "triton", "cuda", "numpy")
COUNTING = ("run", "verify", "bench", "profile")
LIGHT_COMMANDS = (
    ["--help"],
    ["--version"],
    ["list"],
    ["list", "sparse_prefill"],
    ["build", "-n", "--arch", "all"],
    ["build", "--help"],
    ["run", "--help"],
    ["verify", "--help"],
    ["emulate", "--help"],
    ["doctor"],
    ["cache", "info"],
    ["cache", "verify"],
    ["completion", "bash"],
    ["report", "--check"],
    ["bench", "--help"],
    ["profile", "--help"],
    ["prove", "-n", "cu/sparse_prefill_sm100"],
    ["bundle", "--help"],
    ["bundle", "export", "out.tar.zst", "no_such_kernel"],
    *([command, "sparse_prefill", "--case", "nope"] for command in COUNTING),
    ["bench", "sparse_prefill", "--fail-if", "nope"],
    ["bench", "sparse_prefill", "--against", "gated_pool"],
)
_SCRIPT = """
import sys
from sparsekit.__main__ import run
sys.argv = ["sparsekit", *{args!r}]
try:
    run()
except SystemExit:
    pass
print("MODULES", " ".join(sorted(m for m in sys.modules if "." not in m)))
"""


@pytest.mark.parametrize("args", LIGHT_COMMANDS, ids=" ".join)
def test_light_commands_load_nothing_heavy(args, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEKIT_CACHE_DIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(args=args)], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    modules = done.stdout.split("MODULES", 1)[1].split()
    assert "click" in modules
    assert not set(HEAVY) & set(modules)


def test_help_needs_neither_rich_nor_platformdirs():
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(args=["--help"])], cwd=ROOT, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert not {"rich", "platformdirs", "dataclasses"} & set(
        done.stdout.split("MODULES", 1)[1].split()
    )


def test_importing_sparsekit_leaves_cuda_alone():
    code = "import sparsekit, sys; print(*(m.split('.')[0] for m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "sparsekit" in done.stdout.split()
    assert not {"torch", "cuda", "triton", "numpy"} & set(done.stdout.split())


def _best_s(*command: str) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def test_help_is_within_twice_the_time_of_importing_click():
    assert _best_s("-m", "sparsekit", "--help") < 2 * _best_s("-c", "import click")


@pytest.mark.parametrize("package", ["rich", "platformdirs", "torch", "triton", "cuda", "numpy"])
def test_doctor_works_without_a_package(package, run_cli, tmp_path):
    """A package that is not there is a finding, not a crash."""
    blocker = tmp_path / "blocked"
    blocker.mkdir()
    (blocker / f"{package}.py").write_text(
        f"raise ModuleNotFoundError({package!r}, name={package!r})"
    )
    done = run_cli("doctor", PYTHONPATH=str(blocker), SPARSEKIT_CACHE_DIR="")
    assert done.returncode == 0, done.stderr
    assert "Python" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["list"], ["build"], ["cache", "dir"], ["verify"]])
def test_with_click_alone_what_is_missing_is_said(command, run_cli, tmp_path):
    for package in ("rich", "platformdirs", "torch", "triton", "cuda", "numpy", "safetensors"):
        (tmp_path / f"{package}.py").write_text(
            f"raise ModuleNotFoundError({package!r}, name={package!r})"
        )
    done = run_cli(*command, PYTHONPATH=str(tmp_path), SPARSEKIT_CACHE_DIR="")
    assert done.returncode == 4, done.stderr
    assert "package platformdirs is not installed" in done.stderr
    assert "pip install platformdirs" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_click_it_is_what_is_missing(run_cli, tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('click', name='click')")
    done = run_cli("list", PYTHONPATH=str(tmp_path))
    assert done.returncode == 4
    assert "pip install click" in done.stderr
