"""Kernels for tcgen05 from NVRTC: gathered rows, and pairs of blocks with multicast commits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from nvrtc_ptx import compiled
from sync_mutants import executed, mutants
from test_gemm_sm90 import STRICT, bf16

from sparsekit.emulator import Memory, Report, Schedule, TensorMap, launch, load

SCHEDULES = [Schedule("lazy"), Schedule("eager"), *(Schedule("random", s) for s in range(4))]
DEPTH = 64


def gathered(
    text: str, k: int = 256, schedule: Schedule = SCHEDULES[0], blocks: tuple[int, int] = (1, 1),
    **options: object,
) -> tuple[Report, bool]:  # fmt: skip
    """The report, and whether C = A[rows] B^T is exact; a row that A has not is zero."""
    rng = np.random.default_rng(k)
    columns, rows, tokens = 64 * blocks[0], 128 * blocks[1], 50
    a, b = rng.integers(-8, 9, (tokens, k)), rng.integers(-8, 9, (columns, k))
    index = rng.integers(-1, tokens + 1, rows).astype(np.int32)
    memory = Memory()
    pa, pb = memory.allocate(bf16(a), "A"), memory.allocate(bf16(b), "B")
    pc, pi = memory.allocate(4 * rows * columns, "C"), memory.allocate(index, "rows")
    maps = [
        TensorMap(pa, "bf16", (k, tokens), (DEPTH, 1), swizzle="128B"),
        TensorMap(pb, "bf16", (k, columns), (DEPTH, 64), swizzle="128B"),
    ]
    report = launch(
        load(text), "gather_gemm", blocks, 128, [*maps, pi, pc, columns, k], memory,
        shared_bytes=2 * (128 + 64) * DEPTH * 2 + 2048, schedule=schedule, **options,
    )  # fmt: skip
    c = memory.read(pc, np.float32, (rows, columns))
    inside = (index >= 0) & (index < tokens)
    chosen = np.where(inside[:, None], a[np.where(inside, index, 0)], 0)
    return report, bool((c == chosen @ b.T).all())


def paired(
    text: str, k: int = 256, schedule: Schedule = SCHEDULES[0], blocks: tuple[int, int] = (2, 1),
    **options: object,
) -> tuple[Report, bool]:  # fmt: skip
    """The same of C = A B^T by pairs of blocks."""
    rng = np.random.default_rng(k)
    rows, columns = 128 * blocks[0], 128 * blocks[1]
    a, b = rng.integers(-8, 9, (rows, k)), rng.integers(-8, 9, (columns, k))
    memory = Memory()
    pa, pb = memory.allocate(bf16(a), "A"), memory.allocate(bf16(b), "B")
    pc = memory.allocate(4 * rows * columns, "C")
    maps = [
        TensorMap(pa, "bf16", (k, rows), (DEPTH, 128), swizzle="128B"),
        TensorMap(pb, "bf16", (k, columns), (DEPTH, 64), swizzle="128B"),
    ]
    report = launch(
        load(text), "pair_gemm", blocks, 128, [*maps, pc, columns, k], memory, cluster=(2,),
        shared_bytes=2 * (128 + 64) * DEPTH * 2 + 2048, schedule=schedule, **options,
    )  # fmt: skip
    c = memory.read(pc, np.float32, (rows, columns))
    return report, bool((c == a @ b.T).all())


Run = Callable[..., tuple[Report, bool]]
KERNELS: dict[str, Run] = {"gather_sm100.cu": gathered, "pair_sm100.cu": paired}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("k", [64, 128, 256, 320])
@pytest.mark.parametrize("name", KERNELS)
def test_right_and_clean(name, k, schedule):
    blocks = (2, 1) if name == "gather_sm100.cu" else (4, 1)
    report, right = KERNELS[name](compiled(name, "sm_100a"), k, schedule, blocks, checks=STRICT)
    assert report.faults == ()
    assert right


@pytest.mark.parametrize("name", KERNELS)
def test_mutants(name):
    text = compiled(name, "sm_100a")
    clean, _ = KERNELS[name](text)
    for line, instruction, mutant in mutants(text):
        if executed(line, clean):
            report, right = KERNELS[name](mutant, checks=STRICT)
            print(line, instruction[:70], [f.kind for f in report.faults], right)
