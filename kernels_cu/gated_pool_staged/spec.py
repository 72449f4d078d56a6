"""gated_pool in CUDA: every row is on its way before the first is used; the bits of triton's."""

from itertools import product

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

_FLOATS = ("fp32", "bf16", "fp16")
_IN_MODELS = ("fp32", "fp32", "bf16")  # the compressor's state is fp32, what it emits is bf16
_MOST_COLUMNS = 65_535 * 16  # blocks on grid y, columns of the narrowest
_REFERENCE = "triton/gated_pool:plain"

_ARGS = (
    Arg("kv", "*{kv}"),
    Arg("score", "*{score}"),
    Arg("out", "*{out}"),
    Arg("R", "i32"),
    Arg("D", "i32"),
    Arg("kv_b_stride", "i64", "kv.stride(0)"),
    Arg("kv_r_stride", "i64", "kv.stride(1)"),
    Arg("score_b_stride", "i64", "score.stride(0)"),
    Arg("score_r_stride", "i64", "score.stride(1)"),
    Arg("out_b_stride", "i64", "out.stride(0)"),
)
FEW = Entry("gated_pool_few", _ARGS)
STAGED = Entry("gated_pool_staged", _ARGS)


def instances() -> tuple[Instance, ...]:
    """For all element types."""
    return tuple(
        Instance(dict(zip(("kv", "score", "out"), types, strict=True)), default=types == _IN_MODELS)
        for types in product(_FLOATS, repeat=3)
    )


def launches(variant: Variant, call: Call) -> tuple[Launch, ...]:
    """A thread per column where it can have all rows, else a block per few columns."""
    few = call.dims["R"] <= variant.constant("FEW_ROWS")
    columns = variant.constant("FEW_THREADS" if few else "COLUMNS")
    grid = (call.dims["B"], -(-call.dims["D"] // columns), 1)
    return (Launch((FEW if few else STAGED).name, grid),)


def reject(variant: Variant, call: Call) -> str | None:
    """The blocks of a group lie on grid y."""
    if call.dims["D"] > _MOST_COLUMNS:
        return f"it is for D of at most {_MOST_COLUMNS}, found {call.dims['D']}"
    return None


def _variant(name: str, columns: int, threads: int, depth: int, few_threads: int) -> Variant:
    constants = {
        "FEW_ROWS": 8,
        "FEW_THREADS": few_threads,
        "COLUMNS": columns,
        "THREADS": threads,
        "DEPTH": depth,
    }
    return Variant(name, constants, same_bits_as=_REFERENCE)


KERNEL = Kernel(
    lang="cuda",
    op="gated_pool",
    source="kernel.cu",
    entries=(FEW, STAGED),
    targets=PORTABLE_CUDA_TARGETS,
    variants=(
        _variant("columns32", 32, 512, 8, 128),
        _variant("columns16", 16, 256, 8, 32),
    ),
    instances=instances(),
    launches=launches,
    reject=reject,
    proven_on=("9.0",),
    made_for=f"D of at most {_MOST_COLUMNS}",
)
