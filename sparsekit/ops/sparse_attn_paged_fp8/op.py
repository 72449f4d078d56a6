"""sparse_attn_paged_fp8: sparse_attn_paged over pools of pages that hold fp8 values with scales.

`packing.py` has the form of a page, and `pack` and `unpack` in torch. An index i is token
i % page_size of page i / page_size. Column j < n_window of a token's list reads the window pool,
the others the compressed one; d is 512. lse is natural and does not include the sink.
"""

from __future__ import annotations

import math
from typing import Any

from sparsekit.model import Call, Case, Op, Scalar, Tensor, Work

COLUMNS, TOKEN_BYTES = 512, 584
# How sampling.lay_out lays out the columns of a list; mixed takes the others in turn.
LAYOUTS = (
    "mixed", "full", "interior", "leading_invalid", "trailing", "empty", "one_key", "duplicates",
)  # fmt: skip
_ALIGNMENT = 16  # bytes, of a pool and of its pages
_POOLS = ("window", "cmp")
_BF16_BYTES, _INT32_BYTES, _MOST_ROWS = 2, 4, 2**31 - 1


def check(call: Call) -> str | None:
    """What is wrong with a call whose tensors fit one another."""
    n_window, topk = call.fact("n_window"), call.dims["topk"]
    scale = call.scalars["softmax_scale"]
    if call.dims["d"] != COLUMNS:
        return f"d must be {COLUMNS}, found {call.dims['d']}"
    if call.dims["h"] == 0:
        return "h must be at least 1, found 0"
    if n_window is None or not 0 <= n_window <= topk:
        return f"n_window must lie in [0, topk = {topk}], found {call.scalars['n_window']}"
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        return f"softmax_scale must be finite, found {scale}"
    for pool in _POOLS:
        size, found = call.fact(f"{pool}_page_size"), call.dims[f"{pool}_page_bytes"]
        if size is None or size < 1:
            return f"{pool}_page_size must be at least 1, found {size}"
        if found < size * TOKEN_BYTES:
            wanted = f"{size * TOKEN_BYTES} bytes for {size} tokens"
            return f"a page of {pool}_pool must have {wanted}, found {found}"
        if call.dims[f"{pool}_pages"] * size > _MOST_ROWS:
            return f"{pool}_pool must have at most {_MOST_ROWS} tokens, more than an index names"
    return None


def check_case(case: Case) -> str | None:
    """What is wrong with sizes that a user changed."""
    n_window, topk = case.dims["n_window"], case.dims["topk"]
    if n_window > topk:
        return f"n_window must lie in [0, topk = {topk}], found {n_window}"
    if case.dims["d"] != COLUMNS:
        return f"d must be {COLUMNS}, found {case.dims['d']}"
    if case.dims["h"] == 0:
        return "h must be at least 1, found 0"
    for pool in _POOLS:
        size, found = case.dims[f"{pool}_page_size"], case.dims[f"{pool}_page_bytes"]
        if size < 1 or found != size * TOKEN_BYTES:
            return f"{pool}_page_bytes must be {TOKEN_BYTES} {pool}_page_size, found {found}"
    return None


def work(case: Case) -> Work:
    """FLOP over the full width; bytes with every input and output moved once."""
    b, m, h, d, topk = (case.dims[n] for n in ("b", "m", "h", "d", "topk"))
    held = sum(case.dims[f"{p}_pages"] * case.dims[f"{p}_page_size"] for p in _POOLS)
    rows = min(held, b * m * topk)
    moved = 2 * b * m * h * d * _BF16_BYTES + rows * TOKEN_BYTES + b * m * topk * _INT32_BYTES
    return Work(4 * b * m * h * d * topk, moved)


def _case(
    name: str, tags: str, b: int, h: int, topk: int, n_window: int, *, m: int = 1,
    pages: tuple[int, int] = (7, 8), page_sizes: tuple[int, int] = (64, 64), **options: Any,
) -> Case:  # fmt: skip
    dims = {"b": b, "m": m, "h": h, "d": COLUMNS, "topk": topk, "n_window": n_window}
    known: dict[str, Any] = {
        "indices": "random", "counts": "none", "sink": "finite", "scale": COLUMNS**-0.5,
        "return_lse": False, "values": "normal", "scales": "own", "alias_pools": False, "q_pad": 0,
        "topk_idxs_pad": 0, "topk_idxs_offset": 0,
    }  # fmt: skip
    for pool, count, size in zip(_POOLS, pages, page_sizes, strict=True):
        page_bytes = size * TOKEN_BYTES
        dims |= {
            f"{pool}_pages": count, f"{pool}_page_size": size, f"{pool}_page_bytes": page_bytes
        }  # fmt: skip
        known[f"{pool}_pool_pad"] = -page_bytes % _ALIGNMENT
    return Case(name, dims, tuple(tags.split()), {**known, **options}, seed=sum(name.encode()))


def _decode(name: str, b: int, topk: int) -> Case:
    """A shape of seed 2's decode: 64 heads, a window of 128 columns, the rest compressed."""
    pages: dict[str, Any] = {"pages": (128, 256)}
    return _case(f"decode_{name}_b{b}", "perf", b, 64, topk, 128, counts="full", **pages)


_MIXED: dict[str, Any] = {"indices": "mixed"}
_HOSTILE: dict[str, Any] = {"indices": "mixed", "counts": "hostile"}
_PADDED: dict[str, Any] = {
    "q_pad": 8, "window_pool_pad": 1024, "cmp_pool_pad": 592, "topk_idxs_pad": 3,
    "topk_idxs_offset": 1,
}  # fmt: skip
_LSE: dict[str, Any] = {"return_lse": True}
_WIDTHS = (
    (1, 0), (1, 1), (2, 1), (31, 7), (33, 0), (127, 127), (129, 128), (192, 128), (257, 128),
    (640, 128), (1000, 50), (2048, 128),
)  # fmt: skip
# Tokens a page of the window pool and of the other; and how many pages.
_PAGES = (((1, 1), (130, 200)), ((256, 256), (1, 2)), ((7, 64), (19, 4)), ((64, 3), (3, 70)))

_SMOKE = (
    _case("decode_small", "smoke sanitize", 5, 16, 300, 128, **_HOSTILE),
    _case("decode_padded", "smoke sanitize", 9, 20, 301, 100, **_HOSTILE, **_LSE, **_PADDED),
    _case("decode_nan", "smoke", 2, 16, 160, 64, values="nan"),
    _case("decode_model", "smoke", 4, 64, 640, 128, counts="full").with_emulated(b=2),
)
_CORNERS = (
    *(
        _case(f"heads_{h}", "corner", 3, h, 150, 70, sink="special", **_MIXED, **_LSE)
        for h in (1, 8, 32, 64, 96, 128)
    ),
    *(_case(f"topk_{t}_w{w}", "corner", 3, 16, t, w, **_MIXED, **_LSE) for t, w in _WIDTHS),
    *(
        _case(x, "corner", 4, 16, 300, 128, indices=x, sink="special", **_LSE)
        for x in ("leading_invalid", "interior", "empty", "duplicates", "trailing")
    ),
    *(
        _case(f"counts_{k}", "corner", 20, 16, 200, 70, counts=k, **_MIXED, **_LSE)
        for k in ("zero", "full", "hostile")
    ),
    *(
        _case(f"pages_of_{s[0]}_{s[1]}", "corner", 2, 20, 100, 40, page_sizes=s, pages=n, **_MIXED)
        for s, n in _PAGES
    ),
    _case("one_pool", "corner", 3, 16, 200, 70, pages=(7, 7), alias_pools=True, **_LSE),
    _case("scales_tiny", "corner", 3, 16, 100, 40, scales="tiny", **_MIXED, **_LSE),
    _case("scales_nan", "corner", 3, 16, 100, 40, scales="nan", **_MIXED, **_LSE),
    _case("nan_listed", "corner", 4, 16, 100, 50, indices="interior", values="nan", **_LSE),
    _case("scale_zero", "corner", 3, 16, 100, 50, scale=0.0, **_MIXED, **_LSE),
    _case("scale_negative", "corner", 3, 16, 100, 50, scale=-0.7, **_MIXED, **_LSE),
    _case("no_columns", "corner", 2, 16, 0, 0, **_LSE),
    _case("no_pages", "corner", 2, 16, 20, 10, pages=(0, 0), indices="empty", **_LSE),
    _case("no_batch", "corner", 0, 16, 64, 32, **_LSE),
)
_PERF = (
    *(_decode(r, b, topk) for b in (1, 8) for r, topk in (("r4", 640), ("r128", 384), ("r0", 128))),
    _decode("r4", 64, 640),
)


def _pool(name: str) -> Tensor:
    return Tensor(
        f"{name}_pool", (f"{name}_pages", f"{name}_page_bytes"), ("u8",),
        divisible_by=_ALIGNMENT, stride_divisible_by=_ALIGNMENT,
    )  # fmt: skip


OP = Op(
    summary="sparse_attn_paged over pages of fp8 values with scales and bf16, as DeepSeek-V4's.",
    inputs=(
        Tensor("q", ("b", "m", "h", "d"), ("bf16",)),
        _pool("window"),
        _pool("cmp"),
        Tensor("attn_sink", ("h",), ("fp32",)),
        Tensor("topk_idxs", ("b", "m", "topk"), ("i32",)),
        Scalar("n_window", "int"),
        Scalar("window_page_size", "int"),
        Scalar("cmp_page_size", "int"),
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
        "scales": ("own", "tiny", "nan"),
    },
    cases=(*_SMOKE, *_CORNERS, *_PERF),
    work=work,
    probes=("random", "zero_q"),
    batch="b",
)
