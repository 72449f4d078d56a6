"""What every kernel whose blocks walk items by themselves must be, on cases of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from own_kernel import OwnKernel
from sync_mutants import executed, mutants

from sparsekit.emulator import CHECKS, STRICT_CHECKS, Schedule
from sparsekit.model import Case

STRICTEST = [*CHECKS, *STRICT_CHECKS]
LAZY, EAGER = Schedule("lazy"), Schedule("eager")
SEEDS = 20
Why = Callable[[str, int, str], str | None]


def right_and_clean(kernel: OwnKernel, case: Case, schedules: Iterable[Schedule]) -> dict:
    """The bytes of the outputs, which all schedules give."""
    found = []
    for schedule in schedules:
        run = kernel.run(case, schedule, STRICTEST)
        assert run.faults == [], schedule
        assert run.wrong == {}, schedule
        found.append(bits(run.outputs))
    assert all(one == found[0] for one in found)
    return found[0]


def bits(outputs: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: t.contiguous().view(torch.uint8).numpy().tobytes() for name, t in outputs.items()}


def reached_by_none(kernel: OwnKernel, cases: Sequence[Case]) -> list[str]:
    """The blocks of code, as PTX, that no case reaches."""
    left: set[tuple[int, int]] | None = None
    for case in cases:
        run = kernel.run(case)
        uncovered = {(u.line, u.last_line) for r in run.reports for u in r.uncovered}
        left = uncovered if left is None else left & uncovered
    assert left is not None
    lines = kernel.ptx(cases[0]).splitlines()
    return ["\n".join(lines[first - 1 : last]) for first, last in sorted(left)]


def missed_by_none(
    kernel: OwnKernel, cases: Sequence[Case], why_redundant: Why
) -> tuple[list[str], int]:
    """The synchronisation instructions that no case misses, unless there is a reason; and how many
    there is one for. They are those that run in the first case."""
    text = kernel.ptx(cases[0])
    (clean,) = kernel.run(cases[0]).reports
    silent, excused = [], 0
    for line, instruction, mutant in mutants(text):
        if not executed(line, clean):
            continue
        missed = any(
            kernel.run(case, checks=STRICTEST, edit=lambda _, mutant=mutant: mutant).faults
            for case in cases
        )
        if not missed and why_redundant(instruction, line, text):
            excused += 1
        elif not missed:
            silent.append(f"{line}: {instruction}")
    return silent, excused
