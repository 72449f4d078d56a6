"""One run of one call, for `sparsekit run`: what was launched, how long it took, what came out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsekit.check.compare import tensor_sha256
from sparsekit.check.subject import arguments_of
from sparsekit.check.workload import Workload
from sparsekit.operators.operator import Operator
from sparsekit.runtime.select import Candidate, Decision
from sparsekit.runtime.tensors import elapsed_s, synchronize

_TIMED_LAUNCHES = 5


@dataclass(frozen=True)
class OutputSummary:
    """An output in a few numbers, over its finite elements; None where it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: float | None
    largest: float | None
    mean: float | None
    nan_count: int
    inf_count: int
    sha256: str


@dataclass(frozen=True)
class LaunchFacts:
    """One launch as it was made."""

    entry: str
    grid: tuple[int, int, int]
    threads: int
    cluster: tuple[int, int, int] | None
    shared_bytes: int
    registers: int


@dataclass(frozen=True)
class RunResult:
    """What `run` did. time_s: the median of a few event timings of the call after a first launch;
    None when nothing was launched."""

    op: str
    case: str
    candidate: Candidate | None
    toolchain: str | None
    key: str | None
    launches: Sequence[LaunchFacts]
    decisions: Sequence[Decision]
    time_s: float | None
    summaries: Sequence[OutputSummary]
    outputs: Mapping[str, torch.Tensor]


def run_once(operator: Operator, workload: Workload) -> RunResult:
    """Run the workload; the outputs are those of the first launch."""
    outputs = {name: g.view for name, g in workload.outputs().items()}
    arguments = arguments_of(operator.op, workload.inputs, outputs)
    prepared = operator.prepared(arguments)
    operator.run(arguments)
    synchronize(workload.device)
    kept = {name: t.clone() for name, t in outputs.items()}
    candidate = prepared.candidate if prepared else None
    launches = [
        LaunchFacts(
            step.entry, step.grid, record.threads, record.cluster, record.shared_bytes,
            record.registers,
        )
        for step in (candidate.launches if candidate else ())
        if prepared and (record := prepared.entries[step.entry].record)
    ]  # fmt: skip
    timed = _TIMED_LAUNCHES if prepared and workload.device.type == "cuda" else 0
    times = [elapsed_s(workload.device, lambda: operator.run(arguments)) for _ in range(timed)]
    return RunResult(
        op=operator.op.name,
        case=workload.name,
        candidate=candidate,
        toolchain=prepared.artifact.manifest.toolchain if prepared else None,
        key=prepared.artifact.manifest.key if prepared else None,
        launches=launches,
        decisions=operator.decisions(arguments),
        time_s=statistics.median(times) if times else None,
        summaries=[_summary(name, t) for name, t in kept.items()],
        outputs=kept,
    )


def _summary(name: str, tensor: torch.Tensor) -> OutputSummary:
    finite: Any = tensor[torch.isfinite(tensor)].double()
    some = finite.numel() > 0
    return OutputSummary(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        least=float(finite.min()) if some else None,
        largest=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        nan_count=int(torch.isnan(tensor).sum()),
        inf_count=int(torch.isinf(tensor).sum()),
        sha256=tensor_sha256(tensor),
    )
