"""Verifying kernels: against float64, and bit for bit against another.

The kernel runs before the reference is computed, so that nothing of the reference's can be lying in
the memory that it reads; outputs are poisoned and guarded, inputs must come out unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import torch

from sparsekit.check.compare import compare_bits, compare_to_reference
from sparsekit.check.placement import fingerprint
from sparsekit.check.reference import asked_of_outputs
from sparsekit.check.subject import Ran, Subject
from sparsekit.check.workload import Workload
from sparsekit.errors import OF_ONE_KERNEL, NoKernelError, TooLargeError
from sparsekit.model.results import FLOAT64, Finding, OutputCheck, VerifyResult
from sparsekit.runtime.tensors import synchronize


@dataclass(frozen=True)
class Run:
    """One launch's outputs, and what was wrong with the memory after it."""

    name: str
    outputs: Mapping[str, torch.Tensor]
    problems: Mapping[str, str]
    ran: Ran


def _runs(subject: Subject, workload: Workload, repeat: int) -> list[Run]:
    """The subject's runs that are to have the same bytes."""
    return [guarded_run(turn, workload, name) for name, turn in subject.turns(repeat)]


def guarded_run(subject: Subject, workload: Workload, turn: str = "") -> Run:
    """One launch into poisoned outputs; what it did to the memory around them is looked at."""
    guarded = workload.outputs()
    tensors = {n: t for n, t in workload.inputs.items() if isinstance(t, torch.Tensor)}
    before = {name: fingerprint(tensor) for name, tensor in tensors.items()}
    ran = subject.compute(workload.inputs, {n: g.view for n, g in guarded.items()})
    synchronize(workload.device)
    problems = {n: p for n, g in guarded.items() if (p := g.problem()) is not None}
    for name, tensor in tensors.items():
        if fingerprint(tensor) != before[name]:
            problems |= dict.fromkeys(guarded, f"input {name} was changed by the launch")
    return Run(turn, {n: g.view for n, g in guarded.items()}, problems, ran)


def verify_reference(
    workload: Workload, subjects: Sequence[Subject], reference: ModuleType, repeat: int
) -> Iterator[VerifyResult]:
    """Each subject against float64 within the op's bounds, all runs with the same bytes."""
    ran: list[tuple[Subject, Run | None, VerifyResult]] = []
    for subject in subjects:
        blank = blank_result(workload, subject, FLOAT64)
        try:
            runs = _runs(subject, workload, repeat)
        except OF_ONE_KERNEL as error:
            ran.append((subject, None, stopped(blank, error)))
            continue
        ended = [r for r in runs if not r.ran.stopped]
        ran.append((subject, ended[0] if ended else None, steady(blank, runs)))
    outputs = next((run.outputs for _, run, _ in ran if run is not None), None)
    if outputs is None:
        yield from (result for _, _, result in ran)
        return
    tell = partial(asked_of_outputs, workload.op, workload.case, reference, outputs)
    expected = tell("reference", workload.inputs)
    bounds = tell("tolerance", workload.inputs, expected)
    for _, run, result in ran:
        if run is None:
            yield result
            continue
        checks = {
            name: with_problem(
                compare_to_reference(actual, expected[name], bounds[name]), run.problems.get(name)
            )
            for name, actual in run.outputs.items()
        }
        yield finished(result, checks)


def verify_bits(workload: Workload, subject: Subject, base: Subject, repeat: int) -> VerifyResult:
    """The subject's outputs against the base's, byte for byte; the base may be the subject."""
    against = name_of_base(subject, base)
    blank = blank_result(workload, subject, against)
    try:
        first = guarded_run(base, workload)
        runs = _runs(subject, workload, repeat)
    except OF_ONE_KERNEL as error:
        return stopped(blank, error)
    result = steady(blank, runs)
    if first.ran.stopped or runs[0].ran.stopped:
        return replace(result, ok=False, reason=result.reason or f"a fault ended {against}")
    checks = {
        name: with_problem(
            compare_bits(actual, first.outputs[name]),
            runs[0].problems.get(name) or first.problems.get(name),
        )
        for name, actual in runs[0].outputs.items()
    }
    total = replace(
        result, runs=len(runs) + 1, launches=result.launches + first.ran.launches,
        reused=result.reused + first.ran.reused,
    )  # fmt: skip
    return finished(total, checks)


def name_of_base(subject: Subject, base: Subject) -> str:
    same = (base.kernel, base.variant) == (subject.kernel, subject.variant)
    return "itself" if same else f"{base.kernel}:{base.variant}"


def blank_result(workload: Workload, subject: Subject, against: str) -> VerifyResult:
    return VerifyResult(
        workload.op.name, subject.kernel, subject.variant, subject.arch, None, str(workload.device),
        workload.name, against, runs=0,
    )  # fmt: skip


def stopped(result: VerifyResult, error: Exception) -> VerifyResult:
    """A call that the kernel, or the emulator, does not take is skipped; all else is a failure."""
    if isinstance(error, NoKernelError | TooLargeError):
        return replace(result, skipped=True, reason=str(error))
    return replace(result, ok=False, reason=str(error))


def steady(blank: VerifyResult, runs: Sequence[Run]) -> VerifyResult:
    """The result so far; not ok when there are findings, or not all runs gave the same bytes."""
    first, findings = runs[0], merged_findings([r.ran.findings for r in runs])
    result = replace(
        blank, runs=len(runs), arch=first.ran.arch or blank.arch, toolchain=first.ran.toolchain,
        key=first.ran.key, findings=findings, coverage=first.ran.coverage,
        launches=sum(r.ran.launches for r in runs), reused=sum(r.ran.reused for r in runs),
        schedules=tuple(r.name for r in runs) if first.ran.coverage else (),
    )  # fmt: skip
    if findings:
        kinds = ", ".join(dict.fromkeys(f.check for f in findings))
        result = replace(result, ok=False, reason=f"found by the emulator: {kinds}")
    ended = [r for r in runs if not r.ran.stopped]
    for run in ended[1:]:
        for name, actual in run.outputs.items():
            check = compare_bits(actual, ended[0].outputs[name])
            if not check.ok:
                text = f"{run.name} differs from {ended[0].name}: {name}: {check.problem}"
                reasons = [result.reason] if result.reason else []
                return replace(result, ok=False, reason="; ".join([*reasons, text]))
    return result


def merged_findings(runs: Sequence[tuple[Finding, ...]]) -> tuple[Finding, ...]:
    """Each finding once, with all the schedules that showed it."""
    found: dict[tuple[str, str, int], Finding] = {}
    for finding in (f for run in runs for f in run):
        key = (finding.check, finding.entry, finding.ptx_line)
        known = found.get(key)
        schedules = (*known.schedules, *finding.schedules) if known else finding.schedules
        found[key] = replace(known or finding, schedules=tuple(dict.fromkeys(schedules)))
    return tuple(found.values())


def with_problem(check: OutputCheck, problem: str | None) -> OutputCheck:
    return replace(check, ok=False, problem=problem) if problem else check


def finished(result: VerifyResult, checks: Mapping[str, OutputCheck]) -> VerifyResult:
    wrong = [f"{name}: {check.problem}" for name, check in checks.items() if not check.ok]
    reasons = [result.reason] if result.reason else []
    ok = result.ok is not False and not wrong
    return replace(result, outputs=checks, ok=ok, reason="; ".join([*reasons, *wrong]) or None)
