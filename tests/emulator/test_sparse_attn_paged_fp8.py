"""Decode over pages of fp8 values: right, clean, with the bits of decode over the rows as bf16."""

from __future__ import annotations

import pytest
import torch
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

import sparsekit
from sparsekit.emulator import Schedule
from sparsekit.ops.sparse_attn_paged_fp8.packing import (
    BLOCK,
    COLUMNS,
    FP8_COLUMNS,
    SCALE_BYTES,
    TOKEN_BYTES,
    VALUE_BYTES,
    unpack,
)

NAME, BF16 = "cu/sparse_attn_paged_fp8_decode_sm90", "cu/sparse_attn_paged_decode_sm90"
PORTABLE = "cu/sparse_attn_paged_fp8:serial"
SPREADS = ("folded16", "folded32")
# sm_80 converts by the bits, sm_89 and later by an instruction.
ANYWHERE = ((f"{NAME}:folded", "sm_90a"), (PORTABLE, "sm_80"), (PORTABLE, "sm_120"))
_MIXED = {"indices": "mixed", "sink": "special", "return_lse": True, "counts": "none"}
_PADDED = {"q_pad": 8, "window_pool_pad": 1024, "cmp_pool_pad": 16, "topk_idxs_pad": 3}
CASES = {
    # Parts of 48 columns, the last of them short; 20 heads leave the rest of a block's without any.
    "mixed": ({"b": 2, "h": 20, "topk": 330, "n_window": 130}, {**_MIXED, **_PADDED}),
    "short": ({"b": 1, "h": 3, "topk": 21, "n_window": 7}, {**_MIXED, "scale": -0.7}),
    "counts": ({"b": 2, "h": 16, "topk": 300, "n_window": 70}, {**_MIXED, "counts": "hostile"}),
    "no numbers": ({"b": 2, "h": 20, "topk": 90, "n_window": 50}, {**_MIXED, "values": "nan"}),
    "tiny": ({"b": 2, "h": 20, "topk": 90, "n_window": 50}, {**_MIXED, "scales": "tiny"}),
    "no columns": ({"b": 1, "h": 16, "topk": 0, "n_window": 0}, {**_MIXED, "indices": "empty"}),
    "wide": ({"b": 1, "h": 20, "topk": 520, "n_window": 128}, _MIXED),
    "no lse": ({"b": 1, "h": 40, "topk": 130, "n_window": 70}, {**_MIXED, "return_lse": False}),
    # More parts than a cluster has blocks, whose blocks then have two: always the entry for that.
    "long": ({"b": 1, "h": 16, "topk": 720, "n_window": 128}, {**_MIXED, "indices": "trailing"}),
}
_E4M3_NAN = 0x7F  # and with a sign


@pytest.fixture(scope="session")
def kernel(tmp_path_factory):
    store = tmp_path_factory.mktemp("fp8-store")
    return {
        **{v: OwnKernel(f"{NAME}:{v}", "sm_90a", store) for v in (*SPREADS, "fine")},
        **{arch: OwnKernel(PORTABLE, arch, store) for arch in ("sm_80", "sm_120")},
    }


@pytest.fixture(scope="session")
def load(tmp_path_factory):
    store = tmp_path_factory.mktemp("fp8-loaded")
    return lambda reference, arch="sm_90a": sparsekit.load(
        reference, device="cpu", arch=arch, cache_dir=store, note=print
    )


def make_case(kernel: OwnKernel, name: str):
    dims, options = CASES[name]
    return kernel.case("decode_small", dims, **options)


@pytest.mark.parametrize("name", ["short", "no columns"])
def test_right_and_clean_in_short(kernel, name):
    right_and_clean(kernel["folded16"], make_case(kernel["folded16"], name), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_right_clean_and_the_same_however_spread(kernel, name):
    found = [
        right_and_clean(chosen, make_case(chosen, name), [LAZY, EAGER])
        for chosen in (kernel[spread] for spread in SPREADS)
    ]
    assert all(one == found[0] for one in found)
    for arch in ("sm_80", "sm_120"):
        one = right_and_clean(kernel[arch], make_case(kernel[arch], name), [LAZY, EAGER])
        assert one == found[0] or name == "long"  # which folds in another order


def any_values(pages: int, page_size: int, seed: int) -> torch.Tensor:
    """A pool of all kinds of e4m3 but NaN, with scales near 1, each page at 16 bytes."""
    random = torch.Generator().manual_seed(seed)
    tokens = pages * page_size
    fp8 = torch.randint(256, (tokens, FP8_COLUMNS), generator=random)
    fp8 = torch.where((fp8 & 0x7F) == _E4M3_NAN, 0x11, fp8).to(torch.uint8)
    rope = torch.randn((tokens, COLUMNS - FP8_COLUMNS), generator=random).bfloat16()
    values = torch.cat([fp8, rope.view(torch.uint8)], 1).view(pages, -1)
    scales = torch.randint(110, 130, (pages, SCALE_BYTES * page_size), generator=random)
    return padded(torch.cat([values, scales.to(torch.uint8)], 1))


def padded(pages: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros((len(pages), -(-pages.shape[1] // 16) * 16), dtype=torch.uint8)
    return wide[:, : pages.shape[1]].copy_(pages)


@pytest.mark.parametrize(
    ("where", "topk", "sizes"),
    [
        *((where, topk, sizes) for where in ANYWHERE
          for topk, sizes in ((21, (64, 3)), (200, (1, 128)))),
        (ANYWHERE[0], 720, (16, 7)),
    ],
)  # fmt: skip
def test_the_bits_of_decode_over_the_rows_as_bf16(load, where, topk, sizes):
    random = torch.Generator().manual_seed(topk)
    pools = [any_values(300 // size, size, seed) for seed, size in enumerate(sizes)]
    q = torch.randn((2, 1, 20, COLUMNS), generator=random).bfloat16()
    sink = torch.randn(20, generator=random)
    indices = torch.randint(-20, 310, (2, 1, topk), generator=random, dtype=torch.int32)
    rest = {"attn_sink": sink, "topk_idxs": indices, "n_window": topk // 3, "return_lse": True}
    packed = load(*where)(
        q, *pools, window_page_size=sizes[0], cmp_page_size=sizes[1], softmax_scale=0.05, **rest
    )
    rows = [unpack(pool, size) for pool, size in zip(pools, sizes, strict=True)]
    plain = load(f"{BF16}:folded")(q, *rows, softmax_scale=0.05, **rest)
    for one, other in zip(packed, plain, strict=True):
        integers = torch.int16 if one.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(one.view(integers), other.view(integers))


@pytest.mark.slow
@pytest.mark.parametrize("where", ANYWHERE)
def test_every_byte_with_every_scale(load, where):
    """Rows of all finite products that bf16 holds: a list of one of them alone gives it back."""
    e4m3 = torch.tensor(
        [b for b in range(256) if b & 0x7F != _E4M3_NAN] + [0, 0], dtype=torch.uint8
    )
    blocks = FP8_COLUMNS // BLOCK
    scales = torch.arange(254, dtype=torch.uint8).repeat_interleave(len(e4m3) // BLOCK)
    values = e4m3.view(-1, BLOCK).repeat(254, 1)
    count = -(-len(scales) // blocks)
    pool = padded(torch.zeros((count, TOKEN_BYTES), dtype=torch.uint8))
    for i, (block, scale) in enumerate(zip(values, scales, strict=True)):
        row, part = divmod(i, blocks)
        pool[row, part * BLOCK : (part + 1) * BLOCK] = block
        pool[row, VALUE_BYTES + part] = scale
    rows = unpack(pool, 1)
    finite = rows.isfinite().all(1)
    assert finite.sum() > 0.95 * count
    listed = finite.nonzero().int().view(-1, 1, 1)
    out = load(*where)(
        torch.zeros((len(listed), 1, 1, COLUMNS), dtype=torch.bfloat16), pool, pool,
        torch.full((1,), -torch.inf), listed, n_window=1, window_page_size=1, cmp_page_size=1,
        softmax_scale=1.0,
    )  # fmt: skip
    wanted = rows[finite] + 0.0  # -0 comes as 0
    assert torch.equal(out.view(-1, COLUMNS).view(torch.int16), wanted.view(torch.int16))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", "no numbers"])
def test_fine_is_right_and_clean(kernel, name):
    right_and_clean(kernel["fine"], make_case(kernel["fine"], name), [LAZY])


@pytest.mark.slow
@pytest.mark.parametrize("spread", [*SPREADS, "sm_80"])
def test_any_schedule_gives_the_same(kernel, spread):
    chosen = kernel[spread]
    schedules = [LAZY, *(Schedule("random", seed) for seed in range(SEEDS))]
    right_and_clean(chosen, make_case(chosen, "short"), schedules)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [*SPREADS, "sm_80", "sm_120"])
def test_every_block_of_code_runs(kernel, spread):
    chosen = kernel[spread]
    others = [
        ({"b": 2, "h": 20, "topk": topk, "n_window": 70}, {**_MIXED, **more})
        for topk in (500, 640, 720)
        for more in ({"counts": "hostile"}, {"values": "nan"}, {"scales": "nan"})
    ]
    cases = [chosen.case("decode_small", d, **o) for d, o in (*CASES.values(), *others)]
    assert code_that_never_runs(chosen, cases) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "name"),
    [("folded16", "long"), ("folded16", "wide"), ("folded32", "mixed"), ("sm_80", "mixed")],
)
def test_every_synchronisation_is_missed(kernel, spread, name):
    chosen = kernel[spread]
    survey_kernel(chosen, [make_case(chosen, name)], all_needed, STRICTEST).check(
        1, least_reported=1
    )
