"""sparse_attn_paged on Hopper for one query a row: parts of columns, folded in the one launch."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Variant

_HEAD_DIM = 512
_CLUSTER = 8
_PAIR = 2
_MMA_K = 16
_SM_COUNT = 132  # where no device is known
_MOST = 1_000_000  # blocks an SM: more than any call has

_ARGS = (
    Arg("q", "*bf16", divisible_by=16),
    Arg("window_pool", "*bf16", divisible_by=16),
    Arg("cmp_pool", "*bf16", divisible_by=16),
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
    Arg("window_rows", "i32", "n_win"),
    Arg("cmp_rows", "i32", "n_cmp"),
    Arg("q_b_stride", "i64", "q.stride(0)", divisible_by=8),
    Arg("q_h_stride", "i64", "q.stride(2)", divisible_by=8),
    Arg("window_pool_row_stride", "i64", "window_pool.stride(0)", divisible_by=8),
    Arg("cmp_pool_row_stride", "i64", "cmp_pool.stride(0)", divisible_by=8),
    Arg("topk_idxs_b_stride", "i64", "topk_idxs.stride(0)"),
    Arg("cmp_counts_b_stride", "i64", "cmp_counts.stride(0)"),
    Arg("out_b_stride", "i64", "out.stride(0)", divisible_by=8),
    Arg("out_h_stride", "i64", "out.stride(2)", divisible_by=8),
    Arg("lse_b_stride", "i64", "lse.stride(0)"),
)
SPREAD16 = Entry("sparse_attn_paged_decode_spread16", _ARGS)
SPREAD16_NARROW = Entry("sparse_attn_paged_decode_spread16_narrow", _ARGS)
SPREAD32 = Entry("sparse_attn_paged_decode_spread32", _ARGS)
LONG16 = Entry("sparse_attn_paged_decode_long16", _ARGS)
SERIAL32 = Entry("sparse_attn_paged_decode_serial32", _ARGS)
BLOCK16 = Entry("sparse_attn_paged_decode_block16", _ARGS)
PAIR16 = Entry("sparse_attn_paged_decode_pair16", _ARGS)


def _parts(topk: int, most: int) -> tuple[int, int]:
    """The columns of a part, an eighth of all in sixteens, and how many parts there are."""
    columns = min(most, max(_MMA_K, -(-topk // (_CLUSTER * _MMA_K)) * _MMA_K))
    return columns, -(-topk // columns)


def _fits(variant: Variant, columns: int, parts: int, blocks: int) -> bool:
    """Whether as many blocks have a row's parts in shared memory at once: all, or half each."""
    of_block = parts if blocks == 1 else _CLUSTER // blocks
    return parts <= _CLUSTER and columns * of_block <= variant.constant("SHORT_COLUMNS")


def _per_sm(variant: Variant, blocks: int) -> tuple[int, int]:
    """Over how many blocks of clusters an SM a row has one block, or two; and how many of these."""
    if blocks == 1:
        return variant.constant("BLOCK16_OVER_PER_SM"), _MOST
    return variant.constant("PAIR16_OVER_PER_SM"), variant.constant("PAIR16_PER_SM")


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """Clusters while they are few for the SMs, 16 heads a block before 32; else a block per row.

    Where clusters are many for the SMs, a row that fits a block whole has one without a cluster,
    and one whose half fits has two, while these run in two waves.
    All give the same bits. Only clusters take more parts than they have blocks.
    """
    b, h, topk = (call.dims[n] for n in ("b", "h", "topk"))
    columns, parts = _parts(topk, variant.constant("PART_COLUMNS"))
    values = {"part_columns": columns, "parts": parts}
    sms = call.device.sm_count if call.device else _SM_COUNT
    if parts > _CLUSTER:
        return (Launch(LONG16.name, (b * _CLUSTER, -(-h // 16), 1), values),)
    by_16, by_32 = (b * _CLUSTER * -(-h // heads) for heads in (16, 32))
    for entry, blocks in ((BLOCK16, 1), (PAIR16, _PAIR)):
        grid = (b * blocks, -(-h // 16), 1)
        least, most = (per_sm * sms for per_sm in _per_sm(variant, blocks))
        if _fits(variant, columns, parts, blocks) and by_16 > least and grid[0] * grid[1] <= most:
            return (Launch(entry.name, grid, values),)
    narrow = columns <= variant.constant("NARROW_COLUMNS")
    spread16, per_sm = (SPREAD16_NARROW, "NARROW_PER_SM") if narrow else (SPREAD16, "WIDE_PER_SM")
    if by_16 <= variant.constant(per_sm) * sms:
        return (Launch(spread16.name, (b * _CLUSTER, -(-h // 16), 1), values),)
    if by_32 <= variant.constant("SPREAD32_PER_SM") * sms:
        return (Launch(SPREAD32.name, (b * _CLUSTER, -(-h // 32), 1), values),)
    return (Launch(SERIAL32.name, (b, -(-h // 32), 1), values),)


def reject(variant: Variant, call: Call) -> str | None:
    """One query a row, of the model's head dimension; short where only that entry is asked for."""
    if call.dims["m"] != 1:
        return f"it is for one query a row, found m = {call.dims['m']}"
    if call.dims["d"] != _HEAD_DIM:
        return f"it is for d = {_HEAD_DIM}, found {call.dims['d']}"
    columns, parts = _parts(call.dims["topk"], variant.constant("PART_COLUMNS"))
    for blocks in (1, _PAIR):
        if _per_sm(variant, blocks)[0] == 0 and not _fits(variant, columns, parts, blocks):
            most = variant.constant("SHORT_COLUMNS") * blocks
            found = columns * parts
            return f"it is for rows whose parts have at most {most} columns, found {found}"
    return None


def _folded(
    name: str = "folded", *, narrow_per_sm: int = 2, wide_per_sm: int = 1, spread32_per_sm: int = 3,
    block16_over_per_sm: int = 1, pair16_over_per_sm: int = 1, pair16_per_sm: int = 2,
    p_terms: int = 1,
) -> Variant:  # fmt: skip
    constants = {
        "P_TERMS": p_terms, "PART_COLUMNS": 80, "NARROW_COLUMNS": 48, "SHORT_COLUMNS": 192
    }  # fmt: skip
    launch = {
        "NARROW_PER_SM": narrow_per_sm,
        "WIDE_PER_SM": wide_per_sm,
        "SPREAD32_PER_SM": spread32_per_sm,
        "BLOCK16_OVER_PER_SM": block16_over_per_sm,
        "PAIR16_OVER_PER_SM": pair16_over_per_sm,
        "PAIR16_PER_SM": pair16_per_sm,
    }
    same = None if name == "folded" or p_terms != 1 else "folded"
    return Variant(name, constants, same_bits_as=same, launch=launch)


def _only(name: str, **per_sm: int) -> Variant:
    """One that launches serial, or what it is given."""
    never = {"narrow_per_sm": 0, "wide_per_sm": 0, "spread32_per_sm": 0}
    over = {"block16_over_per_sm": _MOST, "pair16_over_per_sm": _MOST}
    return _folded(name, **{**never, **over, **per_sm})


KERNEL = Kernel(
    lang="cuda",
    op="sparse_attn_paged",
    source="kernel.cu",
    entries=(SPREAD16, SPREAD16_NARROW, SPREAD32, LONG16, SERIAL32, BLOCK16, PAIR16),
    targets=("sm_90a",),
    variants=(
        _folded(),
        _only("folded16", narrow_per_sm=_MOST, wide_per_sm=_MOST),
        _only("folded32", spread32_per_sm=_MOST),
        _only("serial"),
        _only("block16", block16_over_per_sm=0),
        _only("pair16", pair16_over_per_sm=0, pair16_per_sm=_MOST),
        _folded("fine", p_terms=2),
    ),
    instances=(Instance(),),
    launches=launches,
    reject=reject,
    proven_on=(),
    made_for="one query a row",
)
