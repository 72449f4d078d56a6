"""Any kernel of a spec on the CPU: chosen, built and launched as on a device of an arch."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsekit import settings as settings_module
from sparsekit.aot.execute import execute
from sparsekit.aot.plan import Planner
from sparsekit.check.subject import arguments_of
from sparsekit.discover import Catalog
from sparsekit.emulator import Allocation, Memory, Report, Schedule, launch, load, pack_values
from sparsekit.model import Case, Op
from sparsekit.model.arch import parse_arch
from sparsekit.model.artifact import Artifact
from sparsekit.model.call import Device
from sparsekit.model.kernel import passed_args
from sparsekit.operators.plan import plan_call
from sparsekit.runtime.select import Candidate, argument_number, decide
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains

_SM_COUNT = 132
_NUMPY = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
_NUMPY |= {"i32": np.int32, "i64": np.int64, "u8": np.uint8}


class NotBuilt(Exception):
    """The kernel does not compile for an arch at this commit."""


class Builder:
    """Builds what a call needs, into one store."""

    def __init__(self, folder: Path) -> None:
        self.settings = settings_module.load(cache_dir=folder)
        self.store = open_store(folder, print)
        self.planner = Planner(Toolchains(self.settings))

    def artifact(self, reference: str, candidate: Candidate) -> Artifact:
        (choice,) = Catalog().resolve([reference])
        job = self.planner.job(choice, candidate.variant.name, candidate.instance, candidate.arch)
        (outcome,) = execute([job], self.store, workers=1)
        if outcome.artifact is None:
            raise NotBuilt(str(outcome.error))
        return outcome.artifact


@cache
def shared_builder() -> Builder:
    """One builder for all tests of a run; its store goes when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="sparsekit-test-")
    atexit.register(folder.cleanup)
    return Builder(Path(folder.name))


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def run_case(
    builder: Builder, reference: str, arch: str, case: Case, op: Op, inputs: Mapping[str, Any],
    schedule: Schedule | None = None, edit: Callable[[str], str] = str,
) -> tuple[list[Report], dict[str, np.ndarray]]:  # fmt: skip
    """The reports of a case's launches, and its outputs as numpy arrays (bf16 as float32).

    edit changes the PTX before it runs.
    """
    target = parse_arch(arch)
    device = Device(target.compute_capability, _SM_COUNT, target.shared_bytes_optin)
    wanted = tuple(
        o.name for o in op.outputs if not o.optional or case.options.get(f"return_{o.name}")
    )
    plan = plan_call(op, replace(arguments_of(op, inputs, {}), outputs=wanted), device)
    (choice,) = Catalog().resolve([reference])
    candidate = next(
        d.candidate for d in decide([(choice.kernel, choice.variants)], plan.call)
        if d.taken and d.candidate
    )  # fmt: skip
    artifact = builder.artifact(reference, candidate)
    memory = Memory()
    places: dict[str, Allocation] = {
        name: memory.allocate(bits_of(value), name)
        for name, value in inputs.items() if isinstance(value, torch.Tensor)
    }  # fmt: skip
    scratch = {s.name: s for step in candidate.launches for s in step.scratch}
    for buffer in (*plan.outputs, *scratch.values()):
        size = int(np.prod(buffer.shape)) * np.dtype(_NUMPY[buffer.dtype]).itemsize
        places[buffer.name] = memory.allocate(size, buffer.name)
    reports = []
    for step in candidate.launches:
        record = artifact.manifest.entry(step.entry)
        values: dict[str, int | float] = {
            p.name: 0 for p in record.params if p.name.endswith("_scratch")
        }
        for arg in passed_args(candidate.kernel.entry(step.entry), candidate.instance):
            if arg.is_pointer:
                place = places.get(arg.bound_to)
                values[arg.name] = place.address if place else 0
            else:
                values[arg.name] = argument_number(arg, step, plan.call)
        table = [(p.name, p.type, p.offset, p.size) for p in record.params]
        report = launch(
            load(edit(artifact.ptx(step.entry))), step.entry, step.grid, record.threads,
            pack_values(table, values), memory, shared_bytes=record.dynamic_shared_bytes,
            cluster=record.cluster or (1, 1, 1), schedule=schedule,
        )  # fmt: skip
        reports.append(report)
    outputs = {}
    for buffer in plan.outputs:
        data = memory.read(places[buffer.name], _NUMPY[buffer.dtype], buffer.shape)
        if buffer.dtype == "bf16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        outputs[buffer.name] = data
    return reports, outputs
