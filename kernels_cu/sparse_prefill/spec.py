"""The portable sparse_prefill kernel: mma.sync and cp.async, for every arch."""

from sparsekit.model import (
    PORTABLE_CUDA_TARGETS,
    Arg,
    Call,
    Entry,
    Instance,
    Kernel,
    Launch,
    Override,
    Variant,
)

_SM80 = ((8, 0),)  # 163 KB of shared memory for a block
_99_KB = ((8, 6), (8, 9), (12, 0), (12, 1))
_SM100 = ((10, 0), (10, 3), (11, 0))

# Without local memory, each; the rows of a tile agree, so that both widths give the same bits.
_HEADS_64 = {"HEADS_PER_BLOCK": 64, "BLOCK_K": 32, "STAGES": 4, "Q_REGISTER_STEPS": 14}
_HEADS_64_WHERE = (
    Override({"Q_REGISTER_STEPS": 12}, instance={"d_qk": 512}),
    Override({"BLOCK_K": 16, "STAGES": 6, "Q_REGISTER_STEPS": 12}, _SM80, {"d_qk": 576}),
    Override({"STAGES": 3}, _SM80, {"d_qk": 512}),
    Override({"BLOCK_K": 16, "STAGES": 3, "Q_REGISTER_STEPS": 14}, _99_KB, {"d_qk": 576}),
    Override({"BLOCK_K": 16, "Q_REGISTER_STEPS": 14}, _99_KB, {"d_qk": 512}),
    Override({"Q_REGISTER_STEPS": 8}, _SM100, {"d_qk": 576}),
    Override({"Q_REGISTER_STEPS": 10}, _SM100, {"d_qk": 512}),
)
_HEADS_32 = {"HEADS_PER_BLOCK": 32, "BLOCK_K": 32, "STAGES": 4, "Q_REGISTER_STEPS": 14}
_HEADS_32_WHERE = (
    Override({"BLOCK_K": 16, "STAGES": 6}, _SM80, {"d_qk": 576}),
    Override({"STAGES": 3}, _SM80, {"d_qk": 512}),
    Override({"BLOCK_K": 16}, _99_KB),
)

ENTRY = Entry(
    "sparse_prefill_fwd",
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
    targets=PORTABLE_CUDA_TARGETS,
    variants=(
        Variant(
            "skip_heads32",
            {"SKIP": 1, **_HEADS_32},
            same_bits_as="noskip",
            overrides=_HEADS_32_WHERE,
        ),
        Variant("skip", {"SKIP": 1, **_HEADS_64}, same_bits_as="noskip", overrides=_HEADS_64_WHERE),
        Variant("noskip", {"SKIP": 0, **_HEADS_64}, overrides=_HEADS_64_WHERE),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    proven_on=("9.0",),
    reject=reject,
)
