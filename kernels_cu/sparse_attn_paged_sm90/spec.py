"""sparse_attn_paged on Hopper: the block of sparse_prefill_sm90 over two pools."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Variant

HEADS_PER_BLOCK = 64
_DEFAULT_BLOCKS = 132  # where no device is known
_MOST_ROW_STRIDE_ELEMS = (2**32 - 1) // 2

# With one query a row a block has a row and 64 heads, and one wave of them takes about as long
# however many they are: 20.4 us for 8 rows of 64 heads, 21.4 for 64, topk 640, on an H200
# (docs/results/paged_decode-by-prefill-h200.json). The decode kernel, whose blocks have 32 heads,
# takes 14.4 and 38.2. 64 pairs of a row and 32 heads, 32 rows of 64 heads, lie between the two and
# are interpolated: the decode kernel is its `serial` from 50 pairs on, which takes 36 us for 16.
# Of topk those stand with 640 that the decode kernel cuts into the same parts; of others nothing
# was measured, and they stay with it.
_DECODE_HEADS_PER_BLOCK = 32
_FEWEST_PAIRS = 64
_MEASURED_TOPK = range(513, 641)

_BASE = {
    "Q_REGISTER_CHUNKS": 7,
    "P_BUFFERS": 2,
    "STORE_CHUNK": 0,
    "ANNOUNCE_CHUNK": 7,
    "ARRIVING_LANES": 1,
    "PART_COLUMNS": 0,
    "SWAP_SLOTS": 1,
    "PREFETCH_Q": 1,
    "L2_PREFETCH_BYTES": 256,
    "SCORE_REGISTERS": 184,
    "VALUE_REGISTERS": 160,
    "PROXY_FENCE": 1,
    "SOFTMAX": 1,
    "EARLY_WEIGHTS": 8,
}

ENTRY = Entry(
    "sparse_attn_paged_sm90_prefill",
    (
        Arg("q", "*bf16", divisible_by=16),
        Arg("window_pool", "*bf16", divisible_by=16),
        Arg("cmp_pool", "*bf16", divisible_by=16),
        Arg("attn_sink", "*fp32"),
        Arg("topk_idxs", "*i32"),
        Arg("cmp_counts", "*i32"),
        Arg("out", "*bf16", divisible_by=16),
        Arg("lse", "*fp32"),
        Arg("q_b_stride_elems", "i64", "q.stride(0)", divisible_by=8),
        Arg("q_m_stride_elems", "i64", "q.stride(1)", divisible_by=8),
        Arg("q_h_stride_elems", "i64", "q.stride(2)", divisible_by=8),
        Arg("window_row_stride_elems", "i64", "window_pool.stride(0)", divisible_by=8),
        Arg("cmp_row_stride_elems", "i64", "cmp_pool.stride(0)", divisible_by=8),
        Arg("topk_idxs_b_stride_elems", "i64", "topk_idxs.stride(0)"),
        Arg("topk_idxs_m_stride_elems", "i64", "topk_idxs.stride(1)"),
        Arg("cmp_counts_b_stride_elems", "i64", "cmp_counts.stride(0)"),
        Arg("cmp_counts_m_stride_elems", "i64", "cmp_counts.stride(1)"),
        Arg("tokens", "i32"),
        Arg("m", "i32"),
        Arg("h", "i32"),
        Arg("topk", "i32"),
        Arg("n_window", "i32"),
        Arg("window_rows", "i32", "n_win"),
        Arg("cmp_rows", "i32", "n_cmp"),
        Arg("softmax_scale", "fp32"),
    ),
)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """A block per SM walks the pairs of a token and 64 heads; the pairs of a token adjoin."""
    tokens = call.dims["b"] * call.dims["m"]
    items = tokens * -(-call.dims["h"] // HEADS_PER_BLOCK)
    blocks = call.device.sm_count if call.device else _DEFAULT_BLOCKS
    return (Launch(ENTRY.name, (min(items, blocks), 1, 1), {"tokens": tokens}),)


def reject(variant: Variant, call: Call) -> str | None:
    """A row's stride is counted in bytes, in 32 bits."""
    for pool in ("window_pool", "cmp_pool"):
        stride = call.strides[pool][0] if pool in call.strides else 0
        if stride > _MOST_ROW_STRIDE_ELEMS:
            return f"it is for pools with rows less than 2^31 elements apart, found {stride}"
    return None


def prefer(call: Call) -> str | None:
    """Why one query a row goes to it before the decode kernel: there are enough of them."""
    b, m, h, topk = (call.dims[n] for n in ("b", "m", "h", "topk"))
    pairs = b * -(-h // _DECODE_HEADS_PER_BLOCK)
    if m != 1 or topk not in _MEASURED_TOPK or pairs < _FEWEST_PAIRS:
        return None
    return (
        f"faster than decode from {_FEWEST_PAIRS} pairs of a row and "
        f"{_DECODE_HEADS_PER_BLOCK} heads on, found {pairs}"
    )


KERNEL = Kernel(
    lang="cuda",
    op="sparse_attn_paged",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=("sm_90a",),
    variants=(
        Variant("skip", {"SKIP": 1, **_BASE}, same_bits_as="noskip"),
        Variant("noskip", {"SKIP": 0, **_BASE}),
    ),
    instances=(Instance(constants={"d": 512}),),
    launches=launches,
    reject=reject,
    proven_on=(),
    made_for="d = 512",  # the decode kernel, for as many targets, comes first by its name
    prefer=prefer,
)
