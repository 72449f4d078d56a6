"""sparse_attn_paged: prefill, and decode split over columns with a merge.

`hint16` tells the compiler that every row of a pool starts at a multiple of 16 bytes, which `plain`
leaves to its analysis; the same bits.
"""

from itertools import product

from sparsekit.model import (
    TRITON_TARGETS,
    Arg,
    Call,
    Entry,
    Instance,
    Kernel,
    Launch,
    Promise,
    Scratch,
    Variant,
)

_ROW_BYTES, _ROW_ELEMS = 16, 8  # what hint16 assumes of a row's start, so of a pool's row stride
_COUNTS, _LSE = "has_cmp_counts", "has_lse"

_POOLS = (
    Arg("window_pool_ptr", "*bf16", "window_pool"),
    Arg("cmp_pool_ptr", "*bf16", "cmp_pool"),
)
_SIZES = (
    Arg("n_window", "i32"),
    Arg("window_rows", "i32", "n_win"),
    Arg("cmp_rows", "i32", "n_cmp"),
)
_POOL_STRIDES = (
    Arg("window_pool_row_stride", "i64", "window_pool.stride(0)"),
    Arg("cmp_pool_row_stride", "i64", "cmp_pool.stride(0)"),
)
PREFILL = Entry(
    "sparse_attn_paged_prefill",
    (
        Arg("q_ptr", "*bf16", "q"),
        *_POOLS,
        Arg("attn_sink_ptr", "*fp32", "attn_sink"),
        Arg("topk_idxs_ptr", "*i32", "topk_idxs"),
        Arg("cmp_counts_ptr", "*i32", "cmp_counts", only_if=_COUNTS),
        Arg("out_ptr", "*bf16", "out"),
        Arg("lse_ptr", "*fp32", "lse", only_if=_LSE),
        Arg("softmax_scale", "fp32"),
        Arg("m", "i32"),
        Arg("h", "i32"),
        Arg("topk", "i32"),
        *_SIZES,
        Arg("q_b_stride", "i64", "q.stride(0)"),
        Arg("q_m_stride", "i64", "q.stride(1)"),
        Arg("q_h_stride", "i64", "q.stride(2)"),
        *_POOL_STRIDES,
        Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
        Arg("topk_idxs_m_stride", "i64", "topk_idxs.stride(1)"),
        Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)", only_if=_COUNTS),
        Arg("cmp_counts_m_stride", "i64", "cmp_counts.stride(1)", only_if=_COUNTS),
        Arg("out_b_stride", "i64", "out.stride(0)"),
        Arg("out_m_stride", "i64", "out.stride(1)"),
        Arg("out_h_stride", "i64", "out.stride(2)"),
        Arg("lse_b_stride", "i64", "lse.stride(0)", only_if=_LSE),
        Arg("lse_m_stride", "i64", "lse.stride(1)", only_if=_LSE),
    ),
)
SPLIT = Entry(
    "sparse_attn_paged_decode_split",
    (
        Arg("q_ptr", "*bf16", "q"),
        *_POOLS,
        Arg("topk_idxs_ptr", "*i32", "topk_idxs"),
        Arg("cmp_counts_ptr", "*i32", "cmp_counts", only_if=_COUNTS),
        Arg("partial_out_ptr", "*fp32", "partial_out"),
        Arg("partial_lse_ptr", "*fp32", "partial_lse"),
        Arg("softmax_scale", "fp32"),
        Arg("h", "i32"),
        Arg("topk", "i32"),
        Arg("n_splits", "i32"),
        *_SIZES,
        Arg("q_b_stride", "i64", "q.stride(0)"),
        Arg("q_h_stride", "i64", "q.stride(2)"),
        *_POOL_STRIDES,
        Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
        Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)", only_if=_COUNTS),
    ),
)
MERGE = Entry(
    "sparse_attn_paged_decode_merge",
    (
        Arg("partial_out_ptr", "*fp32", "partial_out"),
        Arg("partial_lse_ptr", "*fp32", "partial_lse"),
        Arg("attn_sink_ptr", "*fp32", "attn_sink"),
        Arg("out_ptr", "*bf16", "out"),
        Arg("lse_ptr", "*fp32", "lse", only_if=_LSE),
        Arg("h", "i32"),
        Arg("n_splits", "i32"),
        Arg("out_b_stride", "i64", "out.stride(0)"),
        Arg("out_h_stride", "i64", "out.stride(2)"),
        Arg("lse_b_stride", "i64", "lse.stride(0)", only_if=_LSE),
    ),
)
# What holds in models: lists, windows and pools of a multiple of 16, aligned tensors.
_NOT_PROMISED = (
    "softmax_scale", "m", "h", "n_splits", "cmp_counts_b_stride", "cmp_counts_m_stride",
    "lse_b_stride", "lse_m_stride",
)  # fmt: skip
_ALIGNED = tuple(
    Promise(name, 16)
    for name in dict.fromkeys(a.name for e in (PREFILL, SPLIT, MERGE) for a in e.args)
    if name not in _NOT_PROMISED
)


def instances() -> tuple[Instance, ...]:
    """Each combination twice: aligned, and with no promise. Models use d 512 without lse."""
    found = []
    for d, counts, lse in product((512, 64, 128, 256), (0, 1), (0, 1)):
        constants = {"d": d, _COUNTS: counts, _LSE: lse}
        found.append(Instance(constants=constants, assume=_ALIGNED, default=d == 512 and not lse))
        found.append(Instance(constants=constants, default=False))
    return tuple(found)


def reject(variant: Variant, call: Call) -> str | None:
    """hint16 takes pools whose rows all start at a multiple of 16 bytes."""
    if not variant.constant("HINT16"):
        return None
    for pool in ("window_pool", "cmp_pool"):
        if call.alignments[pool] < _ROW_BYTES:
            return f"{pool} must lie at a multiple of 16 bytes, found {call.alignments[pool]}"
        if call.strides[pool][0] % _ROW_ELEMS:
            found = call.strides[pool][0]
            return f"the row stride of {pool} must be a multiple of 8 elements, found {found}"
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


_TILE = {"BLOCK_H": 16, "BLOCK_K": 32, "BLOCK_SPLIT": 128, "BLOCK_S": 32}

KERNEL = Kernel(
    lang="triton",
    op="sparse_attn_paged",
    source="kernel.py",
    entries=(PREFILL, SPLIT, MERGE),
    targets=TRITON_TARGETS,
    variants=(
        Variant("hint16", {**_TILE, "HINT16": 1}, num_warps=8, num_stages=2, same_bits_as="plain"),
        Variant("plain", {**_TILE, "HINT16": 0}, num_warps=8, num_stages=2),
    ),
    instances=instances(),
    reject=reject,
    launches=launches,
    proven_on=("9.0",),
)
