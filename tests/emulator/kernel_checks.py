"""What every kernel with tests of its own must be, on the cases that its test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from own_kernel import OwnKernel

from sparsekit.emulator import CHECKS, STRICT_CHECKS, Schedule
from sparsekit.model import Case

STRICTEST = [*CHECKS, *STRICT_CHECKS]
LAZY, EAGER = Schedule("lazy"), Schedule("eager")
SEEDS = 20


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
    lines = kernel.texts(cases[0])[0].splitlines()
    blocks = sorted(block for of_entry in left.values() for block in of_entry)
    return ["\n".join(lines[first - 1 : last]) for first, last in blocks]
