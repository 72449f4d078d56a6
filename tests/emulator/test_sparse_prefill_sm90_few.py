"""The Hopper kernel for few heads on cases of its own: several tokens a block."""

from __future__ import annotations

import pytest
from kernel_checks import EAGER, LAZY, SEEDS, right_and_clean
from own_kernel import OwnKernel
from prefill_kernels import CASES, SHORT, make_case, never_runs, surveyed

from sparsekit.emulator import Schedule

WIDTHS = {8: 5, 16: 16, 32: 29}  # heads of a block: those of the call
SKIPS = ("skip", "noskip")


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("few-store")
    return {
        (skip, width): OwnKernel(f"cu/sparse_prefill_sm90_few:{skip}_heads{width}", "sm_90a", store)
        for skip in SKIPS
        for width in WIDTHS
    }


@pytest.mark.parametrize(("width", "d_qk"), [(8, 576), (16, 512), (32, 576)])
def test_right_and_clean_in_short(kernel, width, d_qk):
    chosen = kernel["skip", width]
    right_and_clean(chosen, make_case(chosen, "short", WIDTHS[width], d_qk), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_with_and_without_skip(kernel, d_qk, width, name):
    found = [
        right_and_clean(chosen, make_case(chosen, name, WIDTHS[width], d_qk), [LAZY, EAGER])
        for chosen in (kernel[skip, width] for skip in SKIPS)
    ]
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_any_schedule_gives_the_same(kernel, width):
    chosen = kernel["skip", width]
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(chosen, make_case(chosen, "mixed", WIDTHS[width], 576), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("d_qk", [576, 512])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("skip", SKIPS)
def test_every_block_of_code_runs(kernel, skip, width, d_qk):
    assert never_runs(kernel[skip, width], WIDTHS[width], d_qk) == []


def why_redundant(line: int, instruction: str, text: str) -> str | None:
    if instruction.startswith("wgmma.fence"):
        return "behind a wait ptxas wants another, though no register was touched since the first"
    return None


# A token's last tile is not its first, whose reference always moves, and it has the P buffer, and
# so the ends, of the last tile of the token before; with a ring of less than three tiles, as at
# 576, it would not be there before those ends have been read.
TWO_TILES = ({"s_q": 9, "s_kv": 200, "topk": 120}, {"indices": "random", "scale": 0.5})


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    surveyed(kernel["skip", 16], 16, 512, why_redundant, [SHORT, TWO_TILES]).check(60)
