"""sparse_attn_paged_fp8 on Hopper for one query a row: parts of columns, folded in one launch."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Variant

_CLUSTER = 8
_MMA_K = 16
_SM_COUNT = 132  # where no device is known
_MOST = 1_000_000  # blocks an SM: more than any call has

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
SPREAD16 = Entry("sparse_attn_paged_fp8_decode_spread16", _ARGS)
SPREAD16_NARROW = Entry("sparse_attn_paged_fp8_decode_spread16_narrow", _ARGS)
SPREAD32 = Entry("sparse_attn_paged_fp8_decode_spread32", _ARGS)
LONG16 = Entry("sparse_attn_paged_fp8_decode_long16", _ARGS)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """A cluster for a row and 16 heads while they are few for the SMs, else for 32 heads.

    Both give the same bits. More than eight parts always take 16 heads.
    """
    b, h, topk = (call.dims[n] for n in ("b", "h", "topk"))
    most = variant.constant("PART_COLUMNS")
    columns = min(most, max(_MMA_K, -(-topk // (_CLUSTER * _MMA_K)) * _MMA_K))
    values = {"part_columns": columns, "parts": -(-topk // columns)}
    sms = call.device.sm_count if call.device else _SM_COUNT
    narrow = columns <= variant.constant("NARROW_COLUMNS")
    entry, per_sm = (SPREAD16_NARROW, "NARROW_PER_SM") if narrow else (SPREAD16, "WIDE_PER_SM")
    heads = 16
    if values["parts"] > _CLUSTER:
        entry = LONG16
    elif b * _CLUSTER * -(-h // heads) > variant.constant(per_sm) * sms:
        entry, heads = SPREAD32, 32
    return (Launch(entry.name, (b * _CLUSTER, -(-h // heads), 1), values),)


def reject(variant: Variant, call: Call) -> str | None:
    """One query a row."""
    return None if call.dims["m"] == 1 else f"it is for one query a row, found m = {call.dims['m']}"


def _folded(
    name: str = "folded", *, narrow_per_sm: int = 2, wide_per_sm: int = 1, p_terms: int = 1
) -> Variant:
    constants = {"P_TERMS": p_terms, "PART_COLUMNS": 80, "NARROW_COLUMNS": 48}
    launch = {"NARROW_PER_SM": narrow_per_sm, "WIDE_PER_SM": wide_per_sm}
    same = None if name == "folded" or p_terms != 1 else "folded"
    return Variant(name, constants, same_bits_as=same, launch=launch)


KERNEL = Kernel(
    lang="cuda",
    op="sparse_attn_paged_fp8",
    source="kernel.cu",
    entries=(SPREAD16, SPREAD16_NARROW, SPREAD32, LONG16),
    targets=("sm_90a",),
    variants=(
        _folded(),
        _folded("folded16", narrow_per_sm=_MOST, wide_per_sm=_MOST),
        _folded("folded32", narrow_per_sm=0, wide_per_sm=0),
        _folded("fine", p_terms=2),
    ),
    instances=(Instance(),),
    launches=launches,
    reject=reject,
    proven_on=(),
    made_for="one query a row",
)
