"""sparse_prefill on Hopper: wgmma, three warpgroups, a ring of gathered tiles."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Override, Variant

HEADS_PER_BLOCK = 64
_DEFAULT_BLOCKS = 132  # where no device is known
_MOST_POOL_BYTES = 16 * (2**32 - 1)

_BASE = {
    "Q_REGISTER_CHUNKS": 7,
    "P_BUFFERS": 1,
    "STORE_CHUNK": 6,
    "ANNOUNCE_CHUNK": 9,
    "ARRIVING_LANES": 1,
    "PART_COLUMNS": 0,
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

ENTRY = Entry(
    "sparse_prefill_sm90_fwd",
    (
        Arg("q", "*bf16", divisible_by=16),
        Arg("kv", "*bf16", divisible_by=16),
        Arg("indices", "*i32"),
        Arg("attn_sink", "*fp32"),
        Arg("topk_length", "*i32"),
        Arg("out", "*bf16", divisible_by=16),
        Arg("max_logits", "*fp32"),
        Arg("lse", "*fp32"),
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


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """A block per SM walks the pairs of a token and 64 heads; the pairs of a token adjoin."""
    items = call.dims["s_q"] * -(-call.dims["h_q"] // HEADS_PER_BLOCK)
    blocks = call.device.sm_count if call.device else _DEFAULT_BLOCKS
    return (Launch(ENTRY.name, (min(items, blocks), 1, 1)),)


def reject(variant: Variant, call: Call) -> str | None:
    """Where a row begins is counted in pieces of 16 bytes, in 32 bits."""
    if "kv" not in call.strides:
        return None
    bytes_to_end = 2 * call.dims["s_kv"] * call.strides["kv"][0]
    if bytes_to_end >= _MOST_POOL_BYTES:
        return f"it is for pools below {_MOST_POOL_BYTES} bytes, found {bytes_to_end}"
    return None


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=("sm_90a",),
    variants=(
        Variant("skip", {"SKIP": 1, **_BASE}, same_bits_as="noskip", overrides=_WHERE),
        Variant("noskip", {"SKIP": 0, **_BASE}, overrides=_WHERE),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    reject=reject,
    proven_on=(),
)
