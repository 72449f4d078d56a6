"""The Hopper kernel on cases of its own: several items a block."""

from __future__ import annotations

import re

import pytest
from kernel_checks import EAGER, LAZY, SEEDS, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, make_case, never_runs, silent_mutants

from sparsekit.emulator import Schedule

HEADS = 20  # the rest of a block's 64 are without any
VARIANTS = ("skip", "noskip")

_OFFSET = r"add\.s64 \t%rd\d+, %rd\d+, (\d+);"
_INITIALISED = rf"{_OFFSET}(?:(?!add\.s64)[^@])*?mbarrier\.init"
BARRIERS = (
    "full[0]", "full[1]", "full[2]", "rope_full", "q_full", "s_done", "p_full", "p_free",
    *(f"q_read[{item}]" for item in range(4)), "end_full[0]", "end_full[1]",
)  # fmt: skip
"""Of SharedMemory, in the order of their `init`."""
UNNEEDED = {
    "q_read[0]": "P of an item's last tile is stored behind the reading of the next Q",
    "q_read[3]": "no block has a fourth item here",
}
MOST_EXCUSED = 6  # of 66


def why_redundant(instruction: str, line: int, text: str) -> str | None:
    """Why nothing goes wrong without an instruction; None where it is needed."""
    before = "\n".join(text.splitlines()[: line - 1])
    if "mbarrier" in instruction:
        names = dict(zip(re.findall(_INITIALISED, text), BARRIERS, strict=True))
        return UNNEEDED.get(names.get(re.findall(_OFFSET, before)[-1], ""))
    if "wgmma.fence" in instruction:
        last = re.findall(r"wgmma\.(mma_async|commit_group|wait_group)", before)[-1]
        return "of the same sum as the products before it" if last == "mma_async" else None
    stores_p = text.splitlines()[line + 1].strip().startswith("bar.warp.sync")
    if "fence.proxy" in instruction and stores_p:
        last = re.findall(r"wgmma\.(mma_async|wait_group)", before)[-1]
        why = "P V waits for the gate, and before that comes the fence for the last chunks"
        return why if last == "mma_async" else None
    return None


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
    silent, excused = silent_mutants(kernel["skip"], HEADS, 576, why_redundant)
    assert silent == []
    assert excused <= MOST_EXCUSED
