"""gated_pool: `plain` walks the rows one by one, `unroll2` two at a time; the same bits."""

from itertools import product

from sparsekit.model import (
    TRITON_TARGETS,
    Arg,
    Call,
    Entry,
    Instance,
    Kernel,
    Launch,
    Promise,
    Variant,
)

_FLOATS = ("fp32", "bf16", "fp16")
_IN_MODELS = ("fp32", "fp32", "bf16")  # the compressor's state is fp32, what it emits is bf16
_BLOCK_D = 256

ENTRY = Entry(
    "gated_pool_fwd",
    (
        Arg("kv_ptr", "*{kv}", "kv"),
        Arg("score_ptr", "*{score}", "score"),
        Arg("out_ptr", "*{out}", "out"),
        Arg("R", "i32"),
        Arg("D", "i32"),
        Arg("kv_b_stride", "i64", "kv.stride(0)"),
        Arg("kv_r_stride", "i64", "kv.stride(1)"),
        Arg("score_b_stride", "i64", "score.stride(0)"),
        Arg("score_r_stride", "i64", "score.stride(1)"),
        Arg("out_b_stride", "i64", "out.stride(0)"),
    ),
)
_ALIGNED = tuple(Promise(arg.name, 16) for arg in ENTRY.args if arg.name != "R")


def instances() -> tuple[Instance, ...]:
    """For all element types: one that promises multiples of 16, and one that promises nothing."""
    found = []
    for types in product(_FLOATS, repeat=3):
        dtypes = dict(zip(("kv", "score", "out"), types, strict=True))
        found.append(Instance(dtypes, assume=_ALIGNED, default=types == _IN_MODELS))
        found.append(Instance(dtypes, default=False))
    return tuple(found)


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """One program per group and block of columns; the blocks of a group adjoin."""
    column_blocks = -(-call.dims["D"] // variant.constant("BLOCK_D"))
    return (Launch(ENTRY.name, (call.dims["B"] * column_blocks, 1, 1)),)


KERNEL = Kernel(
    lang="triton",
    op="gated_pool",
    source="kernel.py",
    entries=(ENTRY,),
    targets=TRITON_TARGETS,
    variants=(
        Variant("unroll2", {"BLOCK_D": _BLOCK_D, "UNROLL": 2}, same_bits_as="plain"),
        Variant("plain", {"BLOCK_D": _BLOCK_D, "UNROLL": 1}),
    ),
    instances=instances(),
    launches=launches,
    proven_on=("9.0",),
)
