"""Triton kernels to PTX for the tests, each version in one process of its own."""

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


class _Compiler:
    """A process with one version of Triton, which takes most of a second to start."""

    def __init__(self, site: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "compile_triton.py")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(site), "PYTHONNOUSERSITE": "1"},
        )  # fmt: skip

    def compile(self, job: str) -> TritonKernel:
        assert self._process.stdin
        assert self._process.stdout
        print(job, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "it ended; its standard error is ours"
        return TritonKernel(**json.loads(answer))


_compiler = cache(_Compiler)


@cache
def compiled(site: Path, job: str) -> TritonKernel:
    """site: a folder with a Triton; job: a line of JSON, see compile_triton.py."""
    return _compiler(site).compile(job)
