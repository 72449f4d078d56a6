"""Triton's kernel by products of bf16: tiles for each kind of arch, right and clean."""

from __future__ import annotations

import pytest
from kernel_checks import EAGER, LAZY, STRICTEST, bits, code_that_never_runs
from own_kernel import OwnKernel

from sparsekit.emulator import CHECKS

NAME = "triton/sparse_attn_paged_bf16"
# mma.sync alone; with wgmma; with tensor memory; mma.sync by another ptxas.
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
# What Triton leaves to the hardware: several warps write one value to one place, everywhere; on
# sm_100 barriers without a tcgen05.fence order warps that share cells of tensor memory.
FORGIVEN = {"same-value-race"}
NOT_STRICT = "sm_100a"
_MIXED = {"indices": "mixed", "sink": "special", "return_lse": True, "counts": "none"}
_PADDED = {"q_pad": 8, "window_pool_pad": 24, "cmp_pool_pad": 8, "topk_idxs_pad": 3}
_SIZES = {"h": 20, "n_win": 300, "n_cmp": 400}
CASES = {
    # The last tile and the last split are short, and the window ends inside a tile.
    "mixed": ({"topk": 83, "n_window": 41}, {**_MIXED, **_PADDED, "scale": -0.7}),
    "counts": ({"b": 2, "topk": 150, "n_window": 70}, {**_MIXED, "counts": "hostile"}),
    "trailing": ({"topk": 200, "n_window": 70}, {**_MIXED, "indices": "trailing"}),
    "empty": ({"topk": 130, "n_window": 70}, {**_MIXED, "indices": "empty"}),
    "not finite": ({"b": 2, "topk": 90, "n_window": 50}, {**_MIXED, "values": "inf"}),
    "no numbers": ({"b": 2, "topk": 90, "n_window": 50}, {**_MIXED, "values": "nan"}),
    "no columns": ({"topk": 0, "n_window": 0}, {**_MIXED, "indices": "empty"}),
    "no rows": ({"topk": 20, "n_window": 9, "n_win": 0, "n_cmp": 0},
                {**_MIXED, "indices": "empty"}),
    "two blocks": ({"h": 70, "topk": 40, "n_window": 20}, {**_MIXED, "return_lse": False}),
    "many splits": ({"topk": 600, "n_window": 70}, _MIXED),
}  # fmt: skip


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store, made = tmp_path_factory.mktemp("bf16-store"), {}

    def of(variant: str, arch: str) -> OwnKernel:
        if (variant, arch) not in made:
            made[variant, arch] = OwnKernel(f"{NAME}:{variant}", arch, store)
        return made[variant, arch]

    return of


def make_case(kernel: OwnKernel, m: int, name: str):
    dims, options = CASES[name]
    return kernel.case("decode_small", {"b": 1, **_SIZES, **dims, "m": m}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("variant", ["heads64", "heads64_fine"])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_right_and_clean(kernel, arch, variant, m, name):
    chosen = kernel(variant, arch)
    case = make_case(chosen, m, name)
    strict = [check for check in STRICTEST if check not in FORGIVEN]
    checks = CHECKS if arch == NOT_STRICT else strict
    lazy, eager = (chosen.run(case, schedule, checks) for schedule in (LAZY, EAGER))
    for run in (lazy, eager):
        assert run.faults == []
        assert run.wrong == {}
    assert bits(lazy.outputs) == bits(eager.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("m", [1, 2])
def test_every_block_of_code_runs(kernel, arch, m):
    """All but one: the merge's loop over splits has at least one to go round for."""
    chosen = kernel("heads64", arch)
    cases = [make_case(chosen, m, name) for name in CASES]
    assert len(code_that_never_runs(chosen, cases)) <= (m == 1)
