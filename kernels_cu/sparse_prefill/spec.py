"""The portable sparse_prefill kernel: mma.sync and cp.async, for every arch."""

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

_LARGE_SHARED = {
    "HEADS_PER_BLOCK": 64, "BLOCK_K": 32, "STAGES": 4, "Q_REGISTER_STEPS": 8, "AHEAD": 1,
}  # fmt: skip
_SMALL_SHARED = {
    "HEADS_PER_BLOCK": 32, "BLOCK_K": 16, "STAGES": 3, "Q_REGISTER_STEPS": 0, "AHEAD": 1,
}  # fmt: skip
_BY_CAPABILITY = dict.fromkeys(((8, 6), (8, 9), (12, 0), (12, 1)), _SMALL_SHARED)

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


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=PORTABLE_CUDA_TARGETS,
    variants=(
        Variant(
            "skip",
            {"SKIP": 1, **_LARGE_SHARED},
            same_bits_as="noskip",
            by_capability=_BY_CAPABILITY,
        ),
        Variant("noskip", {"SKIP": 0, **_LARGE_SHARED}, by_capability=_BY_CAPABILITY),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
)
