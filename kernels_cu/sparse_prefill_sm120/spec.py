"""sparse_prefill where TMA gathers rows and a block has 99 KB: mma.sync and gather4."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Override, Variant

_HEADS_64 = {"HEADS_PER_BLOCK": 64, "BLOCK_K": 16, "STAGES": 3, "Q_REGISTER_STEPS": 14}
_HEADS_64_WHERE = (Override({"STAGES": 4}, instance={"d_qk": 512}),)
_HEADS_32 = {"HEADS_PER_BLOCK": 32, "BLOCK_K": 16, "STAGES": 4, "Q_REGISTER_STEPS": 14}

ENTRY = Entry(
    "sparse_prefill_sm120_fwd",
    (
        Arg("kv_map", "tensormap(2,0; 64,1; 128B)", "kv", divisible_by=16),
        Arg("q", "*bf16", divisible_by=16),
        Arg("indices", "*i32"),
        Arg("attn_sink", "*fp32"),
        Arg("topk_length", "*i32"),
        Arg("out", "*bf16", divisible_by=16),
        Arg("max_logits", "*fp32"),
        Arg("lse", "*fp32"),
        Arg("q_token_stride_elems", "i64", "q.stride(0)", divisible_by=8),
        Arg("q_head_stride_elems", "i64", "q.stride(1)", divisible_by=8),
        Arg("indices_row_stride_elems", "i64", "indices.stride(0)"),
        Arg("h_q", "i32"),
        Arg("s_kv", "i32"),
        Arg("topk", "i32"),
        Arg("sm_scale", "fp32"),
    ),
)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """One block per token and group of heads; the groups of a token adjoin, for the L2 cache."""
    heads = variant.constant("HEADS_PER_BLOCK")
    blocks = call.dims["s_q"] * -(-call.dims["h_q"] // heads)
    return (Launch(ENTRY.name, (blocks, 1, 1)),)


def reject(variant: Variant, call: Call) -> str | None:
    """Few heads run in narrower blocks: a 64-head block would compute heads that do not exist."""
    heads = variant.constant("HEADS_PER_BLOCK")
    if heads < 64 and call.dims["h_q"] > heads:
        return f"it is for calls of at most {heads} heads, found {call.dims['h_q']}"
    return None


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=("sm_120", "sm_121"),
    variants=(
        Variant("skip_heads32", {"SKIP": 1, **_HEADS_32}, same_bits_as="noskip"),
        Variant("skip", {"SKIP": 1, **_HEADS_64}, same_bits_as="noskip", overrides=_HEADS_64_WHERE),
        Variant("noskip", {"SKIP": 0, **_HEADS_64}, overrides=_HEADS_64_WHERE),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    reject=reject,
    proven_on=(),
)
