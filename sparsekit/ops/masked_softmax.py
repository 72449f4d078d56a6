"""Masked attention in float64, shared by the attention ops' references, and its error bounds."""

from __future__ import annotations

from collections.abc import Callable

import torch

_CHUNK_ELEMENTS = 2**24  # gathered float64 elements at a time, 128 MiB
_BF16_HALF_ULP = 2.0**-8  # one rounding to bf16, relative, with the margin of a tie
_FP32_SUM = 2.0**-16  # accumulating a score in fp32, relative to its absolute terms
_FP32_FLOOR = 2.0**-20


def attend(
    q: torch.Tensor,
    gather: Callable[[slice], torch.Tensor],
    valid: torch.Tensor,
    scale: float,
    sink: torch.Tensor | None,
    d_v: int,
) -> dict[str, torch.Tensor]:
    """Attention of every token over its own rows.

    q: [tokens, heads, d]. gather(tokens): [tokens, columns, d] float64 with zeros in invalid
    columns. valid: [tokens, columns]. sink: [heads] or None. Returns float64 `out` [tokens, heads,
    d_v], `max_logits` and `lse` [tokens, heads] (natural, without the sink), and what the error
    bounds need: `score_terms` (max of sum |q k| over valid columns whose score is finite), `spread`
    (sum of p |v|), `valid_count` [tokens].
    """
    tokens, heads, dim = q.shape
    columns = valid.shape[1]
    step = max(1, _CHUNK_ELEMENTS // max(1, columns * max(dim, heads)))
    parts = [
        _attend_chunk(q[s].double(), gather(s), valid[s], scale, sink, d_v)
        for s in (slice(i, i + step) for i in range(0, tokens, step))
    ]
    if not parts:
        by_head, by_value = q.new_zeros((0, heads)).double(), q.new_zeros((0, heads, d_v)).double()
        names = {"max_logits": by_head, "lse": by_head, "score_terms": by_head}
        return {**names, "out": by_value, "spread": by_value, "valid_count": by_head[:, 0]}
    return {name: torch.cat([p[name] for p in parts]) for name in parts[0]}


def _attend_chunk(
    q: torch.Tensor, rows: torch.Tensor, valid: torch.Tensor, scale: float,
    sink: torch.Tensor | None, d_v: int,
) -> dict[str, torch.Tensor]:  # fmt: skip
    if valid.shape[1] == 0:  # one column that is not valid says the same, and reduces
        rows, valid = rows.new_zeros((len(q), 1, rows.shape[2])), valid.new_zeros((len(q), 1))
    mask = valid[:, None, :]
    count = valid.sum(1)
    some = (count > 0)[:, None]
    scores = torch.einsum("thd,tkd->thk", q, rows) * scale
    live = torch.where(mask, scores, -torch.inf)
    terms = torch.einsum("thd,tkd->thk", q.abs(), rows.abs())
    largest = live.amax(-1)  # propagates NaN
    shift = torch.where(torch.isfinite(largest), largest, 0.0)
    weights = torch.where(mask, torch.exp(live - shift[..., None]), 0.0)
    total = weights.sum(-1)
    lse = torch.where(some, torch.log(total) + shift, torch.inf)
    values = rows[..., :d_v]
    out = torch.einsum("thk,tkv->thv", weights, values) / total[..., None]
    spread = torch.einsum("thk,tkv->thv", weights, values.abs()) / total[..., None]
    if sink is not None:
        kept = 1.0 / (1.0 + torch.exp(sink.double() - lse))[..., None]
        out, spread = out * kept, spread * kept
    finite = mask & torch.isfinite(live)
    out = torch.where((finite == mask).all(-1)[..., None], out, torch.nan)
    return {
        "out": torch.where(some[..., None], out, 0.0),
        "max_logits": largest,
        "lse": lse,
        "score_terms": torch.where(finite, terms, 0.0).amax(-1),
        "spread": torch.where(some[..., None], spread, 0.0),
        "valid_count": count.double(),
    }


def score_error_bound(
    q: torch.Tensor, sink: torch.Tensor | None, scale: float, expected: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The largest |difference| allowed by element: `out`, `max_logits`, `lse`.

    delta = 2^-16 |scale| max_k sum_d |q_d k_d| + 2^-20 bounds lse and max_logits; out may differ by
    (2^-8 + 2 delta) sum_k p_k |v_k| + 2^-8 |out|. Where every score is 0 the weights are all 1 in
    any format, and the first 2^-8, their rounding, falls away: one wrong column in thousands shows.
    A row with one valid column and no sink is that row of V, exactly.
    """
    delta = _FP32_SUM * abs(scale) * expected["score_terms"] + _FP32_FLOOR
    weights = torch.where(expected["score_terms"] == 0, 0.0, _BF16_HALF_ULP) + 2 * delta
    out = expected["out"]
    bound = weights[..., None] * expected["spread"] + _BF16_HALF_ULP * out.abs()
    if sink is None or bool((sink == -torch.inf).all()):
        single = (expected["valid_count"] == 1)[:, None, None]
        bound = torch.where(single, 0.0, bound)
    return {"out": bound, "max_logits": delta, "lse": delta}
