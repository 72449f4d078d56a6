"""Kernels for tcgen05 from NVRTC: gathered rows, and pairs of blocks with multicast commits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from nvrtc_ptx import compiled
from sync_mutants import all_needed, survey
from test_gemm_sm90 import STRICT, bf16

from sparsekit.emulator import Memory, Report, Schedule, TensorMap, launch, load

SCHEDULES = [Schedule("lazy"), Schedule("eager"), *(Schedule("random", s) for s in range(4))]
DEPTH, STAGES = 64, 2
STRICTEST = [*STRICT, "tensor-load", "tensor-fence"]


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
    report, right = KERNELS[name](compiled(name, "sm_100a"), k, schedule, blocks, checks=STRICTEST)
    assert report.faults == ()
    assert right


@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_is_reported(name):
    run, text = KERNELS[name], compiled(name, "sm_100a")

    def is_missed(mutant: str) -> bool:
        return not run(mutant, checks=STRICTEST)[0].ok

    survey(text, [run(text)[0]], is_missed, all_needed).check(24)


FAULTS = {
    "no commit to the other block": (
        "pair_sm100.cu", ("kBothBlocks = 3", "kBothBlocks = 1"), {"deadlock"}
    ),
    "the other block's own mbarrier": (
        "pair_sm100.cu", ("kLeaderMask = 0xFEFFFFFF", "kLeaderMask = 0xFFFFFFFF"),
        {"deadlock", "mbarrier"},
    ),
    "too few columns": (
        "pair_sm100.cu", ("tensor_alloc<2>(shared_address(&shared.tensor), kColumns)",
                          "tensor_alloc<2>(shared_address(&shared.tensor), kColumns / 2)"),
        {"tensor-memory"},
    ),
    "another quarter of the lanes": (
        "gather_sm100.cu", ("tensor + (warp << 21) + n", "tensor + ((warp ^ 1) << 21) + n"),
        {"tensor-memory"},
    ),
    "the first product adds": (
        "gather_sm100.cu", ("kColumns), step | part", "kColumns), 1"), {"uninitialised"}
    ),
    "fewer rows than bytes expected": (
        "gather_sm100.cu", ("i < kRows / kGathered; ++i)\n        gather",
                            "i < kRows / kGathered - 1; ++i)\n        gather"),
        {"deadlock", "uninitialised"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_source(fault):
    name, edit, wanted = FAULTS[fault]
    text = compiled(name, "sm_100a", edit)
    for schedule in SCHEDULES[:3]:
        found = {f.kind for f in KERNELS[name](text, schedule=schedule)[0].faults}
        assert found & wanted, found
