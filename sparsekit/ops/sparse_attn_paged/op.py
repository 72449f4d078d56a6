"""sparse_attn_paged: attention over rows gathered from a window pool and a compressed pool.

FreeToken's interface. Column j < n_window of a token's list reads the window pool, the others the
compressed one. lse is natural and does not include the sink.
"""

from __future__ import annotations

import math

from sparsekit.model import Call, Case, Op, Scalar, Tensor, Work

HEAD_DIMS = (64, 128, 256, 512)
_BF16_BYTES, _INT32_BYTES = 2, 4


def check(call: Call) -> str | None:
    """What is wrong with a call whose tensors fit one another."""
    n_window, topk = call.fact("n_window"), call.dims["topk"]
    scale = call.scalars["softmax_scale"]
    if call.dims["d"] not in HEAD_DIMS:
        return f"d must be one of {HEAD_DIMS}, found {call.dims['d']}"
    if n_window is None or not 0 <= n_window <= topk:
        return f"n_window must lie in [0, topk = {topk}], found {call.scalars['n_window']}"
    if call.dims["h"] == 0:
        return "h must be at least 1, found 0"
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        return f"softmax_scale must be finite, found {scale}"
    return None


def work(case: Case) -> Work:
    """FLOP over the full width; bytes with every input and output moved once."""
    b, m, h, d, topk = (case.dims[n] for n in ("b", "m", "h", "d", "topk"))
    rows = min(case.dims["n_win"] + case.dims["n_cmp"], b * m * topk)
    moved = 2 * b * m * h * d * _BF16_BYTES + rows * d * _BF16_BYTES + b * m * topk * _INT32_BYTES
    return Work(4 * b * m * h * d * topk, moved)


def _case(
    name: str, tags: str, b: int, m: int, h: int, topk: int, n_window: int, *, d: int = 512,
    n_win: int = 400, n_cmp: int = 500, **options: object,
) -> Case:  # fmt: skip
    dims = {
        "b": b,
        "m": m,
        "h": h,
        "d": d,
        "topk": topk,
        "n_window": n_window,
        "n_win": n_win,
        "n_cmp": n_cmp,
    }
    known: dict[str, object] = {
        "indices": "random", "counts": "none", "sink": "finite", "scale": d**-0.5, "return_lse": False,
        "values": "normal", "alias_pools": False, "q_pad": 0, "window_pool_pad": 0, "cmp_pool_pad": 0,
        "topk_idxs_pad": 0, "topk_idxs_offset": 0, "window_pool_row_offset": 0, "cmp_pool_row_offset": 0,
    }  # fmt: skip
    return Case(name, dims, tuple(tags.split()), {**known, **options}, seed=sum(name.encode()))


_PADDED = {
    "q_pad": 8, "window_pool_pad": 24, "cmp_pool_pad": 8, "topk_idxs_pad": 3, "topk_idxs_offset": 1,
}  # fmt: skip
_FAR_ROW_PAD = 40_000  # with 60,000 rows the last one lies past 2^31 elements
_WINDOW = 128


def _seed2(name: str, b: int, m: int, width: int) -> Case:
    """A shape of seed 2: 64 heads, a window of 128 columns, the rest compressed."""
    rows = {"n_win": 8192, "n_cmp": 16384}
    counts = "full" if m == 1 else "none"
    return _case(name, "perf", b, m, 64, width, _WINDOW, counts=counts, **rows)


CASES = (
    _case("prefill_small", "smoke sanitize", 1, 5, 16, 160, 64, indices="mixed"),
    _case("prefill_padded", "smoke sanitize", 2, 4, 20, 161, 50, indices="mixed", sink="special", return_lse=True, **_PADDED),
    _case("prefill_counts", "smoke sanitize", 2, 9, 16, 200, 100, indices="mixed", counts="hostile", return_lse=True),
    _case("decode_small", "smoke sanitize", 5, 1, 16, 300, 128, indices="mixed", counts="hostile"),
    _case("decode_padded", "smoke sanitize", 9, 1, 20, 301, 100, indices="mixed", sink="special", counts="hostile", return_lse=True, **_PADDED),
    _case("prefill_model", "smoke", 1, 64, 64, 640, 128, n_cmp=2000),
    _case("decode_model", "smoke", 4, 1, 64, 640, 128, n_cmp=2000, counts="full"),
    *(
        _case(f"heads_{h}_m{m}", "corner", 3, m, h, 150, 70, indices="mixed", sink="special", return_lse=True)
        for h in (1, 8, 16, 20, 32, 64, 96, 128) for m in (1, 2)
    ),
    *(
        _case(f"d{d}_m{m}", "corner", 2, m, 16, 200, 100, d=d, indices="mixed", counts="hostile", return_lse=True)
        for d in HEAD_DIMS for m in (1, 3)
    ),
    *(
        _case(f"topk_{topk}_w{n_window}_m{m}", "corner", 3, m, 16, topk, n_window, indices="mixed", return_lse=True)
        for topk, n_window in ((1, 0), (1, 1), (2, 1), (31, 7), (32, 32), (33, 0), (100, 100), (127, 127),
                               (128, 128), (129, 128), (192, 128), (257, 128), (640, 128), (1000, 50), (2048, 128))
        for m in (1, 2)
    ),
    *(
        _case(f"{layout}_m{m}", "corner", 4, m, 16, 300, 128, indices=layout, sink="special", return_lse=True)
        for layout in ("leading_invalid", "interior", "empty", "duplicates", "trailing") for m in (1, 2)
    ),
    *(_case(f"one_key_m{m}", "corner", 130, m, 16, 150, 70, indices="one_key", sink="off", return_lse=True) for m in (1, 2)),
    *(
        _case(f"counts_{kind}_m{m}", "corner", 20, m, 16, 200, 70, indices="mixed", counts=kind, return_lse=True)
        for kind in ("zero", "full", "hostile") for m in (1, 2)
    ),
    *(_case(f"one_pool_m{m}", "corner", 3, m, 16, 200, 70, alias_pools=True, return_lse=True) for m in (1, 2)),
    *(
        _case(f"row_offset_m{m}", "corner", 3, m, 16, 200, 70, indices="interior", window_pool_row_offset=5,
              cmp_pool_row_offset=7, return_lse=True)
        for m in (1, 2)
    ),
    *(_case(f"nan_listed_m{m}", "corner", 4, m, 16, 100, 50, indices="interior", values="nan", return_lse=True) for m in (1, 2)),
    *(_case(f"scale_{n}_m{m}", "corner", 3, m, 16, 100, 50, indices="mixed", scale=s, return_lse=True)
      for n, s in (("zero", 0.0), ("negative", -0.7)) for m in (1, 2)),
    *(_case(f"no_columns_m{m}", "corner", 2, m, 16, 0, 0, return_lse=True) for m in (1, 2)),
    *(_case(f"no_rows_m{m}", "corner", 2, m, 16, 20, 10, n_win=0, n_cmp=0, indices="empty", return_lse=True) for m in (1, 2)),
    _case("no_batch", "corner", 0, 1, 16, 64, 32, return_lse=True),
    _case("no_tokens", "corner", 2, 0, 16, 64, 32),
    *(_case(f"tokens_{b}_m{m}", "corner", b, m, 16, 64, 32, d=64, indices="mixed")
      for b, m in ((65_535, 1), (65_536, 1), (2, 32_768), (1, 65_537))),
    _case("far_rows_m1", "corner", 3, 1, 16, 128, 64, n_win=60_000, window_pool_pad=_FAR_ROW_PAD, return_lse=True),
    _case("far_rows_m2", "corner", 2, 2, 16, 128, 64, n_cmp=60_000, cmp_pool_pad=_FAR_ROW_PAD, return_lse=True),
    _seed2("prefill_r4_s2048", 1, 2048, 640),
    _seed2("prefill_r4_s8192", 1, 8192, 640),
    _seed2("prefill_r4_s4096", 1, 4096, 640),
    _seed2("prefill_r128_s8192", 1, 8192, 192),
    _seed2("prefill_r0_s8192", 1, 8192, 128),
    *(_seed2(f"decode_{r}_b{b}", b, 1, width)
      for b in (1, 8) for r, width in (("r4", 640), ("r128", 384), ("r0", 128))),
    _seed2("decode_r4_b64", 64, 1, 640),
)  # fmt: skip

OP = Op(
    summary="Sparse attention over slots of a window pool and a compressed pool, FreeToken's interface.",
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
    cases=CASES,
    work=work,
    probes=("random", "zero_q"),
    batch="b",
)
