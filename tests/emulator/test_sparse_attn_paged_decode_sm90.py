"""The Hopper kernel for decode: each way to spread the parts, the same bits from all."""

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

NAME = "cu/sparse_attn_paged_decode_sm90"
SPREADS = ("folded16", "folded32", "serial")
_MIXED = {"indices": "mixed", "sink": "special", "return_lse": True}
_PADDED = {"q_pad": 8, "window_pool_pad": 24, "cmp_pool_pad": 8, "topk_idxs_pad": 3}
_FEW_ROWS = {"n_win": 300, "n_cmp": 400}
CASES = {
    # Parts of 48 columns, the last of them short; 20 heads leave the rest of a block's without any.
    "mixed": ({"b": 2, "h": 20, "topk": 330, "n_window": 130}, {**_MIXED, **_PADDED}),
    "short": ({"b": 1, "h": 3, "topk": 21, "n_window": 7}, {**_MIXED, "scale": -0.7}),
    "counts": ({"b": 2, "h": 16, "topk": 300, "n_window": 70}, {**_MIXED, "counts": "hostile"}),
    "no counts": ({"b": 1, "h": 16, "topk": 300, "n_window": 70}, {**_MIXED, "counts": "zero"}),
    "empty": ({"b": 1, "h": 16, "topk": 130, "n_window": 70}, {**_MIXED, "indices": "empty"}),
    "not finite": ({"b": 2, "h": 20, "topk": 90, "n_window": 50}, {**_MIXED, "values": "inf"}),
    "no numbers": ({"b": 2, "h": 20, "topk": 90, "n_window": 50}, {**_MIXED, "values": "nan"}),
    "no columns": ({"b": 1, "h": 16, "topk": 0, "n_window": 0}, {**_MIXED, "indices": "empty"}),
    "no rows": ({"b": 1, "h": 16, "topk": 20, "n_window": 9, "n_win": 0, "n_cmp": 0},
                {**_MIXED, "indices": "empty"}),
    "wide": ({"b": 1, "h": 20, "topk": 520, "n_window": 128}, _MIXED),
    "no lse": ({"b": 1, "h": 40, "topk": 130, "n_window": 70}, {"indices": "random"}),
}  # fmt: skip
# More parts than a cluster has blocks, whose blocks then have two: always the entry for that.
LONG = ({"b": 1, "h": 16, "topk": 720, "n_window": 128}, {**_MIXED, "indices": "trailing"})


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("decode-store")
    return {v: OwnKernel(f"{NAME}:{v}", "sm_90a", store) for v in (*SPREADS, "fine")}


def make_case(kernel: OwnKernel, dims: dict[str, int], options: dict[str, object]):
    return kernel.case("decode_small", {**_FEW_ROWS, **dims}, **{"counts": "none", **options})


@pytest.mark.parametrize("spread", ["folded16", "serial"])
def test_right_and_clean_in_short(kernel, spread):
    chosen = kernel[spread]
    right_and_clean(chosen, make_case(chosen, *CASES["short"]), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_however_spread(kernel, name):
    found = [
        right_and_clean(chosen, make_case(chosen, *CASES[name]), [LAZY, EAGER])
        for chosen in (kernel[spread] for spread in SPREADS)
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.slow
def test_more_parts_than_blocks(kernel):
    found = [
        right_and_clean(chosen, make_case(chosen, *LONG), [LAZY, EAGER])
        for chosen in (kernel[spread] for spread in SPREADS)
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "not finite"])
def test_fine_is_right_and_clean(kernel, name):
    chosen = kernel["fine"]
    right_and_clean(chosen, make_case(chosen, *CASES[name]), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS)
def test_any_schedule_gives_the_same(kernel, spread):
    chosen = kernel[spread]
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(chosen, make_case(chosen, *CASES["short"]), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("spread", SPREADS)
def test_every_block_of_code_runs(kernel, spread):
    chosen = kernel[spread]
    full = ({"b": 1, "h": 40, "topk": 640, "n_window": 128}, _MIXED)
    others = [
        ({"b": 2, "h": 20, "topk": topk, "n_window": 70}, {**_MIXED, **more})
        for topk in (500, 720)
        for more in ({"counts": "hostile"}, {"values": "nan"})
    ]
    cases = [make_case(chosen, *of) for of in (*CASES.values(), full, LONG, *others)]
    assert code_that_never_runs(chosen, cases) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "sizes"),
    [
        ("folded16", LONG),
        ("folded16", CASES["wide"]),
        ("folded16", CASES["mixed"]),
        ("folded32", CASES["mixed"]),
        ("serial", CASES["mixed"]),
    ],
    ids=str,
)
def test_every_synchronisation_is_missed(kernel, spread, sizes):
    chosen = kernel[spread]
    case = make_case(chosen, *sizes)
    survey_kernel(chosen, [case], all_needed, STRICTEST).check(1, least_reported=1)
