"""Which cases, data sets and pairs a verification runs, one result after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from sparsekit.check.beside import Beside, Check, beside_pairs
from sparsekit.check.reference import load_reference
from sparsekit.check.subject import Subject
from sparsekit.check.verify import name_of_base, verify_bits, verify_reference
from sparsekit.check.workload import make_workload, user_workload
from sparsekit.errors import SpecError, TooLargeError, first_line
from sparsekit.model.op import Case, Op
from sparsekit.model.results import FLOAT64, VerifyResult
from sparsekit.runtime.tensors import synchronize


@dataclass(frozen=True)
class Pair:
    """Two subjects that must give the same bits; the base may be the subject itself."""

    subject: Subject
    base: Subject

    @property
    def against(self) -> str:
        return name_of_base(self.subject, self.base)


def against_reference(
    op: Op, subjects: Sequence[Subject], cases: Iterable[Case], device: torch.device, repeat: int
) -> Iterator[VerifyResult]:
    """Every subject on every case with every data set, against float64."""
    reference = load_reference(op)
    for case in cases:
        for probe in op.probes:
            try:
                workload = make_workload(op, reference, case, probe, device)
                yield from verify_reference(workload, subjects, reference, repeat)
            except (TooLargeError, torch.OutOfMemoryError) as error:
                yield from (skipped(op, s, case, FLOAT64, device, error) for s in subjects)
            synchronize(device)  # a faulted device must not judge the cases that follow


def against_bits(
    op: Op, pairs: Sequence[Pair], cases: Sequence[Case], device: torch.device, repeat: int,
    beside: Beside | None = None,
) -> Iterator[VerifyResult]:  # fmt: skip
    """Every pair on every case, byte for byte, and then each subject in the checks beside; None
    means those of a GPU."""
    reference = load_reference(op)
    for case in cases:
        try:
            workload = make_workload(op, reference, case, op.probes[0], device)
        except TooLargeError as error:
            yield from (skipped(op, p.subject, case, p.against, device, error) for p in pairs)
            continue
        for pair in pairs:
            try:
                yield verify_bits(workload, pair.subject, pair.base, repeat)
            except torch.OutOfMemoryError as error:
                yield skipped(op, pair.subject, case, pair.against, device, error)
            synchronize(device)  # a faulted device must not judge the cases that follow
    subjects = list({(s.kernel, s.variant, s.arch): s for s in (p.subject for p in pairs)}.values())
    for against, case, check in (beside or beside_pairs(op, cases)).checks:
        yield from _of_each(op, reference, subjects, case, device, against, check)


def guarded(
    op: Op, subjects: Sequence[Subject], steps: Iterator[VerifyResult], device: torch.device
) -> Iterator[VerifyResult]:
    """The op's results; a reference.py that does not hold together fails its kernels only."""
    try:
        yield from steps
    except SpecError as error:
        for s in subjects:
            yield VerifyResult(
                op.name, s.kernel, s.variant, s.arch, None, str(device), "any case",
                "its reference", runs=0, ok=False, reason=str(error),
            )  # fmt: skip


def on_inputs(
    op: Op, subjects: Sequence[Subject], inputs: dict[str, Any], name: str, device: torch.device,
    repeat: int,
) -> Iterator[VerifyResult]:  # fmt: skip
    """Every subject on the user's own tensors, against float64."""
    workload = user_workload(op, inputs, name, device)
    try:
        yield from verify_reference(workload, subjects, load_reference(op), repeat)
    except torch.OutOfMemoryError as error:
        yield from (skipped(op, s, workload.case, FLOAT64, device, error) for s in subjects)


def _of_each(
    op: Op, reference: ModuleType, subjects: Sequence[Subject], case: Case, device: torch.device,
    against: str, check: Check,
) -> Iterator[VerifyResult]:  # fmt: skip
    """The check of each subject against itself on the case's first data set."""
    try:
        workload = make_workload(op, reference, case, op.probes[0], device)
    except TooLargeError as error:
        yield from (skipped(op, s, case, against, device, error) for s in subjects)
        return
    for subject in subjects:
        try:
            yield check(workload, subject)
        except torch.OutOfMemoryError as error:
            yield skipped(op, subject, case, against, device, error)
        synchronize(device)  # a faulted device must not judge the cases that follow


def skipped(
    op: Op, subject: Subject, case: Case, against: str, device: torch.device, error: Exception
) -> VerifyResult:
    """A case that does not fit the device."""
    return VerifyResult(
        op.name, subject.kernel, subject.variant, subject.arch, None, str(device), case.name,
        against, runs=0, skipped=True, reason=first_line(error),
    )  # fmt: skip
