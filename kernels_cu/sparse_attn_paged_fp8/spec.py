"""sparse_attn_paged_fp8 anywhere from sm_80 on, for one query a row: all parts in one block."""

from sparsekit.model import (
    PORTABLE_CUDA_TARGETS,
    Arg,
    Call,
    Entry,
    Instance,
    Kernel,
    Launch,
    Variant,
)

_CLUSTER = 8  # parts of a row that the Hopper kernel has at once
_MMA_K = 16
_HEADS = 16  # of a block

_ARGS = (
    Arg("q", "*bf16", divisible_by=16),
    Arg("window_pool", "*u8", divisible_by=16),
    Arg("cmp_pool", "*u8", divisible_by=16),
    Arg("attn_sink", "*fp32"),
    Arg("topk_idxs", "*i32"),
    Arg("cmp_counts", "*i32"),
    Arg("out", "*bf16", divisible_by=16),
    Arg("lse", "*fp32"),
    Arg("softmax_scale", "fp32"),
    Arg("h", "i32"),
    Arg("topk", "i32"),
    Arg("n_window", "i32"),
    Arg("part_columns", "i32"),
    Arg("parts", "i32"),
    Arg("window_pages", "i32"),
    Arg("cmp_pages", "i32"),
    Arg("window_page_size", "i32"),
    Arg("cmp_page_size", "i32"),
    Arg("q_b_stride", "i64", "q.stride(0)", divisible_by=8),
    Arg("q_h_stride", "i64", "q.stride(2)", divisible_by=8),
    Arg("window_pool_page_stride", "i64", "window_pool.stride(0)", divisible_by=16),
    Arg("cmp_pool_page_stride", "i64", "cmp_pool.stride(0)", divisible_by=16),
    Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
    Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)"),
    Arg("out_b_stride", "i64", "out.stride(0)", divisible_by=8),
    Arg("out_h_stride", "i64", "out.stride(2)", divisible_by=8),
    Arg("lse_b_stride", "i64", "lse.stride(0)"),
)
SERIAL16 = Entry("sparse_attn_paged_fp8_serial16", _ARGS)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """A block for a row and 16 heads."""
    b, h, topk = (call.dims[n] for n in ("b", "h", "topk"))
    most = variant.constant("PART_COLUMNS")
    columns = min(most, max(_MMA_K, -(-topk // (_CLUSTER * _MMA_K)) * _MMA_K))
    values = {"part_columns": columns, "parts": -(-topk // columns)}
    return (Launch(SERIAL16.name, (b, -(-h // _HEADS), 1), values),)


def reject(variant: Variant, call: Call) -> str | None:
    """One query a row."""
    return None if call.dims["m"] == 1 else f"it is for one query a row, found m = {call.dims['m']}"


_CONSTANTS = {"PART_COLUMNS": 80, "NARROW_COLUMNS": 48}

KERNEL = Kernel(
    lang="cuda",
    op="sparse_attn_paged_fp8",
    source="kernel.cu",
    entries=(SERIAL16,),
    targets=PORTABLE_CUDA_TARGETS,
    variants=(
        Variant("serial", {"P_TERMS": 1, **_CONSTANTS}),
        Variant("fine", {"P_TERMS": 2, **_CONSTANTS}),
    ),
    instances=(Instance(),),
    launches=launches,
    reject=reject,
    proven_on=(),
)
