"""sparse_prefill on Hopper for few heads: wgmma with the heads as N, a ring of gathered units."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Override, Variant

_DEFAULT_BLOCKS = 132  # where no device is known
_MOST_POOL_BYTES = 16 * (2**32 - 1)
_D_512 = {"d_qk": 512}

_BASE = {
    "UNIT_CHUNKS": 3,
    "P_BUFFERS": 2,
    "VALUE_GROUPS": 2,
    "SCORE_CHAINS": 1,
    "ARRIVING_LANES": 1,
    "L2_PREFETCH_BYTES": 256,
    "SCORE_REGISTERS": 104,
    "VALUE_REGISTERS": 96,
    "LOAD_REGISTERS": 72,
    "PROXY_FENCE": 1,
    "GATHER": 1,
    "MULTIPLY": 1,
}
# The ring has as many units as shared memory takes.
_HEADS = {
    8: ({"RING_UNITS": 8, "SCORE_CHAINS": 2}, {"RING_UNITS": 13}),
    16: ({"RING_UNITS": 8}, {"RING_UNITS": 12}),
    32: (
        {
            "RING_UNITS": 7,
            "SCORE_REGISTERS": 80,
            "VALUE_REGISTERS": 120,
        },
        {"RING_UNITS": 11},
    ),
}

ENTRY = Entry(
    "sparse_prefill_sm90_few_fwd",
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
    """A block per SM walks the tokens."""
    blocks = call.device.sm_count if call.device else _DEFAULT_BLOCKS
    return (Launch(ENTRY.name, (min(call.dims["s_q"], blocks), 1, 1)),)


def reject(variant: Variant, call: Call) -> str | None:
    """A block has all heads of a token; where a row begins is counted in 16 bytes, in 32 bits."""
    heads = variant.constant("HEADS")
    if call.dims["h_q"] > heads:
        return f"it is for calls of at most {heads} heads, found {call.dims['h_q']}"
    if "kv" not in call.strides:
        return None
    bytes_to_end = 2 * call.dims["s_kv"] * call.strides["kv"][0]
    if bytes_to_end >= _MOST_POOL_BYTES:
        return f"it is for pools below {_MOST_POOL_BYTES} bytes, found {bytes_to_end}"
    return None


def _variant(name: str, heads: int, skip: int, same_bits_as: str | None = None) -> Variant:
    constants, at_512 = _HEADS[heads]
    return Variant(
        name,
        {"SKIP": skip, "HEADS": heads, **_BASE, **constants},
        same_bits_as=same_bits_as,
        overrides=(Override({"UNIT_CHUNKS": 2, **at_512}, instance=_D_512),),
    )


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=("sm_90a",),
    variants=(
        *(_variant(f"skip_heads{n}", n, 1, f"noskip_heads{n}") for n in _HEADS),
        *(_variant(f"noskip_heads{n}", n, 0) for n in _HEADS),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    reject=reject,
    proven_on=(),
    made_for=f"at most {max(_HEADS)} heads",
)
