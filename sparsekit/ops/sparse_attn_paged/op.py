"""sparse_attn_paged: attention over rows gathered from a window pool and a compressed pool.

FreeToken's interface. Column j < n_window of a token's list reads the window pool, the others the
compressed one. lse is natural and does not include the sink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sparsekit.model import Call, Case, Op, Scalar, Tensor, Work

HEAD_DIMS = (64, 128, 256, 512)
# How sampling.lay_out lays out the columns of a list; mixed takes the others in turn.
LAYOUTS = (
    "mixed", "full", "interior", "leading_invalid", "trailing", "empty", "one_key", "duplicates",
)  # fmt: skip
_BF16_BYTES, _INT32_BYTES = 2, 4


def check(call: Call) -> str | None:
    """What is wrong with a call whose tensors fit one another."""
    n_window, topk = call.fact("n_window"), call.dims["topk"]
    scale = call.scalars["softmax_scale"]
    if wrong := _wrong_size(call.dims):
        return wrong
    if n_window is None or not 0 <= n_window <= topk:
        return f"n_window must lie in [0, topk = {topk}], found {call.scalars['n_window']}"
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        return f"softmax_scale must be finite, found {scale}"
    return None


def check_case(case: Case) -> str | None:
    """What is wrong with sizes that a user changed."""
    n_window, topk = case.dims["n_window"], case.dims["topk"]
    if n_window > topk:
        return f"n_window must lie in [0, topk = {topk}], found {n_window}"
    return _wrong_size(case.dims)


def _wrong_size(dims: Mapping[str, int]) -> str | None:
    if dims["d"] not in HEAD_DIMS:
        return f"d must be one of {HEAD_DIMS}, found {dims['d']}"
    return "h must be at least 1, found 0" if dims["h"] == 0 else None


def work(case: Case) -> Work:
    """FLOP over the full width; bytes with every input and output moved once."""
    b, m, h, d, topk = (case.dims[n] for n in ("b", "m", "h", "d", "topk"))
    rows = min(case.dims["n_win"] + case.dims["n_cmp"], b * m * topk)
    moved = 2 * b * m * h * d * _BF16_BYTES + rows * d * _BF16_BYTES + b * m * topk * _INT32_BYTES
    return Work(4 * b * m * h * d * topk, moved)


def _case(
    name: str, tags: str, b: int, m: int, h: int, topk: int, n_window: int, *, d: int = 512,
    n_win: int = 400, n_cmp: int = 500, **options: Any,
) -> Case:  # fmt: skip
    dims = {
        "b": b, "m": m, "h": h, "d": d, "topk": topk, "n_window": n_window, "n_win": n_win,
        "n_cmp": n_cmp,
    }  # fmt: skip
    known: dict[str, Any] = {
        "indices": "random", "counts": "none", "sink": "finite", "scale": d**-0.5,
        "return_lse": False, "values": "normal", "alias_pools": False, "q_pad": 0,
        "window_pool_pad": 0, "cmp_pool_pad": 0, "topk_idxs_pad": 0, "topk_idxs_offset": 0,
        "window_pool_offset": 0, "cmp_pool_offset": 0, "window_pool_row_offset": 0,
        "cmp_pool_row_offset": 0,
    }  # fmt: skip
    return Case(name, dims, tuple(tags.split()), {**known, **options}, seed=sum(name.encode()))


def _pair(name: str, b: int, h: int, topk: int, n_window: int, **options: Any) -> list[Case]:
    """A corner case as decode (one query a row) and as prefill (two), with lse."""
    known: dict[str, Any] = {"return_lse": True, **options}
    return [_case(f"{name}_m{m}", "corner", b, m, h, topk, n_window, **known) for m in (1, 2)]


def _seed2(name: str, b: int, m: int, width: int, tags: str = "perf seed") -> Case:
    """A shape of seed 2: 64 heads, a window of 128 columns, the rest compressed."""
    counts = "full" if m == 1 else "none"
    rows: dict[str, Any] = {"n_win": 8192, "n_cmp": 16384}
    return _case(name, tags, b, m, 64, width, _WINDOW, counts=counts, **rows)


_WINDOW = 128
_MIXED: dict[str, Any] = {"indices": "mixed"}
_PADDED: dict[str, Any] = {
    "q_pad": 8, "window_pool_pad": 24, "cmp_pool_pad": 8, "topk_idxs_pad": 3, "topk_idxs_offset": 1,
}  # fmt: skip
_HOSTILE: dict[str, Any] = {"indices": "mixed", "counts": "hostile"}
_FAR_ROW_PAD = 40_000  # with 60,000 rows the last one lies past 2^31 elements
_WIDTHS = (
    (1, 0), (1, 1), (2, 1), (31, 7), (32, 32), (33, 0), (100, 100), (127, 127), (128, 128),
    (129, 128), (192, 128), (257, 128), (640, 128), (1000, 50), (2048, 128),
)  # fmt: skip
_HEADS = (1, 8, 16, 20, 32, 64, 96, 128)
_OFFSETS: dict[str, Any] = {"window_pool_row_offset": 5, "cmp_pool_row_offset": 7}
_COUNTS = ("zero", "full", "hostile")
_LAYOUTS = ("leading_invalid", "interior", "empty", "duplicates", "trailing")
_SPECIAL: dict[str, Any] = {"sink": "special", "return_lse": True}

# A multiple of 16 throughout, as in models: the instances that are built by default take them.
_ALL_16: dict[str, Any] = {"n_cmp": 512}

_SMOKE = (
    _case("prefill_16", "smoke", 1, 7, 16, 160, 64, **_MIXED, **_ALL_16),
    _case("prefill_16_counts", "smoke", 1, 7, 16, 160, 0, **_HOSTILE, **_ALL_16),
    _case("prefill_16_empty", "smoke", 1, 2, 16, 0, 0, topk_idxs_pad=16, **_ALL_16),
    _case("decode_16", "smoke", 7, 1, 16, 320, 128, **_MIXED, **_ALL_16),
    _case("decode_16_counts", "smoke", 7, 1, 16, 320, 128, **_HOSTILE, **_ALL_16),
    _case("decode_16_nan", "smoke", 2, 1, 16, 160, 64, values="nan", **_ALL_16),
    _case(
        "decode_16_nan_counts", "smoke", 2, 1, 16, 160, 64, values="nan", counts="full", **_ALL_16
    ),
    _case("prefill_small", "smoke sanitize", 1, 5, 16, 160, 64, **_MIXED),
    _case("prefill_padded", "smoke sanitize", 2, 4, 20, 161, 50, **_MIXED, **_SPECIAL, **_PADDED),
    _case("prefill_counts", "smoke sanitize", 2, 9, 16, 200, 100, return_lse=True, **_HOSTILE),
    _case("decode_small", "smoke sanitize", 5, 1, 16, 300, 128, **_HOSTILE),
    _case("decode_padded", "smoke sanitize", 9, 1, 20, 301, 100, **_HOSTILE, **_SPECIAL, **_PADDED),
    _case("prefill_model", "smoke", 1, 64, 64, 640, _WINDOW, n_cmp=2000).with_emulated(m=2),
    _case("decode_model", "smoke", 4, 1, 64, 640, _WINDOW, n_cmp=2000, counts="full").with_emulated(
        b=2
    ),
)
_CORNERS = [
    *(_pair(f"heads_{h}", 3, h, 150, 70, sink="special", **_MIXED) for h in _HEADS),
    *(_pair(f"d{d}", 2, 16, 200, 100, d=d, **_HOSTILE) for d in HEAD_DIMS),
    *(_pair(f"topk_{topk}_w{window}", 3, 16, topk, window, **_MIXED) for topk, window in _WIDTHS),
    *(_pair(layout, 4, 16, 300, 128, indices=layout, sink="special") for layout in _LAYOUTS),
    _pair("one_key", 130, 16, 150, 70, indices="one_key", sink="off"),
    *(_pair(f"counts_{k}", 20, 16, 200, 70, counts=k, **_MIXED) for k in _COUNTS),
    _pair("one_pool", 3, 16, 200, 70, alias_pools=True),
    _pair("row_offset", 3, 16, 200, 70, indices="interior", **_OFFSETS),
    # From another column of longer rows; and rows that start at any multiple of 8 bytes.
    _pair("misaligned", 2, 20, 100, 50, window_pool_offset=1, cmp_pool_pad=4, **_MIXED),
    _pair("nan_listed", 4, 16, 100, 50, indices="interior", values="nan"),
    _pair("scale_zero", 3, 16, 100, 50, scale=0.0, **_MIXED),
    _pair("scale_negative", 3, 16, 100, 50, scale=-0.7, **_MIXED),
    _pair("few_columns", 1, 20, 40, 16, **_MIXED),
    _pair("no_columns", 2, 16, 0, 0),
    _pair("no_rows", 2, 16, 20, 10, n_win=0, n_cmp=0, indices="empty"),
    _pair("far_window", 3, 16, 128, 64, n_win=60_000, window_pool_pad=_FAR_ROW_PAD),
    _pair("far_cmp", 3, 16, 128, 64, n_cmp=60_000, cmp_pool_pad=_FAR_ROW_PAD),
    [_case("no_batch", "corner", 0, 1, 16, 64, 32, return_lse=True)],
    [_case("no_tokens", "corner", 2, 0, 16, 64, 32)],
    [
        _case(f"tokens_{b}x{m}", "corner", b, m, 16, 64, 32, d=64, **_MIXED)
        for b, m in ((65_535, 1), (65_536, 1), (2, 32_768), (1, 65_537))
    ],
]  # fmt: skip


def _edge(name: str, m: int, h: int, topk: int, n_window: int, **options: Any) -> Case:
    """One of seed 2's edge cases: two rows of the model's head dimension."""
    return _case(f"edge_{name}", "corner seed", 2, m, h, topk, n_window, **options)


_EDGES = (
    _edge("heads_20", 5, 20, 640, _WINDOW),
    _edge("heads_16", 1, 16, 640, _WINDOW, counts="full"),
    _edge("heads_128", 5, 128, 640, _WINDOW),
    _edge("window_100", 5, 64, 612, 100),
    _edge("window_50", 1, 64, 562, 50, counts="full"),
    _edge("topk_333", 5, 64, 333, _WINDOW),
    _edge("topk_161", 1, 64, 161, _WINDOW, counts="full"),
    _edge("counts_0", 5, 64, 640, _WINDOW, counts="zero"),
    _edge("one_pool", 5, 64, 128, _WINDOW, alias_pools=True),
    _edge("row_offset", 5, 64, 640, _WINDOW, **_OFFSETS),
)
_PERF = (
    _seed2("prefill_r4_s2048", 1, 2048, 640),
    _seed2("prefill_r4_s8192", 1, 8192, 640),
    _seed2("prefill_r4_s4096", 1, 4096, 640),
    _seed2("prefill_r128_s8192", 1, 8192, 192),
    _seed2("prefill_r0_s8192", 1, 8192, 128),
    *(
        _seed2(f"decode_{r}_b{b}", b, 1, width)
        for b in (1, 8)
        for r, width in (("r4", 640), ("r128", 384), ("r0", 128))
    ),
    _seed2("decode_r4_b64", 64, 1, 640, "perf"),
)

OP = Op(
    summary="Sparse attention over slots of a window and a compressed pool; FreeToken's interface.",
    inputs=(
        Tensor("q", ("b", "m", "h", "d"), ("bf16",)),
        Tensor("window_pool", ("n_win", "d"), ("bf16",)),
        Tensor("cmp_pool", ("n_cmp", "d"), ("bf16",)),
        Tensor("attn_sink", ("h",), ("fp32",)),
        Tensor("topk_idxs", ("b", "m", "topk"), ("i32",)),
        Scalar("n_window", "int"),
        Scalar("softmax_scale", "float"),
        Tensor("cmp_counts", ("b", "m"), ("i32",), optional=True),
    ),
    outputs=(
        Tensor("out", ("b", "m", "h", "d"), ("bf16",)),
        Tensor("lse", ("b", "m", "h"), ("fp32",), optional=True),
    ),
    check=check,
    check_case=check_case,
    known_values={
        "indices": ("random", *LAYOUTS),
        "counts": ("none", "zero", "full", "hostile"),
        "sink": ("finite", "off", "special"),
        "values": ("normal", "nan", "inf"),
    },
    cases=(*_SMOKE, *(case for group in _CORNERS for case in group), *_EDGES, *_PERF),
    work=work,
    probes=("random", "zero_q"),
    batch="b",
)
