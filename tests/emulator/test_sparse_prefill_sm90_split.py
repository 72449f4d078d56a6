"""The Hopper kernel that cuts rows into parts: more parts than one, some of them empty."""

from __future__ import annotations

import pytest
from kernel_checks import EAGER, LAZY, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, SHORT, make_case, never_runs, surveyed
from sm90_block import why_redundant as of_the_block

HEADS = 20  # the rest of a block's 64 are without any
VARIANTS = ("split", "split128")
ENDS = 2  # mbarriers, the last ones
# The merge takes parts four at a time: five of 256 columns, and rows that end in any of them.
MANY_PARTS = (
    {"s_q": 7, "s_kv": 600, "topk": 1100},
    {"indices": "mixed", "topk_length": "hostile", "scale": 0.5},
)


def why_redundant(line: int, instruction: str, text: str) -> str | None:
    after = "\n".join(text.splitlines()[line:])
    if "mbarrier.init" in instruction and after.count("mbarrier.init") < ENDS:
        return "of the ends of whole rows, which parts do not have: nobody arrives or waits"
    return of_the_block({}, line, instruction, text)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("sm90-split-store")
    name = "cu/sparse_prefill_sm90_split"
    return {v: OwnKernel(f"{name}:{v}", "sm_90a", store) for v in VARIANTS}


def test_right_and_clean_in_parts(kernel):
    """7 tokens of 520 columns in five parts: rows that end in any of them."""
    right_and_clean(kernel["split128"], make_case(kernel["split128"], "mixed", HEADS, 576), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_right_and_clean_in_every_case(kernel, variant, name, d_qk):
    case = make_case(kernel[variant], name, HEADS, d_qk)
    right_and_clean(kernel[variant], case, [LAZY, EAGER])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant, d_qk):
    assert never_runs(kernel[variant], HEADS, d_qk, [MANY_PARTS]) == []


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    """In parts of more tiles than two: with fewer, one of the waits is not needed."""
    surveyed(kernel["split"], HEADS, 576, why_redundant, [SHORT]).check(60)
