"""sparse_prefill on Hopper for few tokens: rows cut at fixed columns, merged by a second entry."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Override, Scratch, Variant

HEADS_PER_BLOCK = 64
_PART_COLUMNS = 256  # of `split`
_DEFAULT_BLOCKS = 132  # where no device is known
_MOST_POOL_BYTES = 16 * (2**32 - 1)

# Faster than whole rows where all parts are one wave of blocks: 19 and 24 us against 55 for 1 and 8
# tokens of 128 heads, 16 and 128 parts, d_qk 576, topk 2048, on an H200; 64 tokens, 1024 parts, are
# slower, 158 against 68 (docs/results/sparse_prefill_sm90_split-h200.json). What lies between is
# left to whole rows. d_qk 512 is assumed to be alike. Of topk those stand with 2048 that are cut
# into as many parts; at most 32 heads are for another kernel, beside which nothing was measured.
_MOST_ITEMS = 128
_MEASURED_PARTS = 8
_FEW_HEADS = 32

_BASE = {
    "SKIP": 1,
    "Q_REGISTER_CHUNKS": 7,
    "P_BUFFERS": 1,
    "STORE_CHUNK": 6,
    "ANNOUNCE_CHUNK": 9,
    "ARRIVING_LANES": 1,
    "SWAP_SLOTS": 0,
    "PREFETCH_Q": 0,
    "L2_PREFETCH_BYTES": 256,
    "SCORE_REGISTERS": 184,
    "VALUE_REGISTERS": 160,
    "PROXY_FENCE": 1,
    "SOFTMAX": 1,
    "EARLY_WEIGHTS": 8,
}
_WHERE = (
    Override(
        {"Q_REGISTER_CHUNKS": 6, "P_BUFFERS": 2, "ANNOUNCE_CHUNK": 7, "PREFETCH_Q": 1},
        instance={"d_qk": 512},
    ),
)

SPLIT = Entry(
    "sparse_prefill_sm90_split",
    (
        Arg("q", "*bf16", divisible_by=16),
        Arg("kv", "*bf16", divisible_by=16),
        Arg("indices", "*i32"),
        Arg("topk_length", "*i32"),
        Arg("part_out", "*fp32", divisible_by=16),
        Arg("part_end", "*fp32", divisible_by=16),
        Arg("q_token_stride_elems", "i64", "q.stride(0)", divisible_by=8),
        Arg("q_head_stride_elems", "i64", "q.stride(1)", divisible_by=8),
        Arg("kv_row_stride_elems", "i64", "kv.stride(0)", divisible_by=8),
        Arg("indices_row_stride_elems", "i64", "indices.stride(0)"),
        Arg("s_q", "i32"),
        Arg("h_q", "i32"),
        Arg("s_kv", "i32"),
        Arg("topk", "i32"),
        Arg("sm_scale", "fp32"),
    ),
)
MERGE = Entry(
    "sparse_prefill_sm90_merge",
    (
        Arg("part_out", "*fp32", divisible_by=16),
        Arg("part_end", "*fp32", divisible_by=16),
        Arg("attn_sink", "*fp32"),
        Arg("out", "*bf16", divisible_by=16),
        Arg("max_logits", "*fp32"),
        Arg("lse", "*fp32"),
        Arg("h_q", "i32"),
        Arg("parts", "i32"),
    ),
)


def _parts_and_items(call: Call, part_columns: int) -> tuple[int, int]:
    """The parts of a row, and those of all pairs of a token and 64 heads."""
    s_q, h_q, topk = (call.dims[n] for n in ("s_q", "h_q", "topk"))
    parts = max(1, -(-topk // part_columns))
    return parts, s_q * -(-h_q // HEADS_PER_BLOCK) * parts


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """Parts of the pairs of a token and 64 heads, walked by a block per SM; then a row a block."""
    s_q, h_q = call.dims["s_q"], call.dims["h_q"]
    parts, items = _parts_and_items(call, variant.constant("PART_COLUMNS"))
    blocks = call.device.sm_count if call.device else _DEFAULT_BLOCKS
    scratch = (
        Scratch("part_out", "fp32", (s_q, h_q, parts, 512)),
        Scratch("part_end", "fp32", (s_q, h_q, parts, 4)),
    )
    return (
        Launch(SPLIT.name, (min(items, blocks), 1, 1), {}, scratch),
        Launch(MERGE.name, (s_q * h_q, 1, 1), {"parts": parts}, scratch),
    )


def reject(variant: Variant, call: Call) -> str | None:
    """Where a row begins is counted in pieces of 16 bytes, in 32 bits."""
    if "kv" not in call.strides:
        return None
    bytes_to_end = 2 * call.dims["s_kv"] * call.strides["kv"][0]
    if bytes_to_end >= _MOST_POOL_BYTES:
        return f"it is for pools below {_MOST_POOL_BYTES} bytes, found {bytes_to_end}"
    return None


def prefer(call: Call) -> str | None:
    """Why a call goes to `split` before whole rows: its tokens are few."""
    parts, items = _parts_and_items(call, _PART_COLUMNS)
    if call.dims["h_q"] <= _FEW_HEADS or parts != _MEASURED_PARTS or items > _MOST_ITEMS:
        return None
    return f"faster than whole rows for at most {_MOST_ITEMS} parts of them, found {items}"


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(SPLIT, MERGE),
    targets=("sm_90a",),
    variants=(
        Variant("split", {"PART_COLUMNS": _PART_COLUMNS, **_BASE}, overrides=_WHERE),
        Variant("split128", {"PART_COLUMNS": 128, **_BASE}, overrides=_WHERE),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    reject=reject,
    prefer=prefer,
    proven_on=(),
)
