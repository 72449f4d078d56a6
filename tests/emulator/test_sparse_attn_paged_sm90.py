"""The Hopper block over two pools on cases of its own: several items a block."""

from __future__ import annotations

from functools import partial

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
from sm90_block import why_redundant
from sync_mutants import survey_kernel

from sparsekit.emulator import Schedule
from sparsekit.model import Case

VARIANTS = ("skip", "noskip")
_MIXED = {"indices": "mixed", "scale": 0.5, "return_lse": True}
_PADDED = {
    **_MIXED, "sink": "special", "q_pad": 8, "window_pool_pad": 24, "cmp_pool_pad": 8,
    "topk_idxs_pad": 3, "topk_idxs_offset": 1,
}  # fmt: skip
# h 20: the rest of a block's 64 heads are none. b, m, topk and n_window differ.
CASES = {
    "mixed": ({"b": 2, "m": 4, "topk": 520, "n_window": 128}, _PADDED),
    "one tile each": ({"b": 2, "m": 7, "topk": 20, "n_window": 9}, _MIXED),
    "window of a tile": ({"b": 1, "m": 5, "topk": 70, "n_window": 64}, _MIXED),
    # A block has five items and more, and some have to be scanned.
    "many": ({"b": 1, "m": 11, "topk": 130, "n_window": 65}, _MIXED),
    # Nor do rows end within 256 columns of topk.
    "far ends": ({"b": 1, "m": 14, "topk": 400, "n_window": 65}, _MIXED),
    # A block has more than 32 items: the lengths of some are found in the loop.
    "batches": ({"b": 1, "m": 70, "topk": 140, "n_window": 9}, _MIXED),
    "batches with counts": (
        {"b": 2, "m": 35, "topk": 12, "n_window": 5},
        {**_MIXED, "counts": "hostile"},
    ),
    "two blocks of heads": ({"b": 2, "m": 2, "h": 72, "topk": 150, "n_window": 70}, _MIXED),
    "one query a row": ({"b": 6, "m": 1, "topk": 150, "n_window": 70}, _PADDED),
    "one query a row, counts": (
        {"b": 5, "m": 1, "topk": 200, "n_window": 50},
        {**_MIXED, "counts": "hostile"},
    ),
    "window only": (
        {"b": 1, "m": 3, "topk": 128, "n_window": 128},
        {**_MIXED, "return_lse": False},
    ),
    "no window": ({"b": 1, "m": 3, "topk": 90, "n_window": 0}, _MIXED),
    "counts": (
        {"b": 3, "m": 4, "topk": 200, "n_window": 50},
        {**_PADDED, "counts": "hostile", "scale": -0.7},
    ),
    "not finite": (
        {"b": 1, "m": 3, "topk": 70, "n_window": 30},
        {"indices": "interior", "values": "inf", "return_lse": True},
    ),
    "no numbers": (
        {"b": 1, "m": 3, "topk": 70, "n_window": 30},
        {"indices": "interior", "values": "nan", "return_lse": True},
    ),
    "no rows": ({"b": 1, "m": 3, "topk": 70, "n_win": 0, "n_cmp": 0}, {"indices": "empty"}),
    "no columns": ({"b": 1, "m": 3, "topk": 0, "n_window": 0}, {"sink": "finite"}),
}
SHORT = ({"b": 1, "m": 3, "topk": 90, "n_window": 40}, _MIXED)
MUTATED = ({"b": 1, "m": 5, "topk": 330, "n_window": 100}, _MIXED)
UNNEEDED = {
    "q_read[0]": "P of an item's last tile is stored behind the reading of the next Q",
    "q_read[3]": "no block has a fourth item here",
    "rope_full": "there is no rope chunk",
    "s_done": "without a gate and a rope chunk nothing hangs on it",
}


def make_case(kernel: OwnKernel, sizes: tuple[dict[str, int], dict[str, object]]) -> Case:
    dims, options = sizes
    return kernel.case("prefill_small", {"h": 20, **dims}, **options)


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("paged-sm90-store")
    return {v: OwnKernel(f"cu/sparse_attn_paged_sm90:{v}", "sm_90a", store) for v in VARIANTS}


@pytest.mark.parametrize("sizes", [SHORT, CASES["one tile each"]], ids=["short", "one tile each"])
def test_right_and_clean_in_short(kernel, sizes):
    right_and_clean(kernel["skip"], make_case(kernel["skip"], sizes), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_bits_in_every_variant(kernel, name):
    found = [
        right_and_clean(kernel[v], make_case(kernel[v], CASES[name]), [LAZY, EAGER])
        for v in VARIANTS
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "many"])
def test_any_schedule_gives_the_same(kernel, name):
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(kernel["skip"], make_case(kernel["skip"], CASES[name]), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_block_of_code_runs(kernel, variant):
    cases = [make_case(kernel[variant], sizes) for sizes in CASES.values()]
    assert code_that_never_runs(kernel[variant], cases) == []


@pytest.mark.slow
def test_every_synchronisation_is_missed(kernel):
    case = make_case(kernel["skip"], MUTATED)
    why = partial(why_redundant, UNNEEDED)
    survey_kernel(kernel["skip"], [case], why, STRICTEST).check(50)
