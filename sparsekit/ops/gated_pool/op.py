"""gated_pool: rows of a group pooled by the softmax of their scores, column by column.

The arithmetic is fixed, so that every variant gives the same bits: m = max_r s; w = ex2.approx((s -
m) log2 e); den += w and num = fma(w, kv, num) with r ascending; out = div.full(num, den), rounded
once.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsekit.model import Call, Case, Op, Scalar, Tensor, Work

FLOATS = ("fp32", "bf16", "fp16")
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_FLOP_PER_ELEMENT = 5  # maximum, difference, exponential, sum, fused multiply-add


def check(call: Call) -> str | None:
    """What is wrong with a call whose tensors fit one another."""
    if call.scalars["out_dtype"] not in FLOATS:
        return f"out_dtype must be one of {FLOATS}, found {call.scalars['out_dtype']}"
    return _wrong_size(call.dims)


def check_case(case: Case) -> str | None:
    """What is wrong with sizes that a user changed."""
    return _wrong_size(case.dims)


def _wrong_size(dims: Mapping[str, int]) -> str | None:
    if dims["R"] == 0 and dims["B"] and dims["D"]:
        return "R must be at least 1: the mean over no rows is undefined"
    return None


def work(case: Case) -> Work:
    """Inputs read once and the output written once."""
    groups, rows, columns = (case.dims[n] for n in ("B", "R", "D"))
    per_row = _BYTES[case.options["kv_dtype"]] + _BYTES[case.options["score_dtype"]]
    moved = groups * rows * columns * per_row + groups * columns * _BYTES[case.options["out_dtype"]]
    return Work(_FLOP_PER_ELEMENT * groups * rows * columns, moved)


def _case(name: str, tags: str, B: int, R: int, D: int, **options: object) -> Case:
    known: dict[str, object] = {
        "kv_dtype": "fp32", "score_dtype": "fp32", "out_dtype": "bf16", "values": "normal",
        "kv_pad": 0, "score_pad": 0, "kv_offset": 0, "score_offset": 0,
    }  # fmt: skip
    dims = {"B": B, "R": R, "D": D}
    return Case(name, dims, tuple(tags.split()), {**known, **options}, seed=sum(name.encode()))


_STRIDED = {"kv_pad": 5, "score_pad": 3, "kv_offset": 1, "score_offset": 3}

_TYPES = (
    ("fp32", "fp32", "fp32"), ("fp32", "fp32", "fp16"), ("bf16", "bf16", "bf16"),
    ("fp16", "fp16", "fp16"), ("bf16", "fp32", "bf16"), ("fp32", "bf16", "fp32"),
    ("fp16", "fp32", "bf16"), ("bf16", "fp16", "fp32"), ("fp32", "fp16", "bf16"),
)  # fmt: skip
_ODD_ROWS = (1, 9)  # what remains when rows go two at a time
_ROWS = (1, 2, 3, 5, 7, 9, 16, 17, 127, 129, 1000)
_COLUMNS = (1, 2, 31, 64, 100, 255, 257, 300, 1024)


# Seed 2's edge cases of this op: rows, columns, output types and strided views.
_SEED_ROWS = (1, 3, 5, 7, 9, 16, 127, 129)
_SEED_COLUMNS = (300, 100, 64)


def _corner(seed: bool) -> str:
    return "corner seed" if seed else "corner"


def _row_tags(rows: int) -> str:
    return _corner(rows in _SEED_ROWS) + (" smoke" if rows in _ODD_ROWS else "")


def _typed(kv: str, score: str, out: str, name: str = "", **options: object) -> Case:
    types = {"kv_dtype": kv, "score_dtype": score, "out_dtype": out}
    return _case(name or f"{kv}_{score}_{out}", "corner", 3, 9, 300, **types, **options)


CASES = (
    _case("r8_d128", "smoke sanitize", 3, 8, 128),
    _case("r8_d512", "smoke sanitize", 8, 8, 512),
    _case("r128_d512", "smoke sanitize", 2, 128, 512),
    _case("special", "smoke sanitize", 4, 9, 300, values="special", **_STRIDED),
    *(_case(f"rows_{r}", _row_tags(r), 3, r, 512) for r in _ROWS),
    *(_case(f"columns_{d}", _corner(d in _SEED_COLUMNS), 3, 8, d) for d in _COLUMNS),
    *(_case(f"out_{t}", "corner seed", 3, 8, 512, out_dtype=t) for t in ("bf16", "fp32")),
    *(_typed(*types, values="special") for types in _TYPES),
    _case("strided_fp32", "corner seed", 3, 9, 300, **_STRIDED),
    _typed("bf16", "bf16", "bf16", "strided_bf16", **_STRIDED),
    _case("special_r128", "corner", 4, 128, 512, values="special"),
    _case("equal_scores", "corner", 4, 8, 256, values="equal", out_dtype="fp32"),
    _case("one_large_score", "corner", 4, 8, 256, values="one_large"),
    _case("one_row_special", "corner", 4, 1, 256, values="special"),
    *(_case(f"groups_{b}", "corner", b, 2, 64) for b in (1, 65_535, 65_536, 70_000)),
    _case("no_groups", "corner", 0, 8, 128),
    _case("no_columns", "corner", 3, 8, 0),
    *(
        _case(f"b{b}_r{r}_d{d}", "perf seed", b, r, d)
        for b in (1, 8)
        for r in (8, 128)
        for d in (128, 512)
    ),
)

OP = Op(
    summary="Softmax-gated pooling over the rows of each group, [B, R, D] to [B, 1, D].",
    inputs=(
        Tensor("kv", ("B", "R", "D"), FLOATS),
        Tensor("score", ("B", "R", "D"), FLOATS),
        Scalar("out_dtype", "dtype", default="bf16"),
    ),
    outputs=(Tensor("out", ("B", 1, "D"), ("{out_dtype}",)),),
    check=check,
    check_case=check_case,
    known_values={
        "kv_dtype": FLOATS,
        "score_dtype": FLOATS,
        "out_dtype": FLOATS,
        "values": ("normal", "special", "equal", "one_large"),
    },
    cases=CASES,
    work=work,
    batch="B",
)
