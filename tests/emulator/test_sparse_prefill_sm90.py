"""The Hopper kernel on cases of its own: several items a block."""

from __future__ import annotations

from functools import partial

import pytest
from kernel_checks import EAGER, LAZY, SEEDS, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, SHORT, make_case, never_runs, surveyed
from sm90_block import why_redundant

from sparsekit.emulator import Schedule

HEADS = 20  # the rest of a block's 64 are without any
VARIANTS = ("skip", "noskip")


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("sm90-store")
    return {v: OwnKernel(f"cu/sparse_prefill_sm90:{v}", "sm_90a", store) for v in VARIANTS}


@pytest.mark.parametrize(("name", "d_qk"), [("short", 576), ("short", 512), ("one tile each", 576)])
def test_right_and_clean_in_short(kernel, name, d_qk):
    right_and_clean(kernel["skip"], make_case(kernel["skip"], name, HEADS, d_qk), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_with_and_without_skip(kernel, d_qk, name):
    found = [
        right_and_clean(kernel[v], make_case(kernel[v], name, HEADS, d_qk), [LAZY, EAGER])
        for v in VARIANTS
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_any_schedule_gives_the_same(kernel):
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(kernel["skip"], make_case(kernel["skip"], "mixed", HEADS, 576), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant, d_qk):
    assert never_runs(kernel[variant], HEADS, d_qk) == []


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    surveyed(kernel["skip"], HEADS, 576, partial(why_redundant, {}), [SHORT]).check(60)
