"""The kernel with gather4 for 99 KB of shared memory: as the portable one, whose block it has."""

from __future__ import annotations

import pytest
from kernel_checks import EAGER, LAZY, SEEDS, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, make_case, never_runs, surveyed
from sync_mutants import all_needed

from sparsekit.emulator import Schedule

HEADS = {"skip": 70, "noskip": 70, "skip_heads32": 20}  # of the last block some do not exist
ARCH = "sm_120"
# No scan of the row's end comes between the barriers' initialisation and their use.
WITH_LENGTH = (
    {"s_q": 2, "s_kv": 400, "topk": 130},
    {"indices": "mixed", "topk_length": "hostile", "scale": 0.5},
)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    kernels: dict[str, OwnKernel] = {}
    store = tmp_path_factory.mktemp("sm120-store")

    def of(reference: str) -> OwnKernel:
        if reference not in kernels:
            kernels[reference] = OwnKernel(reference, ARCH, store)
        return kernels[reference]

    return of


def bits(kernel, name: str, variant: str, case: str, d_qk: int, schedules=(LAZY,)):
    own = kernel(f"{name}:{variant}")
    return right_and_clean(own, make_case(own, case, HEADS[variant], d_qk), schedules)


@pytest.mark.parametrize(("variant", "d_qk"), [("skip", 576), ("skip_heads32", 512)])
def test_the_bits_of_the_portable_kernel_in_short(kernel, variant, d_qk):
    found = bits(kernel, "cu/sparse_prefill_sm120", variant, "short", d_qk)
    assert found == bits(kernel, "cu/sparse_prefill", variant, "short", d_qk)


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_bits_of_the_portable_kernel(kernel, name, d_qk):
    for variant in HEADS:
        found = bits(kernel, "cu/sparse_prefill_sm120", variant, name, d_qk, [LAZY, EAGER])
        assert found == bits(kernel, "cu/sparse_prefill", variant, name, d_qk)


@pytest.mark.slow
@pytest.mark.parametrize("variant", HEADS)
def test_any_schedule_gives_the_same(kernel, variant):
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    bits(kernel, "cu/sparse_prefill_sm120", variant, "short", 576, schedules)


def is_of_no_score_thread(block: str) -> bool:
    """Of what stands in both roles, or is unrolled for any number of threads, what no score warp
    does: a step of the copy of Q, a load of the scan."""
    if "cp.async.cg.shared.global.L2::128B" in block:
        return True
    small = ("add.s", "mul.wide.u32", "setp.ge.u32", "@%p", "ld.global.nc.s32", "//")
    return all(line.strip().startswith(small) for line in block.splitlines() if line.strip())


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize(("variant", "heads"), [("skip", 70), ("noskip", 70), ("skip_heads32", 32)])
def test_every_block_of_code_runs(kernel, variant, heads, d_qk):
    own = kernel(f"cu/sparse_prefill_sm120:{variant}")
    left = never_runs(own, heads, d_qk, [WITH_LENGTH])
    assert [block for block in left if not is_of_no_score_thread(block)] == []


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    """Of the narrow variant: the same code in a third of the time."""
    own = kernel("cu/sparse_prefill_sm120:skip_heads32")
    found = surveyed(own, HEADS["skip_heads32"], 576, all_needed, [WITH_LENGTH])
    found.check(1, least_reported=1)
