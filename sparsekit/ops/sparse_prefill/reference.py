"""sparse_prefill in float64, its inputs and its tolerance.

Tolerance: bf16 rounding of P and of the result, and fp32 accumulation of the scores.
"""

from __future__ import annotations

from typing import Any

import torch

from sparsekit.model import Case
from sparsekit.ops import sampling
from sparsekit.ops.masked_softmax import attend, score_error_bound
from sparsekit.ops.sparse_prefill.op import D_V, RAMPS, ramp_columns


def make_inputs(case: Case, probe: str) -> dict[str, Any]:
    """The case's arguments by name, on the CPU. Rows of kv that no token lists hold NaN and inf."""
    s_q, s_kv, h_q, d_qk, topk = (case.dims[n] for n in ("s_q", "s_kv", "h_q", "d_qk", "topk"))
    options, seed = case.options, case.seed
    indices = _indices(
        str(options["indices"]), s_q, s_kv, topk, sampling.generator(seed, "indices")
    )
    length = _topk_length(
        str(options["topk_length"]), indices, s_kv, sampling.generator(seed, "length")
    )
    kv_random, q_random = (
        sampling.generator(seed, "kv", probe),
        sampling.generator(seed, "q", probe),
    )
    if probe == "zero_q":
        q = torch.zeros((s_q, h_q, d_qk), dtype=torch.bfloat16)
        kv = sampling.signs((s_kv, 1, d_qk), kv_random)
    else:
        q = sampling.normal((s_q, h_q, d_qk), q_random)
        kv = sampling.normal((s_kv, 1, d_qk), kv_random)
    listed = _listed(indices, length, s_kv)
    if options["values"] != "normal":
        sampling.spoil_rows(kv, listed, float(options["values"]), sampling.generator(seed, "spoil"))
    sampling.poison_rows(kv, ~listed)
    return {
        "q": q,
        "kv": kv,
        "indices": indices[:, None, :],
        "sm_scale": float(options["scale"]),
        "d_v": D_V,
        "attn_sink": sampling.sinks(str(options["sink"]), h_q, sampling.generator(seed, "sink")),
        "topk_length": length,
    }


def reference(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out [s_q, h_q, 512], max_logits and lse [s_q, h_q], all in float64 on the inputs' device."""
    q, kv, topk_length = inputs["q"], inputs["kv"], inputs["topk_length"]
    indices = inputs["indices"][:, 0].long()
    valid = (indices >= 0) & (indices < kv.shape[0])
    if topk_length is not None:
        columns = torch.arange(indices.shape[1], device=indices.device)
        valid &= columns < topk_length[:, None]
    return attend(
        q, lambda tokens: _gather(kv[:, 0], indices[tokens], valid[tokens]), valid,
        inputs["sm_scale"], inputs["attn_sink"], D_V,
    )  # fmt: skip


def tolerance(inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The largest |difference| allowed of each output's elements; 0 where it must be exact."""
    return score_error_bound(inputs["q"], inputs["attn_sink"], inputs["sm_scale"], expected)


def _gather(kv: torch.Tensor, indices: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """[tokens, columns, d_qk] float64: the listed rows, zeros where the column is not valid."""
    if kv.shape[0] == 0:
        return kv.new_zeros((*indices.shape, kv.shape[1]), dtype=torch.float64)
    rows = kv[torch.where(valid, indices, 0)].double()
    return torch.where(valid[..., None], rows, 0.0)


def _listed(indices: torch.Tensor, length: torch.Tensor | None, s_kv: int) -> torch.Tensor:
    """[s_kv] bool: the rows that some token validly lists."""
    live = (indices >= 0) & (indices < s_kv)
    if length is not None:
        live &= torch.arange(indices.shape[1]) < length[:, None]
    listed = torch.zeros(s_kv, dtype=torch.bool)
    listed[indices[live].long()] = True
    return listed


def _indices(layout: str, s_q: int, s_kv: int, topk: int, random: torch.Generator) -> torch.Tensor:
    indices = sampling.unique_rows(s_q, s_kv, topk, random)
    if layout in RAMPS:
        valid = torch.tensor([ramp_columns(layout, row, s_q) for row in range(s_q)])
        indices[torch.arange(topk) >= valid[:, None]] = -1
    elif layout != "random":
        for token in range(s_q):
            sampling.lay_out(indices[token], layout, token, [(slice(topk), s_kv)], random)
    return indices


def _topk_length(
    kind: str, indices: torch.Tensor, s_kv: int, random: torch.Generator
) -> torch.Tensor | None:
    s_q, topk = indices.shape
    if kind == "none":
        return None
    if kind == "valid":
        return ((indices >= 0) & (indices < s_kv)).sum(1).to(torch.int32)
    return sampling.hostile_counts(s_q, topk, random)
