"""sparse_attn_paged by products of bf16: 64 heads a program, so that a row is gathered once.

`heads64` rounds the weights to bf16 for their product with the rows; `heads64_fine` makes them the
sum of two bf16.
"""

from sparsekit.model import (
    TRITON_TARGETS,
    Arg,
    Call,
    Entry,
    Kernel,
    Launch,
    Override,
    Scratch,
    Variant,
)

_HEAD_DIM = 512
_FEW_HEADS = 16  # a block of triton/sparse_attn_paged

_POOLS = (
    Arg("window_pool_ptr", "*bf16", "window_pool", divisible_by=16),
    Arg("cmp_pool_ptr", "*bf16", "cmp_pool", divisible_by=16),
)
_SIZES = (
    Arg("n_window", "i32"),
    Arg("window_rows", "i32", "n_win"),
    Arg("cmp_rows", "i32", "n_cmp"),
)
_POOL_STRIDES = (
    Arg("window_pool_row_stride", "i64", "window_pool.stride(0)", divisible_by=8),
    Arg("cmp_pool_row_stride", "i64", "cmp_pool.stride(0)", divisible_by=8),
)
PREFILL = Entry(
    "sparse_attn_paged_bf16_prefill",
    (
        Arg("q_ptr", "*bf16", "q", divisible_by=16),
        *_POOLS,
        Arg("attn_sink_ptr", "*fp32", "attn_sink"),
        Arg("topk_idxs_ptr", "*i32", "topk_idxs"),
        Arg("cmp_counts_ptr", "*i32", "cmp_counts"),
        Arg("out_ptr", "*bf16", "out", divisible_by=16),
        Arg("lse_ptr", "*fp32", "lse"),
        Arg("softmax_scale", "fp32"),
        Arg("m", "i32"),
        Arg("h", "i32"),
        Arg("topk", "i32"),
        *_SIZES,
        Arg("q_b_stride", "i64", "q.stride(0)", divisible_by=8),
        Arg("q_m_stride", "i64", "q.stride(1)", divisible_by=8),
        Arg("q_h_stride", "i64", "q.stride(2)", divisible_by=8),
        *_POOL_STRIDES,
        Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
        Arg("topk_idxs_m_stride", "i64", "topk_idxs.stride(1)"),
        Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)"),
        Arg("cmp_counts_m_stride", "i64", "cmp_counts.stride(1)"),
        Arg("out_b_stride", "i64", "out.stride(0)", divisible_by=8),
        Arg("out_m_stride", "i64", "out.stride(1)", divisible_by=8),
        Arg("out_h_stride", "i64", "out.stride(2)", divisible_by=8),
        Arg("lse_b_stride", "i64", "lse.stride(0)"),
        Arg("lse_m_stride", "i64", "lse.stride(1)"),
    ),
)
SPLIT = Entry(
    "sparse_attn_paged_bf16_decode_split",
    (
        Arg("q_ptr", "*bf16", "q", divisible_by=16),
        *_POOLS,
        Arg("topk_idxs_ptr", "*i32", "topk_idxs"),
        Arg("cmp_counts_ptr", "*i32", "cmp_counts"),
        Arg("partial_out_ptr", "*fp32", "partial_out", divisible_by=16),
        Arg("partial_lse_ptr", "*fp32", "partial_lse"),
        Arg("softmax_scale", "fp32"),
        Arg("h", "i32"),
        Arg("topk", "i32"),
        Arg("n_splits", "i32"),
        *_SIZES,
        Arg("q_b_stride", "i64", "q.stride(0)", divisible_by=8),
        Arg("q_h_stride", "i64", "q.stride(2)", divisible_by=8),
        *_POOL_STRIDES,
        Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
        Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)"),
    ),
)
MERGE = Entry(
    "sparse_attn_paged_bf16_decode_merge",
    (
        Arg("partial_out_ptr", "*fp32", "partial_out", divisible_by=16),
        Arg("partial_lse_ptr", "*fp32", "partial_lse"),
        Arg("attn_sink_ptr", "*fp32", "attn_sink"),
        Arg("out_ptr", "*bf16", "out", divisible_by=16),
        Arg("lse_ptr", "*fp32", "lse"),
        Arg("h", "i32"),
        Arg("n_splits", "i32"),
        Arg("out_b_stride", "i64", "out.stride(0)", divisible_by=8),
        Arg("out_h_stride", "i64", "out.stride(2)", divisible_by=8),
        Arg("lse_b_stride", "i64", "lse.stride(0)"),
    ),
)


def reject(variant: Variant, call: Call) -> str | None:
    """The model's head dimension, and heads for more than a block of triton/sparse_attn_paged."""
    if call.dims["d"] != _HEAD_DIM:
        return f"it is for d = {_HEAD_DIM}, found {call.dims['d']}"
    if call.dims["h"] <= _FEW_HEADS:
        return f"it is for more than {_FEW_HEADS} heads, found {call.dims['h']}"
    return None


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """Prefill for several queries a row; decode, cut at fixed columns and merged, for one."""
    b, m, h, topk, d = (call.dims[n] for n in ("b", "m", "h", "topk", "d"))
    head_blocks = -(-h // variant.constant("BLOCK_H"))
    if m != 1:
        return (Launch(PREFILL.name, (b * m * head_blocks, 1, 1)),)
    splits = max(1, -(-topk // variant.constant("BLOCK_SPLIT")))
    values = {"n_splits": splits}
    partials = (
        Scratch("partial_out", "fp32", (b, h, splits, d)),
        Scratch("partial_lse", "fp32", (b, h, splits)),
    )
    return (
        Launch(SPLIT.name, (b * splits * head_blocks, 1, 1), values, partials),
        Launch(MERGE.name, (b * h, 1, 1), values, partials),
    )


_TILE = {
    "D": _HEAD_DIM,
    "BLOCK_H": 64,
    "BLOCK_K": 16,
    "SCAN_K": 32,
    "BLOCK_SPLIT": 64,
    "BLOCK_S": 32,
}
# The sums of the output lie in tensor memory there, which leaves registers for rows under way.
_MORE_ROWS = Override({"BLOCK_K": 32}, capabilities=((10, 0), (10, 3), (11, 0)))
# Two wgmma on one sum do not fit into the registers; 32 heads are left to mma.sync.
_FEWER_HEADS = Override({"BLOCK_H": 32}, capabilities=((9, 0),))


def _variant(name: str, p_terms: int, override: Override) -> Variant:
    constants = {**_TILE, "P_TERMS": p_terms}
    return Variant(name, constants, num_warps=8, num_stages=1, overrides=(override,))


KERNEL = Kernel(
    lang="triton",
    op="sparse_attn_paged",
    source="kernel.py",
    entries=(PREFILL, SPLIT, MERGE),
    targets=TRITON_TARGETS,
    variants=(
        _variant("heads64", 1, _MORE_ROWS),
        _variant("heads64_fine", 2, _FEWER_HEADS),
    ),
    reject=reject,
    launches=launches,
    proven_on=(),
    made_for=f"d = {_HEAD_DIM} and more than {_FEW_HEADS} heads",
)
