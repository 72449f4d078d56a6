"""What every kernel with tests of its own must be, on the cases that its test makes up."""

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


def code_that_never_runs(kernel: OwnKernel, cases: Sequence[Case]) -> list[str]:
    """The blocks of code, as PTX, that no case reaches, of the entries that some case runs."""
    left: dict[str, set[tuple[int, int]]] = {}
    for case in cases:
        for report in kernel.run(case).reports:
            uncovered = {(u.line, u.last_line) for u in report.uncovered}
            left[report.entry] = left.get(report.entry, uncovered) & uncovered
    lines = kernel.ptx(cases[0]).splitlines()
    blocks = sorted(block for of_entry in left.values() for block in of_entry)
    return ["\n".join(lines[first - 1 : last]) for first, last in blocks]


def lines_of(entry: str, text: str) -> range:
    """The lines of PTX from that entry to the next."""
    starts = [i for i, line in enumerate(text.splitlines(), 1) if ".entry" in line]
    first = next(i for i in starts if f".entry {entry}(" in text.splitlines()[i - 1])
    return range(first, next((i for i in starts if i > first), len(text.splitlines()) + 1))


def silent_mutants_in(
    kernel: OwnKernel, cases: Sequence[Case], why_redundant: Why
) -> tuple[list[str], int]:
    """The synchronisation instructions that nothing misses, unless there is a reason; and how many
    there is one for. cases: what the first does not miss the others may."""
    text = kernel.ptx(cases[0])
    (clean,) = kernel.run(cases[0]).reports
    own = lines_of(clean.entry, text)
    silent, excused = [], 0
    for line, instruction, mutant in mutants(text):
        if line not in own or not executed(line, clean):
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
