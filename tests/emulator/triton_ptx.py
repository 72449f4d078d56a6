"""Triton kernels to PTX for the tests, each version in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class TritonKernel:
    """What a compile gave. scratch_bytes: global memory that each block needs.

    tensor_maps: how the launcher is to make each one.
    """

    ptx: str
    name: str
    shared_bytes: int
    num_warps: int
    scratch_bytes: int
    tensor_maps: Any


@cache
def compiled(site: Path, job: str) -> TritonKernel:
    """site: a folder with a Triton; job: JSON, see compile_triton.py."""
    run = subprocess.run(
        [sys.executable, str(FOLDER / "compile_triton.py")], input=job, capture_output=True,
        text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONNOUSERSITE": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return TritonKernel(**json.loads(run.stdout))
