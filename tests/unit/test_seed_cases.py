"""The workloads of both seeds are there by name, with their sizes, FLOP and bytes."""

from __future__ import annotations

from itertools import product

import pytest

from sparsekit.discover import Catalog
from sparsekit.ops.sparse_prefill.op import ramp_columns

OPS = Catalog().ops
PREFILL, PAGED, POOL = (OPS[n] for n in ("sparse_prefill", "sparse_attn_paged", "gated_pool"))
WINDOW, R4_TOPK = 128, 512

SEED1 = ("seed1_ramp", "seed1_ramp_length", "seed1_full", "seed1_full_length")
# Compress ratio, batch, tokens, total length: the columns follow from them.
SEED2_ATTENTION = {
    "prefill_r4_s2048": (4, 1, 2048, 2048),
    "prefill_r4_s8192": (4, 1, 8192, 8192),
    "prefill_r4_s4096": (4, 1, 4096, 32768),
    "prefill_r128_s8192": (128, 1, 8192, 8192),
    "prefill_r0_s8192": (0, 1, 8192, 8192),
    **{
        f"decode_r{ratio}_b{b}": (ratio, b, 1, 32768) for b in (1, 8) for ratio in (4, 128, 0)
    },
}  # fmt: skip
SEED2_POOL = {f"b{b}_r{r}_d{d}": (b, r, d) for b, r, d in product((1, 8), (8, 128), (128, 512))}
EDGES_POOL = (
    *(f"rows_{r}" for r in (1, 3, 5, 7, 9, 16, 127, 129)),
    "columns_300", "columns_100", "columns_64", "out_bf16", "out_fp32", "strided_fp32",
)  # fmt: skip
EDGES_ATTENTION = (
    "edge_heads_20", "edge_heads_16", "edge_heads_128", "edge_window_100", "edge_window_50",
    "edge_topk_333", "edge_topk_161", "edge_counts_0", "edge_one_pool", "edge_row_offset",
)  # fmt: skip


def of_seed(op, tag):
    return [c for c in op.cases if "seed" in c.tags and tag in c.tags]


def test_the_lists_are_whole():
    assert [c.name for c in of_seed(PREFILL, "perf")] == list(SEED1)
    assert {c.name for c in of_seed(PAGED, "perf")} == set(SEED2_ATTENTION)
    assert {c.name for c in of_seed(POOL, "perf")} == set(SEED2_POOL)
    assert len(SEED2_ATTENTION) + len(SEED2_POOL) == 19
    assert {c.name for c in of_seed(POOL, "corner")} == set(EDGES_POOL)
    assert {c.name for c in of_seed(PAGED, "corner")} == set(EDGES_ATTENTION)
    assert len(EDGES_POOL) + len(EDGES_ATTENTION) == 24


def test_seed_1s_ramp():
    valid = [ramp_columns("ramp", p, 8192) for p in range(8192)]
    assert (valid[0], valid[100], valid[2048], valid[-1]) == (3, 53, 1027, 1027)
    blocks = sum(-(-v // 64) for v in valid) / (8192 * 1152 / 64)
    assert blocks == pytest.approx(0.827, abs=5e-4)
    for name in SEED1:
        case = PREFILL.case(name)
        assert case.dims | {"h_kv": 1} == case.dims
        assert [case.dims[n] for n in ("s_q", "s_kv", "h_q", "d_qk", "topk")] == [
            8192, 8192, 64, 512, 1152,
        ]  # fmt: skip
        assert (case.options["topk_length"] == "valid") is name.endswith("_length")
    ramp, full = PREFILL.work(PREFILL.case("seed1_ramp")), PREFILL.work(PREFILL.case("seed1_full"))
    assert full.flop == 2 * 8192 * 64 * 1152 * 1024
    assert ramp.flop == 2 * 64 * 1024 * sum(valid)
    assert full.bytes == 8192 * (64 * 1024 * 2 + 512 * 2 + 1152 * 4 + 64 * 8)


def test_seed_1s_32_layouts():
    cases = of_seed(PREFILL, "corner")
    facts = [
        (c.options["indices"], c.dims["h_q"], c.dims["d_qk"], c.options["sink"] != "none",
         c.options["topk_length"] != "none")
        for c in cases
    ]  # fmt: skip
    assert len(set(facts)) == len(facts) == 32
    assert {c.dims["topk"] for c in cases} == {2048}
    levels = (("ramp", "interior", "empty", "random"), (64, 128), (512, 576), (False, True))
    levels = (*levels, (False, True))
    for one in range(5):
        for other in range(one + 1, 5):
            pairs = {(f[one], f[other]) for f in facts}
            assert pairs == set(product(levels[one], levels[other])), (one, other)


def test_the_rows_that_were_measured():
    """`facts/h200-measured.md`: s_q, s_kv, h_q, d_qk, topk of each row."""
    rows = {
        **{f"v32_kv{n}": (4096, n, 128, 576, 2048) for n in (8192, 32768, 65536, 131072)},
        "h64_d576": (4096, 32768, 64, 576, 2048),
        **{
            f"h{h}_k{k}": (4096, 65536, h, 512, k) for h in (64, 128) for k in (512, 1024, 2048)
        },
        **{f"short_{n}": (n, 65536, 128, 576, 2048) for n in (1, 8, 64, 128)},
        **{
            f"{kind}_ramp{length}": (8192, 8192, 64, 512, 1152)
            for kind in ("saturating", "linear")
            for length in ("", "_length")
        },
    }  # fmt: skip
    for name, sizes in rows.items():
        dims = PREFILL.case(name).dims
        assert tuple(dims[n] for n in ("s_q", "s_kv", "h_q", "d_qk", "topk")) == sizes, name
        assert "perf" in PREFILL.case(name).tags
    assert [ramp_columns("ramp_saturating", p, 8192) for p in (0, 500, 8191)] == [1, 501, 1027]
    assert [ramp_columns("ramp_linear", p, 8192) for p in (0, 8191)] == [1, 1027]
    assert PREFILL.work(PREFILL.case("v32_kv32768")).flop == 2 * 4096 * 128 * 2048 * (576 + 512)


@pytest.mark.parametrize("name", SEED2_ATTENTION)
def test_seed_2s_columns_are_made_as_freetoken_makes_them(name):
    ratio, b, m, length = SEED2_ATTENTION[name]
    compressed = {0: 0, 4: min(R4_TOPK, length // 4), 128: length // 128}[ratio]
    case = PAGED.case(name)
    dims = [case.dims[n] for n in ("b", "m", "h", "d", "topk", "n_window")]
    assert dims == [b, m, 64, 512, WINDOW + compressed, WINDOW]
    assert PAGED.work(case).flop == 4 * b * m * 64 * 512 * (WINDOW + compressed)


@pytest.mark.parametrize("name", SEED2_POOL)
def test_seed_2s_pools(name):
    b, r, d = SEED2_POOL[name]
    case = POOL.case(name)
    assert [case.dims[n] for n in "BRD"] == [b, r, d]
    assert [case.options[f"{t}_dtype"] for t in ("kv", "score", "out")] == ["fp32", "fp32", "bf16"]
    assert POOL.work(case).bytes == b * d * (8 * r + 2)


def test_seed_2s_edges():
    heads = {PAGED.case(f"edge_heads_{h}").dims["h"] for h in (20, 16, 128)}
    assert heads == {20, 16, 128}
    assert PAGED.case("edge_window_100").dims["n_window"] == 100
    assert PAGED.case("edge_window_50").dims["n_window"] == 50
    for name in ("edge_topk_333", "edge_topk_161"):
        assert PAGED.case(name).dims["topk"] % 32
    assert PAGED.case("edge_counts_0").options["counts"] == "zero"
    assert PAGED.case("edge_one_pool").options["alias_pools"]
    assert PAGED.case("edge_row_offset").options["cmp_pool_row_offset"]
    assert POOL.case("strided_fp32").options["kv_pad"]
    assert POOL.case("out_fp32").options["out_dtype"] == "fp32"
