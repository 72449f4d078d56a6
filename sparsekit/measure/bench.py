"""Timing contenders on cases: the same buffers, the same rounds, outputs looked at around it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sparsekit.check.compare import tensor_sha256
from sparsekit.check.reference import load_reference
from sparsekit.check.workload import Workload, make_workload
from sparsekit.errors import (
    OF_ONE_KERNEL,
    ContextLostError,
    GpuError,
    NoKernelError,
    TooLargeError,
    first_line,
)
from sparsekit.measure.buffers import bytes_of, copy_of
from sparsekit.measure.contender import Contender
from sparsekit.measure.engine import Clock, Watch, cautions, take_samples
from sparsekit.measure.mode import choose_mode, make_clock
from sparsekit.measure.protocol import Protocol
from sparsekit.measure.summary import summarise
from sparsekit.measure.timer import Call, NotCapturable, Timer
from sparsekit.model.bench import BenchResult, Ceilings, Mode, Timing
from sparsekit.model.op import Case, Op
from sparsekit.runtime.tensors import synchronize

_ESTIMATES = 3
_COPY_SHARE = 4  # copies of the inputs may take this part of the free memory
_MOST_COPY_BYTES = 16 << 30


@dataclass(frozen=True)
class Setup:
    """What holds for every case. l2: cold or warm, where the protocol leaves it open. margin: of
    what counts as the same, 0.01 for 1 %. watch: a reading of the device. base_is_named: ratios
    are to the first contender or there are none; else to the first that takes the case."""

    timer: Timer
    watch: Watch
    protocol: Protocol
    l2: str = "cold"
    margin: float = 0.01
    ceilings: Ceilings | None = None
    base_is_named: bool = False


@dataclass(frozen=True)
class _Entry:
    """A contender that computed the case, with what ran and what it gave."""

    contender: Contender
    timing: Timing
    outputs: dict[str, torch.Tensor]


def bench_cases(
    op: Op, contenders: Sequence[Contender], cases: Iterable[Case], device: torch.device,
    gpu_name: str, setup: Setup,
) -> Iterator[BenchResult]:  # fmt: skip
    """A result per case."""
    reference = load_reference(op)
    for case in cases:
        try:
            workload = make_workload(op, reference, case, op.probes[0], device)
            yield bench_workload(workload, contenders, gpu_name, setup)
        except (TooLargeError, torch.OutOfMemoryError) as error:
            yield BenchResult(op.name, case.name, gpu_name, None, reason=first_line(error))


def bench_workload(
    workload: Workload, contenders: Sequence[Contender], gpu_name: str, setup: Setup
) -> BenchResult:  # fmt: skip
    """All contenders on one workload. Raises ContextLostError when a kernel faulted."""
    told: list[str] = []
    failed: list[Timing] = []
    entered = _enter(workload, contenders, told, failed)
    base = entered[0].contender.label if entered else None
    if setup.base_is_named and base not in (None, contenders[0].label):
        told.append(f"no ratios: {contenders[0].label}, which they are to, did not run")
        base = None
    work = workload.work()
    result = BenchResult(
        workload.op.name, workload.name, gpu_name, base,
        flop=work.flop if work else None, bytes=work.bytes if work else None,
        timings=tuple(failed), cautions=tuple(told),
    )  # fmt: skip
    if not entered:
        return result if failed else replace(result, reason="; ".join(told))
    try:
        mode, clock = _prepare(workload, entered, setup)
        samples = take_samples(
            len(entered) + 1, setup.protocol, clock, setup.watch, workload.case.seed
        )
        synchronize(workload.device)
    except ContextLostError:
        raise
    except GpuError as error:
        lost = [replace(entry.timing, problem=f"while timing: {error}") for entry in entered]
        return replace(result, timings=(*lost, *failed))
    resolution_s = setup.timer.resolution_s / mode.calls
    summary = summarise(
        [entry.timing for entry in entered], samples, setup.protocol, base=0,
        control=len(entered), margin=setup.margin, resolution_s=resolution_s, work=work,
        ceilings=setup.ceilings,
    )  # fmt: skip
    timings = [
        _unchanged(workload, entry, timing)
        for entry, timing in zip(entered, summary.timings, strict=True)
    ]
    if base is None:
        timings = [_without_ratio(timing) for timing in timings]
    return replace(
        result, mode=mode, timings=(*timings, *failed), control=summary.control,
        control_interval=summary.control_interval, readings=samples.readings,
        discarded=samples.discarded, cautions=(*told, *cautions(samples)),
    )  # fmt: skip


def _without_ratio(timing: Timing) -> Timing:
    return replace(timing, ratio=None, ratio_interval=None, verdict=None, same_bits=None)


def _enter(
    workload: Workload, contenders: Sequence[Contender], told: list[str], failed: list[Timing]
) -> list[_Entry]:
    """Compute the case once with each; those that do not take it are told, failures kept."""
    entered: list[_Entry] = []
    for contender in contenders:
        try:
            timing, outputs = _computed(workload, contender)
        except NoKernelError as error:
            told.append(f"{contender.label} does not take the call: {str(error).splitlines()[-1]}")
            continue
        except ContextLostError:
            raise
        except OF_ONE_KERNEL as error:
            failed.append(Timing(contender.label, contender.label, "", problem=str(error)))
            continue
        if timing.problem:
            failed.append(timing)
            continue
        if entered:
            base = entered[0].outputs
            timing = replace(timing, same_bits=all(_same(outputs[n], base[n]) for n in outputs))
        entered.append(_Entry(contender, timing, outputs))
    return entered


def _computed(workload: Workload, contender: Contender) -> tuple[Timing, dict[str, torch.Tensor]]:
    """What ran, with digests of its outputs and what is wrong with them; and the outputs."""
    guarded = workload.outputs()
    timing = contender.compute(workload.inputs, {n: g.view for n, g in guarded.items()})
    synchronize(workload.device)
    problems = [f"{n}: {p}" for n, g in guarded.items() if (p := g.problem())]
    digests = {n: tensor_sha256(g.view) for n, g in guarded.items()}
    found = replace(timing, output_sha256=digests, problem="; ".join(problems) or None)
    return found, {n: g.view for n, g in guarded.items()}


def _unchanged(workload: Workload, entry: _Entry, timing: Timing) -> Timing:
    """The timing; a problem where the same call gives other bytes after it than before."""
    guarded = workload.outputs()
    entry.contender.compute(workload.inputs, {n: g.view for n, g in guarded.items()})
    synchronize(workload.device)
    changed = [n for n, g in guarded.items() if not _same(g.view, entry.outputs[n])]
    if not changed:
        return timing
    return replace(timing, problem=f"{', '.join(changed)} differ after the timing from before it")


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Byte for byte, so that NaN equals itself."""
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def _prepare(workload: Workload, entered: Sequence[_Entry], setup: Setup) -> tuple[Mode, Clock]:
    """The mode for the case, and its clock with the base once more at the end, as a control."""
    timer, protocol = setup.timer, setup.protocol
    outputs = {n: g.view for n, g in workload.outputs().items()}
    estimates = [
        _estimate_s(timer, entry.contender.caller(workload.inputs, outputs)) for entry in entered
    ]
    budget = min(timer.free_bytes() // _COPY_SHARE, _MOST_COPY_BYTES)
    input_bytes = bytes_of(workload.inputs)
    mode = choose_mode(protocol, setup.l2, estimates, input_bytes, budget)
    try:
        return mode, _clock(timer, workload, entered, outputs, mode)
    except NotCapturable as error:
        by_events = replace(protocol, method="events")
        mode = choose_mode(by_events, setup.l2, estimates, input_bytes, budget)
        mode = replace(mode, note=str(error))
        return mode, _clock(timer, workload, entered, outputs, mode)


def _clock(
    timer: Timer,
    workload: Workload,
    entered: Sequence[_Entry],
    outputs: dict[str, torch.Tensor],
    mode: Mode,
) -> Clock:
    sets: list[Any] = [workload.inputs]
    sets += [copy_of(workload.inputs) for _ in range(mode.copies - 1)]
    names = [entry.contender.label for entry in entered]
    callers: list[list[Call]] = [
        [entry.contender.caller(inputs, outputs) for inputs in sets] for entry in entered
    ]
    return make_clock(timer, mode, [*callers, callers[0]], [*names, names[0]])


def _estimate_s(timer: Timer, call: Call) -> float:
    return statistics.median(timer.elapsed_s(call) for _ in range(_ESTIMATES))
