"""The README does what it says: its example is run literally, outside the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

from sparsekit.discover import Catalog

README = (ROOT / "README.md").read_text()


def blocks(heading: str) -> list[str]:
    """The code blocks of a section."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"```\w*\n(.*?)```", section, re.DOTALL)


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SPARSEKIT_CACHE_DIR": str(folder / "store")}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_kernel_in_five_minutes(tmp_path):
    """Without a GPU its `verify` emulates all nine archs."""
    done = shell(blocks("Add a kernel in five minutes")[0], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 artifacts: 9 built, 0 cached, 0 failed" in done.stdout
    assert {p.name for p in (tmp_path / "my_pool").iterdir()} == {"kernel.cu", "spec.py"}


def test_the_python_example_runs_as_it_stands(tmp_path):
    (example,) = blocks("From Python")
    (tmp_path / "example.py").write_text(f"{example}\nprint(out.shape, lse.shape, pooled.shape)\n")
    done = shell(f"PYTHONPATH={ROOT} python example.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\[[\d, ]+\]", done.stdout) == ["[4, 16, 512]", "[4, 16]", "[3, 1, 128]"]


def test_the_two_commands_are_those_of_ci():
    commands = blocks("Two commands")[0].splitlines()
    ci = (
        (ROOT / ".ci" / "run")
        .read_text()
        .replace("install -q ", "install ")
        .replace("pytest -q", "pytest")
    )
    assert commands[0] in ci
    assert commands[1].split("&& ")[0] in ci
    assert ci.rstrip().endswith("pytest")


def test_every_kernel_folder_has_a_readme():
    folders = [p.parent for p in ROOT.glob("kernels_*/*/spec.py")]
    assert folders
    assert [f for f in folders if not (f / "README.md").is_file()] == []


def test_figures_come_from_the_stored_results(run_cli):
    done = run_cli("report", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    marked = [ROOT / "README.md"]
    for kernel in Catalog().kernels:
        readme = kernel.folder / "README.md"
        if kernel.proven_on == ():
            text = " ".join(readme.read_text().split())
            assert "never run on hardware" in text or "not called proven" in text
        else:
            marked.append(readme)
    assert [f for f in marked if "<!-- sparsekit report " not in f.read_text()] == []


def test_nothing_stored_failed():
    folder = ROOT / "docs" / "results"
    files = [
        f for kind in ("verify-*", "bitwise-*", "*-bits-*") for f in folder.glob(f"{kind}.json")
    ]
    assert len(files) == 11
    for file in files:
        results = json.loads(file.read_text())["results"]
        assert [r for r in results if r["ok"] is False] == []
        assert any(r["ok"] for r in results)
    for name in ("sanitizer", "control"):
        findings = json.loads((folder / f"{name}-h200.json").read_text())["findings"]
        assert findings
        assert all(f["ok"] for f in findings)


def test_the_seeds_bits_are_all_there():
    """Seed 1's 32 layouts; seed 2's 19 shapes and 24 edge cases, each variant under each Triton."""
    folder = ROOT / "docs" / "results"
    layouts = {r["case"] for r in results_of(folder / "seed1-bits-h200.json")}
    assert len(layouts) == 32
    across = results_of(folder / "seed2-across-bits-h200.json")
    assert len({(r["op"], r["case"]) for r in across}) == 19 + 24
    new = [r for r in results_of(folder / "seed2-bits-h200.json") if ":plain" in r["against"]]
    assert len({(r["op"], r["case"]) for r in new}) == 19 + 24
    for result in (*across, *new):
        assert result["ok"], result["case"]


def results_of(file) -> list[dict]:
    return json.loads(file.read_text())["results"]


def test_no_placeholder_is_left():
    for file in [ROOT / "README.md", *ROOT.glob("*/**/README.md")]:
        assert re.findall(r"^@[A-Z]+@$", file.read_text(), re.MULTILINE) == [], file
