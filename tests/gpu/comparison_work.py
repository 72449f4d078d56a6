"""What a worker process of the comparison does: one task after another, on both machines."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from function_compare import compare_function
from function_forms import FunctionForm
from kernel_compare import KernelTask, KernelWork
from sides import Gpu
from tile_compare import compare_form
from tile_forms import MmaForm, WgmmaForm

from sparsekit.settings import Settings

_TRACE_LINES = 12


@dataclass(frozen=True)
class TileTask:
    """So many tiles of a form, of each data set."""

    form: MmaForm | WgmmaForm
    count: int

    def __str__(self) -> str:
        return self.form.name


@dataclass(frozen=True)
class FunctionTask:
    """A scalar instruction on all its operands."""

    form: FunctionForm

    def __str__(self) -> str:
        return self.form.name


Task = TileTask | FunctionTask | KernelTask
_WHAT = {TileTask: "tile", FunctionTask: "function", KernelTask: "kernel"}


def make_work(
    settings: Settings, gpu: bool, keep: Path | None
) -> Callable[[Task], list[dict[str, Any]]]:
    """The function of a worker process. gpu: whether there is one. keep: a folder for some
    of its results."""
    torch.set_num_threads(1)
    machine = Gpu() if gpu else None
    kernels = KernelWork(settings, gpu)

    def work(task: Task) -> list[dict[str, Any]]:
        try:
            if isinstance(task, TileTask):
                return compare_form(task.form, task.count, machine, keep)
            if isinstance(task, FunctionTask):
                return [compare_function(task.form, machine)]
            return kernels(task)
        except Exception as error:  # of one task: the others go on, and the record says so
            lines = traceback.format_exc().splitlines()[-_TRACE_LINES:]
            return [
                {
                    "what": _WHAT[type(task)], "subject": str(task), "ok": False, "problems": [],
                    "error": f"{type(error).__name__}: {error}", "trace": lines,
                }
            ]  # fmt: skip

    return work
