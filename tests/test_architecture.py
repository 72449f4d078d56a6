"""The house's rules: import layers, who may import what, no import with an effect."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "sparsekit"
# Which modules may import a package, as path prefixes below sparsekit/.
ALLOWED = {
    "click": ("cli/", "__main__"),
    "rich": ("cli/", "report/"),
    "torch": ("runtime/tensors", "check/", "measure/", "ops/", "cli/device"),
    "triton": ("aot/triton_aot",),
    "numpy": ("emulator/", "check/", "measure/"),
    "cuda": ("runtime/driver", "runtime/nvml", "aot/nvrtc"),
    "platformdirs": ("settings",),
    "safetensors": ("check/files",),
    "zstandard": ("store/bundle", "codegen/fatbin"),
    "lz4": ("codegen/fatbin",),
}
MAX_LINES = 330


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_import_layers():
    done = subprocess.run(
        ["lint-imports"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("package", ALLOWED)
def test_package_is_imported_only_where_it_may_be(package):
    offenders = [
        str(file.relative_to(PACKAGE))
        for file in _sources()
        if package in _imports(file)
        and not str(file.relative_to(PACKAGE)).startswith(ALLOWED[package])
    ]
    assert offenders == []


def test_environment_is_read_in_one_place():
    offenders = [
        str(file.relative_to(PACKAGE))
        for file in _sources()
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            for node in ast.walk(ast.parse(file.read_text()))
        )
    ]
    assert offenders == ["settings.py"]


def test_no_module_is_called_by_what_everything_is():
    banned = {"utils", "util", "helpers", "common", "misc", "base", "core"}
    assert [f for f in _sources() if f.stem in banned] == []


def test_files_stay_small():
    long = {
        str(f.relative_to(ROOT)): n
        for f in _sources()
        if (n := len(f.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_the_store_is_never_unpickled_or_imported():
    for file in (PACKAGE / "store").glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imported = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        imported |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
        called = {getattr(n.func, "id", "") for n in nodes if isinstance(n, ast.Call)}
        assert not {"pickle", "marshal", "shelve", "importlib", "runpy"} & imported, file
        assert not {"eval", "exec", "__import__"} & called, file


def test_ruff_and_mypy_are_content():
    for command in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy", "-p", "sparsekit"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
