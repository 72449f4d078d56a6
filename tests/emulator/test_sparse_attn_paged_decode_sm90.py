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
_PREFIX = "sparse_attn_paged_decode_"
SPREADS = ("folded16", "folded32", "serial")
WHOLE = ("block16", "pair16")  # of rows that fit one block, or two, only
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
_MOST_SHORT = 192
# Parts of 16 columns up to 128 columns, of 32 up to 256, of 48 up to 384.
SHORT_CASES = {
    **{name: case for name, case in CASES.items() if case[0]["topk"] <= _MOST_SHORT},
    "eight parts": ({"b": 2, "h": 20, "topk": 128, "n_window": 128}, {**_MIXED, **_PADDED}),
    "six parts": ({"b": 2, "h": 5, "topk": 192, "n_window": 128}, _MIXED),
    "short part": ({"b": 1, "h": 40, "topk": 177, "n_window": 20}, {**_MIXED, "scale": -0.7}),
    "one part": ({"b": 2, "h": 5, "topk": 16, "n_window": 16}, {"indices": "random"}),
    "some counts": ({"b": 3, "h": 20, "topk": 127, "n_window": 30},
                    {**_MIXED, "counts": "hostile"}),
    "more counts": ({"b": 3, "h": 20, "topk": 191, "n_window": 30},
                    {**_MIXED, "counts": "hostile", "values": "nan"}),
    "infinite": ({"b": 3, "h": 5, "topk": 192, "n_window": 70}, {**_MIXED, "values": "inf"}),
}  # fmt: skip
PAIR_CASES = {
    **{name: CASES[name] for name in ("mixed", "counts", "no counts")},
    "of 32": ({"b": 2, "h": 5, "topk": 256, "n_window": 128}, {**_MIXED, **_PADDED}),
    "of 48": ({"b": 2, "h": 20, "topk": 384, "n_window": 128}, {**_MIXED, **_PADDED}),
    "short of 48": ({"b": 1, "h": 40, "topk": 371, "n_window": 20}, {**_MIXED, "scale": -0.7}),
    "counts of 48": ({"b": 4, "h": 5, "topk": 383, "n_window": 30},
                     {**_MIXED, "counts": "hostile", "values": "nan"}),
    "infinite of 48": ({"b": 3, "h": 5, "topk": 384, "n_window": 70}, {**_MIXED, "values": "inf"}),
}  # fmt: skip
WHOLE_CASES = {"block16": SHORT_CASES, "pair16": {**SHORT_CASES, **PAIR_CASES}}


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("decode-store")
    found = {v: OwnKernel(f"{NAME}:{v}", "sm_90a", store) for v in (*SPREADS, *WHOLE, "fine")}
    for variant in WHOLE:
        always = {"NARROW_PER_SM": 1_000_000, f"{variant.upper()}_OVER_PER_SM": 0}
        found[f"fine {variant}"] = OwnKernel(f"{NAME}:fine", "sm_90a", store, always)
    return found


def entries(kernel: OwnKernel, case) -> set[str]:
    return {report.entry.removeprefix(_PREFIX) for report in kernel.run(case).reports}


def make_case(kernel: OwnKernel, dims: dict[str, int], options: dict[str, object]):
    return kernel.case("decode_small", {**_FEW_ROWS, **dims}, **{"counts": "none", **options})


@pytest.mark.parametrize("spread", ["folded16", "serial", *WHOLE])
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
@pytest.mark.parametrize(
    ("variant", "name"), [(variant, name) for variant in WHOLE for name in WHOLE_CASES[variant]]
)
def test_whole_rows_are_right_clean_and_the_same(kernel, variant, name):
    chosen = kernel[variant]
    case = make_case(chosen, *WHOLE_CASES[variant][name])
    assert entries(chosen, case) == {variant}
    found = right_and_clean(chosen, case, [LAZY, EAGER])
    assert found == right_and_clean(kernel["folded16"], case, [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("variant", WHOLE)
@pytest.mark.parametrize("name", ["six parts", "some counts", "infinite"])
def test_fine_is_the_same_for_whole_rows(kernel, variant, name):
    chosen = kernel[f"fine {variant}"]
    case = make_case(chosen, *SHORT_CASES[name])
    assert entries(chosen, case) == {variant}
    found = right_and_clean(chosen, case, [LAZY, EAGER])
    assert variant not in entries(kernel["fine"], case)
    assert found == right_and_clean(kernel["fine"], case, [LAZY])


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
@pytest.mark.parametrize("spread", [*SPREADS, *WHOLE])
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
@pytest.mark.parametrize("variant", WHOLE)
@pytest.mark.parametrize("prefix", ["", "fine "])
def test_every_block_of_code_for_whole_rows_runs(kernel, variant, prefix):
    chosen = kernel[prefix + variant]
    cases = [make_case(chosen, *of) for of in WHOLE_CASES[variant].values()]
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
        ("block16", SHORT_CASES["six parts"]),
        ("block16", SHORT_CASES["eight parts"]),
        ("pair16", PAIR_CASES["of 32"]),
        ("pair16", PAIR_CASES["of 48"]),
    ],
    ids=str,
)
def test_every_synchronisation_is_missed(kernel, spread, sizes):
    chosen = kernel[spread]
    case = make_case(chosen, *sizes)
    survey_kernel(chosen, [case], all_needed, STRICTEST).check(1, least_reported=1)
