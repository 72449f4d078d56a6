"""gated_pool in float64, its inputs and its tolerance."""

from __future__ import annotations

from typing import Any

import torch

from sparsekit.model import Case
from sparsekit.ops import sampling

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Half an ulp of the result, relative and at its least (subnormal numbers count in fp16, and may be
# flushed in fp32 and bf16). Then what fp32 sums and ex2.approx (2 ulp) may add per row.
_HALF_ULP = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
_LEAST = {"fp32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-25}
_FP32_PER_ROW, _FP32_FIXED = 2.0**-24, 2.0**-20
_LARGE_SCORE = 80.0


def make_inputs(case: Case, probe: str) -> dict[str, Any]:
    """The case's arguments by name, on the CPU."""
    shape = (case.dims["B"], case.dims["R"], case.dims["D"])
    options = case.options
    kv = torch.randn(shape, generator=sampling.generator(case.seed, "kv"))
    score = 3 * torch.randn(shape, generator=sampling.generator(case.seed, "score"))
    _set_values(str(options["values"]), kv, score)
    return {
        "kv": kv.to(_DTYPES[options["kv_dtype"]]),
        "score": score.to(_DTYPES[options["score_dtype"]]),
        "out_dtype": str(options["out_dtype"]),
    }


def reference(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out [B, 1, D] in float64 on the inputs' device, and `spread`, sum of w |kv|, for the bound.

    A score of -inf removes its element whatever kv holds; all of them: 0. A NaN or +inf score makes
    its column NaN.
    """
    kv, score = inputs["kv"].double(), inputs["score"].double()
    removed = score == -torch.inf
    largest = score.amax(1, keepdim=True)
    shift = torch.where(torch.isfinite(largest), largest, 0.0)
    weights = torch.where(removed, 0.0, torch.exp(score - shift))
    weights = torch.where(score == torch.inf, torch.nan, weights)
    total = weights.sum(1, keepdim=True)
    kept = torch.where(removed, 0.0, kv)
    empty = removed.all(1, keepdim=True)
    out = (weights * kept).sum(1, keepdim=True) / total
    spread = (weights * kept.abs()).sum(1, keepdim=True) / total
    return {"out": torch.where(empty, 0.0, out), "spread": torch.where(empty, 0.0, spread)}


def tolerance(inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The largest |difference| allowed of each element; one row must be that row, rounded once."""
    out, rows = expected["out"], inputs["kv"].shape[1]
    dtype = inputs["out_dtype"]
    rounding = _HALF_ULP[dtype] * out.abs() + _LEAST[dtype]
    if rows == 1:
        return {"out": rounding}
    sums = (_FP32_FIXED + rows * _FP32_PER_ROW) * expected["spread"]
    return {"out": rounding + sums}


def _set_values(kind: str, kv: torch.Tensor, score: torch.Tensor) -> None:
    """Special scores and values, in place, each in columns of their own."""
    if kind == "equal":
        score.fill_(0.5)
    elif kind == "one_large":
        score[:, 0] = _LARGE_SCORE
    elif kind == "special":
        inf, nan = float("inf"), float("nan")
        score[:, ::2, 1::13] = -inf  # removed, in every other row
        kv[:, ::2, 1::13] = nan  # and whatever stands there must not be seen
        score[:, :, 2::13] = -inf  # nothing left
        score[:, -1, 3::13] = nan
        score[:, 0, 4::13] = inf
        kv[:, 0, 5::13] = nan
        kv[:, -1, 6::13] = inf
        score[:, :, 7::13] *= 20  # weights that underflow
