"""Detection power: every synchronisation of a GEMM taken away or weakened in turn is reported."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sparsekit.emulator import Memory, Report, Schedule, launch, load

FIXTURES = Path(__file__).resolve().parents[1] / "ptx" / "fixtures"
GOOD = (FIXTURES / "gemm_bf16.nvrtc-13.5.37.sm_100.ptx").read_text()
MISCOMPILED = (FIXTURES / "gemm_bf16.nvrtc-13.0.88.sm_100.ptx").read_text()
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]
MUTATIONS = {
    "no barrier": (r"bar\.sync[^;]*;", ""),
    "no wait": (r"cp\.async\.wait_group[^;]*;", ""),
    "weaker wait": (r"cp\.async\.wait_group 0;", "cp.async.wait_group 1;"),
    "no commit": (r"cp\.async\.commit_group;", ""),
    "barrier of half the threads": (r"bar\.sync[^;]*;", "bar.sync 0, 64;"),
    "barrier of too many": (r"bar\.sync[^;]*;", "bar.sync 0, 256;"),
}


def gemm(
    text: str, k: int, schedule: Schedule = SCHEDULES[0], blocks: int = 1
) -> tuple[Report, float]:
    """The report and the largest relative error of C = A B^T with 64 x 64 tiles."""
    rng = np.random.default_rng(k)
    m = n = 64 * blocks
    a, b = (rng.integers(-8, 9, (rows, k)).astype(np.float32) for rows in (m, n))
    memory = Memory()
    pa, pb = (memory.allocate((x.view(np.uint32) >> 16).astype(np.uint16), "input") for x in (a, b))
    pc = memory.allocate(4 * m * n, "C")
    report = launch(
        load(text), "gemm_bf16", (blocks, blocks), 128, [pa, pb, pc, m, n, k], memory,
        schedule=schedule,
    )  # fmt: skip
    c = memory.read(pc, np.float32, (m, n))
    wanted = a.astype(float) @ b.astype(float).T
    return report, float(np.nan_to_num(np.abs(c - wanted), nan=1e9).max() / np.abs(wanted).max())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("k", [32, 64, 96, 128, 160, 256])
def test_the_gemm_is_right_and_clean(k, schedule):
    report, error = gemm(GOOD, k, schedule)
    assert report.faults == ()
    assert error == 0  # small integers: exact in any order


def test_four_blocks():
    report, error = gemm(GOOD, 96, blocks=2)
    assert (report.faults, error) == ((), 0)


# The last barrier of the last tile: no access follows it.
REDUNDANT = {686}
LENGTHS = (64, 96, 128, 256)


def mutants() -> list[tuple[str, int, str]]:
    found = []
    for name, (pattern, replacement) in MUTATIONS.items():
        for match in re.finditer(pattern, GOOD):
            line = GOOD.count("\n", 0, match.start()) + 1
            text = GOOD[: match.start()] + replacement + GOOD[match.end() :]
            found.append((name, line, text))
    return found


def executed(line: int) -> bool:
    """Whether any of the lengths reaches a line."""
    return any(
        not any(u.line <= line <= u.last_line for u in gemm(GOOD, k)[0].uncovered) for k in LENGTHS
    )


@pytest.mark.parametrize(("name", "line", "text"), mutants(), ids=lambda x: str(x)[:30])
def test_every_mutant_is_reported(name, line, text):
    if any(gemm(text, k)[0].faults for k in LENGTHS):
        return
    assert (line in REDUNDANT and name == "no barrier") or not executed(line)


def test_most_of_the_mutants_are_executed():
    assert sum(executed(line) for _, line, _ in mutants()) >= 0.8 * len(mutants())


def test_a_sum_that_is_no_whole_tile_reads_out_of_bounds():
    report, _ = gemm(GOOD, 48)
    assert [f.kind for f in report.faults] == ["bounds"]


def test_the_miscompiled_kernel_is_found_out():
    """CUDA 13.0 reads a register before it is written, for long sums."""
    assert gemm(MISCOMPILED, 96)[1] == 0
    report, error = gemm(MISCOMPILED, 128)
    assert error > 0.1
    assert [f.kind for f in report.faults] == ["undefined-register"]
