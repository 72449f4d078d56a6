"""The wheel: it carries the kernels, and works installed anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(out.glob("*.tar.gz"))
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_carries_both_kernel_folders(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("kernels_cu", "kernels_triton"):
        shipped = {str(f.relative_to(ROOT)) for f in (ROOT / folder).rglob("*") if f.is_file()}
        shipped = {f for f in shipped if "__pycache__" not in f}
        assert shipped
        assert {f"sparsekit/{f}" for f in shipped} <= set(names)
    assert not [n for n in names if "__pycache__" in n or n.startswith("tests/")]


def test_the_wheel_works_installed(wheel, tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True)
    env = {**os.environ, "PYTHONPATH": str(site), "SPARSEKIT_CACHE_DIR": str(tmp_path / "store")}

    def run(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sparsekit", *args], cwd=tmp_path, env=env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = json.loads(run("list", "--format", "json"))
    assert {k["kernel"] for k in listed["kernels"]} >= {"sparse_prefill"}
    assert all(k["folder"].startswith(str(site)) for k in listed["kernels"])
    built = json.loads(
        run("build", "cu/sparse_prefill:noskip", "--arch", "8.6", "--format", "json")
    )
    assert {a["status"] for a in built["artifacts"]} == {"built"}
