"""sparse_prefill on Blackwell: tcgen05, tensor memory and TMA gather4, by one block or a pair."""

from sparsekit.model import Arg, Call, Entry, Instance, Kernel, Launch, Override, Variant

HEADS_PER_BLOCK = 64
_DEFAULT_BLOCKS = 148  # where no device is known

_ONE = {"CTAS": 1, "STAGES": 3}
_PAIR = {"CTAS": 2, "STAGES": 5}
_PAIR_WHERE = (Override({"STAGES": 6}, instance={"d_qk": 512}),)

ENTRY = Entry(
    "sparse_prefill_sm100_fwd",
    (
        Arg("q_map", "tensormap(2,1,0; 64,16,1; 128B)", "q", divisible_by=16),
        Arg("q_rope_map", "tensormap(2,1,0; 32,16,1; 64B)", "q", divisible_by=16),
        Arg("kv_map", "tensormap(2,0; 64,1; 128B)", "kv", divisible_by=16),
        Arg("kv_rope_map", "tensormap(2,0; 32,1; 64B)", "kv", divisible_by=16),
        Arg("indices", "*i32"),
        Arg("attn_sink", "*fp32"),
        Arg("topk_length", "*i32"),
        Arg("out", "*bf16", divisible_by=16),
        Arg("max_logits", "*fp32"),
        Arg("lse", "*fp32"),
        Arg("indices_row_stride_elems", "i64", "indices.stride(0)"),
        Arg("s_q", "i32"),
        Arg("h_q", "i32"),
        Arg("s_kv", "i32"),
        Arg("topk", "i32"),
        Arg("sm_scale", "fp32"),
    ),
)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """As many blocks as SMs walk the items: a token and 64 heads for each block of an item."""
    ctas = variant.constant("CTAS")
    items = call.dims["s_q"] * -(-call.dims["h_q"] // (HEADS_PER_BLOCK * ctas))
    blocks = call.device.sm_count if call.device else _DEFAULT_BLOCKS
    return (Launch(ENTRY.name, (ctas * min(items, max(blocks // ctas, 1)), 1, 1)),)


def reject(variant: Variant, call: Call) -> str | None:
    """The second block of a pair would compute heads that do not exist."""
    if variant.constant("CTAS") == 2 and call.dims["h_q"] <= HEADS_PER_BLOCK:
        return f"it is for calls of more than {HEADS_PER_BLOCK} heads, found {call.dims['h_q']}"
    return None


KERNEL = Kernel(
    lang="cuda",
    op="sparse_prefill",
    source="kernel.cu",
    entries=(ENTRY,),
    targets=("sm_100a", "sm_100f", "sm_103a"),
    variants=(
        Variant(
            "skip_pair", {"SKIP": 1, **_PAIR}, same_bits_as="noskip_pair", overrides=_PAIR_WHERE
        ),
        Variant("skip", {"SKIP": 1, **_ONE}, same_bits_as="noskip"),
        Variant("noskip_pair", {"SKIP": 0, **_PAIR}, overrides=_PAIR_WHERE),
        Variant("noskip", {"SKIP": 0, **_ONE}),
    ),
    instances=(Instance(constants={"d_qk": 576}), Instance(constants={"d_qk": 512})),
    launches=launches,
    reject=reject,
    proven_on=(),
)
