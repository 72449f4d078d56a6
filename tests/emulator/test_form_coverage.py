"""Whether the tests of single instructions run every form of the table, and every choice of each.

Tests that only ask whether an instruction is taken do not count: test_matrix_shapes, test_table,
test_form_spellings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seen_forms

HERE = Path(__file__).parent
MODULES = (
    "atomics", "barriers", "bulk_copy", "checks", "clusters", "collective", "comparison",
    "control_flow", "conversion", "floating", "integer", "launch_control", "mbarrier",
    "memory_access", "movement", "spellings", "tcgen05", "tcgen05_pairs", "tensor_copy",
    "tensormap", "warp_matrix", "wgmma",
)  # fmt: skip


def test_modules_are_there():
    assert all((HERE / f"test_{name}.py").is_file() for name in MODULES)


def test_what_is_wanted_is_what_the_table_has():
    forms = {key for key in seen_forms.wanted() if not key[2]}
    assert len(forms) == len(seen_forms.places())
    assert len(seen_forms.wanted()) > 3000


@pytest.mark.slow
def test_every_choice_of_every_form_is_run(tmp_path):
    """One run of the tests, which notes what of the table their code matches."""
    file = tmp_path / "seen.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "seen_forms", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(f"test_{name}.py" for name in MODULES)], cwd=HERE, capture_output=True,
        text=True, check=False,
        env={**os.environ, seen_forms.FILE: str(file), "SPARSEKIT_TEST_SLOW": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    seen = {tuple(entry) for entry in json.loads(file.read_text())}
    wanted = seen_forms.wanted()
    left = [(key, form.base) for key, form in wanted.items() if key not in seen]
    assert not left, left
