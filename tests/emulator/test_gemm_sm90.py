"""A kernel with tensor copies, a ring of mbarriers and wgmma, from NVRTC: right, and its faults."""

from __future__ import annotations

import numpy as np
import pytest
from nvrtc_ptx import compiled
from sync_mutants import all_needed, survey

from sparsekit.emulator import CHECKS, Memory, Report, Schedule, TensorMap, launch, load

SCHEDULES = [Schedule("lazy"), Schedule("eager"), *(Schedule("random", s) for s in range(4))]
TILE, STAGES = 64, 3
SHARED_BYTES = 1024 + STAGES * 2 * TILE * TILE * 2 + TILE * TILE * 4 + TILE * 4 + STAGES * 16
STRICT = [*CHECKS, "mbarrier-proxy-fence"]


def bf16(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def gemm(
    text: str, k: int = 448, schedule: Schedule = SCHEDULES[0], blocks: tuple[int, int] = (1, 1),
    swizzle: str = "128B", **options: object,
) -> tuple[Report, bool]:  # fmt: skip
    """The report, and whether C = A B^T + bias of small integers is exact."""
    rng = np.random.default_rng(k)
    columns, rows = (TILE * n for n in blocks)
    a, b = rng.integers(-8, 9, (rows, k)), rng.integers(-8, 9, (columns, k))
    bias = rng.integers(-8, 9, columns).astype(np.float32)
    memory = Memory()
    pa, pb = memory.allocate(bf16(a), "A"), memory.allocate(bf16(b), "B")
    pc, pbias = memory.allocate(4 * rows * columns, "C"), memory.allocate(bias, "bias")
    maps = [
        TensorMap(pa, "bf16", (k, rows), (TILE, TILE), swizzle=swizzle),
        TensorMap(pb, "bf16", (k, columns), (TILE, TILE), swizzle="128B"),
        TensorMap(pc, "fp32", (columns, rows), (TILE, TILE)),
    ]
    report = launch(
        load(text), "gemm", blocks, 256, [*maps, pbias, k], memory, shared_bytes=SHARED_BYTES,
        schedule=schedule, **options,
    )  # fmt: skip
    c = memory.read(pc, np.float32, (rows, columns))
    return report, bool((c == a @ b.T + bias).all())


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("k", [64, 128, 192, 256, 448])
def test_right_and_clean(k, schedule):
    report, right = gemm(compiled("gemm_sm90.cu", "sm_90a"), k, schedule, (2, 1), checks=STRICT)
    assert report.faults == ()
    assert right


def test_more_blocks_than_one_batch_takes():
    report, right = gemm(compiled("gemm_sm90.cu", "sm_90a"), 64, blocks=(5, 4))
    assert report.faults == ()
    assert right


def test_every_mutant_is_reported():
    text = compiled("gemm_sm90.cu", "sm_90a")

    def is_missed(mutant: str) -> bool:
        return not gemm(mutant, checks=STRICT)[0].ok

    survey(text, [gemm(text)[0]], is_missed, all_needed).check(19)


FAULTS = {
    "parity of the full barrier": (
        ("full[stage]), (step / kStages) & 1", "full[stage]), ~(step / kStages) & 1"),
        {"race", "deadlock", "uninitialised", "mbarrier"},
    ),
    "parity of the empty barrier": (("(round & 1) ^ 1", "round & 1"), {"deadlock"}),
    "too few arrivals": (
        ("mbarrier_init(shared_address(&shared.empty[i]), 4)",
         "mbarrier_init(shared_address(&shared.empty[i]), 2)"),
        {"mbarrier", "race", "deadlock"},
    ),
    "too many arrivals": (
        ("mbarrier_init(shared_address(&shared.empty[i]), 4)",
         "mbarrier_init(shared_address(&shared.empty[i]), 5)"),
        {"deadlock"},
    ),
    "more bytes expected": (
        ("full, 2 * kTileBytes +", "full, 256 + 2 * kTileBytes +"), {"deadlock"}
    ),
    "fewer bytes expected": (
        ("full, 2 * kTileBytes +", "full, -256 + 2 * kTileBytes +"), {"deadlock"}
    ),
    "another size of the ring": (
        ("const int stage = step % kStages;\n    mbarrier_wait",
         "const int stage = step % 2;\n    mbarrier_wait"),
        {"race", "deadlock", "mbarrier", "uninitialised"},
    ),
    "another stride": (("kStride = 1024", "kStride = 2048"), {"race", "bounds", "uninitialised"}),
    "arrival before the wait": (
        ('    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");\n    if (thread',
         "    if (thread"),
        {"race", "wgmma"},
    ),
    "a bulk copy too long": (
        ("blockIdx.x * kTile, kBiasBytes, full", "blockIdx.x * kTile, kBiasBytes + 16, full"),
        {"bounds", "mbarrier", "race"},
    ),
    "no fence before the store": (("  fence_proxy_async();\n", ""), {"proxy-fence"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_source(fault):
    edit, wanted = FAULTS[fault]
    text = compiled("gemm_sm90.cu", "sm_90a", edit)
    for schedule in SCHEDULES[:3]:
        found = {f.kind for f in gemm(text, schedule=schedule)[0].faults}
        assert found & wanted, found


def test_another_swizzle_than_the_descriptors():
    report, right = gemm(compiled("gemm_sm90.cu", "sm_90a"), swizzle="128B_atom_32B")
    assert report.ok
    assert not right  # only the result tells


def test_a_tile_that_is_not_whole():
    report, right = gemm(compiled("gemm_sm90.cu", "sm_90a"), 96)
    assert report.ok
    assert not right  # half of the last step is left out
