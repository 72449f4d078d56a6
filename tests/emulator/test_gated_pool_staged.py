"""gated_pool in CUDA: few rows, many, more than a block has under way; the bits of Triton's."""

from __future__ import annotations

import pytest
from kernel_checks import (
    EAGER,
    LAZY,
    SEEDS,
    STRICTEST,
    code_that_never_runs,
    right_and_clean,
)
from own_kernel import OwnKernel
from sync_mutants import all_needed, survey_kernel

from sparsekit.emulator import Schedule

VARIANTS = ("columns32", "columns16")
SPECIAL = {"values": "special", "kv_pad": 5, "score_pad": 3, "kv_offset": 1, "score_offset": 3}
# One row, the most that a thread has, the least and the most that a block has, more than that.
ROWS = (1, 5, 8, 9, 128, 129, 300)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("pool-store")
    return {v: OwnKernel(f"cu/gated_pool_staged:{v}", "sm_90", store) for v in VARIANTS}


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    return OwnKernel("triton/gated_pool:plain", "sm_90a", tmp_path_factory.mktemp("plain-store"))


def case_of(kernel: OwnKernel, rows: int):
    return kernel.case("special", {"B": 2, "R": rows, "D": 45}, **SPECIAL)


@pytest.mark.parametrize("rows", ROWS)
def test_right_clean_and_the_bits_of_triton(kernel, plain, rows):
    found = right_and_clean(kernel[VARIANTS[0]], case_of(kernel[VARIANTS[0]], rows), [LAZY, EAGER])
    assert found == right_and_clean(plain, case_of(plain, rows), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_schedule_gives_the_same(kernel, variant):
    schedules = [LAZY, EAGER, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(kernel[variant], case_of(kernel[variant], 300), schedules)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant):
    chosen = kernel[variant]
    assert code_that_never_runs(chosen, [case_of(chosen, rows) for rows in ROWS]) == []


def test_every_synchronisation_is_missed(kernel):
    chosen = kernel[VARIANTS[0]]
    cases = [case_of(chosen, rows) for rows in (300, 128)]
    survey_kernel(chosen, cases, all_needed, STRICTEST).check(1, least_reported=1)
