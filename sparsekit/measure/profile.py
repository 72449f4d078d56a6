"""Profiling contenders: ncu where it is to be had, events and static counts in any case."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sparsekit.check.workload import Workload
from sparsekit.measure.contender import Contender
from sparsekit.measure.metrics import chip_of, metrics_for
from sparsekit.measure.ncu import Ncu, NotProfiled
from sparsekit.measure.ncu_page import joined
from sparsekit.measure.timer import Timer
from sparsekit.model.arch import Capability
from sparsekit.model.artifact import Artifact, EntryRecord
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.runtime.tensors import synchronize

WARM_UPS = 5
_EVENT_SAMPLES = 11


def launch_once(contender: Contender, workload: Workload) -> None:
    """What runs under ncu: warm-ups, then one call between cudaProfilerStart and Stop."""
    outputs = {n: g.view for n, g in workload.outputs().items()}
    call = contender.caller(workload.inputs, outputs)
    for _ in range(WARM_UPS):
        call()
    synchronize(workload.device)
    torch.cuda.profiler.start()
    call()
    synchronize(workload.device)
    torch.cuda.profiler.stop()


def without_counters(
    contender: Contender, workload: Workload, timer: Timer, gpu_name: str,
    artifact_of: Callable[[str], Artifact | None],
) -> ProfileResult:  # fmt: skip
    """What events and the code alone tell of a contender.

    artifact_of(key): the artifact of what ran. Raises NoKernelError or GpuError as the call does.
    """
    outputs = {n: g.view for n, g in workload.outputs().items()}
    ran = contender.compute(workload.inputs, outputs)
    call = contender.caller(workload.inputs, outputs)
    for _ in range(WARM_UPS):
        call()
    time_s = statistics.median(timer.elapsed_s(call) for _ in range(_EVENT_SAMPLES))
    artifact = artifact_of(ran.key) if ran.key else None
    entries = artifact.manifest.entries if artifact else ()
    work = workload.work()
    return ProfileResult(
        workload.op.name, workload.name, gpu_name, contender.label, ran.kernel,
        entries=tuple(e.entry for e in entries),
        counts={"duration_s": Count(time_s, "measured"), **static_counts(entries)},
        flop=work.flop if work else None, bytes=work.bytes if work else None,
    )  # fmt: skip


def static_counts(entries: Sequence[EntryRecord]) -> dict[str, Count]:
    """The worst entry's registers, shared and spill bytes, from the compiler."""
    if not entries:
        return {}
    figures: dict[str, Count] = {
        "registers": Count(max(e.registers for e in entries), "static"),
        "shared_bytes": Count(max(e.shared_bytes for e in entries), "static"),
    }
    spills = [e.spill_store_bytes for e in entries]
    if None not in spills:
        figures["spill_bytes"] = Count(max(s for s in spills if s is not None), "static")
    return figures


def with_counters(
    result: ProfileResult, ncu: Ncu, program: Sequence[str], capability: Capability, report: Path
) -> ProfileResult:
    """The result with what ncu counts on one launch of the program; the reason where it cannot."""
    try:
        found = ncu.profile(program, metrics_for(capability), chip_of(capability), report)
    except NotProfiled as error:
        return replace(result, problem=str(error))
    counts, stalls = joined(found.launches, found.metrics)
    entries = tuple(dict.fromkeys(x.entry for x in found.launches))
    return replace(
        result, counts={**result.counts, **counts}, stalls=stalls, dropped=found.dropped,
        report=str(report), entries=entries,
    )  # fmt: skip
