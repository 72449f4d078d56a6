"""sparse_attn_paged in float64, its inputs and its tolerance."""

from __future__ import annotations

from typing import Any

import torch

from sparsekit.model import Case
from sparsekit.ops import sampling
from sparsekit.ops.masked_softmax import attend, score_error_bound


def make_inputs(case: Case, probe: str) -> dict[str, Any]:
    """The case's arguments by name, on the CPU. Pool rows that no token lists hold NaN and inf."""
    b, m, h, d, topk = (case.dims[n] for n in ("b", "m", "h", "d", "topk"))
    n_window, rows = case.dims["n_window"], (case.dims["n_win"], case.dims["n_cmp"])
    options, seed = case.options, case.seed
    indices = _indices(str(options["indices"]), b * m, topk, n_window, rows, seed)
    counts = _counts(
        str(options["counts"]), b * m, topk - n_window, sampling.generator(seed, "counts")
    )
    make = sampling.signs if probe == "zero_q" else sampling.normal
    window = make((rows[0], d), sampling.generator(seed, "window", probe))
    compressed = make((rows[1], d), sampling.generator(seed, "cmp", probe))
    q = sampling.normal((b, m, h, d), sampling.generator(seed, "q", probe))
    live = _live_columns(indices.shape[1], n_window, counts)
    if options["alias_pools"]:
        compressed = window = make((max(rows), d), sampling.generator(seed, "both", probe))
    listed = [
        _listed(indices, live, part, n)
        for part, n in zip(_parts(topk, n_window), rows, strict=True)
    ]
    if not options["alias_pools"]:
        for pool, seen in ((window, listed[0]), (compressed, listed[1])):
            if options["values"] != "normal":
                sampling.spoil_rows(
                    pool, seen, float(options["values"]), sampling.generator(seed, "spoil")
                )
            sampling.poison_rows(pool, ~seen)
    return {
        "q": torch.zeros_like(q) if probe == "zero_q" else q,
        "window_pool": window,
        "cmp_pool": compressed,
        "attn_sink": sampling.sinks(str(options["sink"]), h, sampling.generator(seed, "sink")),
        "topk_idxs": indices.view(b, m, topk),
        "n_window": n_window,
        "softmax_scale": float(options["scale"]),
        "cmp_counts": None if counts is None else counts.view(b, m),
    }


def reference(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out [b, m, h, d] and lse [b, m, h] in float64 on the inputs' device, and what bounds need."""
    q, pools, n_window = (
        inputs["q"],
        (inputs["window_pool"], inputs["cmp_pool"]),
        inputs["n_window"],
    )
    b, m, h, d = q.shape
    topk = inputs["topk_idxs"].shape[-1]
    indices = inputs["topk_idxs"].reshape(b * m, topk).long()
    counts = inputs["cmp_counts"]
    valid = _live_columns(topk, n_window, None if counts is None else counts.reshape(-1), q.device)
    bound = torch.tensor([p.shape[0] for p in pools], device=q.device)
    in_window = torch.arange(topk, device=q.device) < n_window
    valid = valid & (indices >= 0) & (indices < torch.where(in_window, bound[0], bound[1]))

    def gather(tokens: slice) -> torch.Tensor:
        parts = [
            _rows(pool, indices[tokens, part], valid[tokens, part])
            for pool, part in zip(pools, _parts(topk, n_window), strict=True)
        ]
        return torch.cat(parts, dim=1)

    found = attend(
        q.reshape(b * m, h, d), gather, valid, inputs["softmax_scale"], inputs["attn_sink"], d
    )
    return {name: t.reshape(b, m, *t.shape[1:]) for name, t in found.items()}


def tolerance(inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The largest |difference| allowed of each output's elements."""
    q = inputs["q"]
    flat = {name: t.flatten(0, 1) for name, t in expected.items()}
    bounds = score_error_bound(q.flatten(0, 1), inputs["attn_sink"], inputs["softmax_scale"], flat)
    return {name: t.reshape(*q.shape[:2], *t.shape[1:]) for name, t in bounds.items()}


def _parts(topk: int, n_window: int) -> tuple[slice, slice]:
    return slice(0, n_window), slice(n_window, topk)


def _rows(pool: torch.Tensor, indices: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    if pool.shape[0] == 0:
        return pool.new_zeros((*indices.shape, pool.shape[1]), dtype=torch.float64)
    return torch.where(valid[..., None], pool[torch.where(valid, indices, 0)].double(), 0.0)


def _live_columns(
    topk: int, n_window: int, counts: torch.Tensor | None, device: torch.device | None = None
) -> torch.Tensor:
    """[tokens or 1, topk] bool: the columns inside the live width."""
    columns = torch.arange(topk, device=device)
    if counts is None:
        return torch.ones((1, topk), dtype=torch.bool, device=device)
    return columns < n_window + counts.clamp(0, topk - n_window).long()[:, None]


def _listed(indices: torch.Tensor, live: torch.Tensor, part: slice, rows: int) -> torch.Tensor:
    numbers = indices[:, part][live.expand(indices.shape)[:, part]]
    listed = torch.zeros(rows, dtype=torch.bool)
    listed[numbers[(numbers >= 0) & (numbers < rows)].long()] = True
    return listed


def _counts(kind: str, tokens: int, columns: int, random: torch.Generator) -> torch.Tensor | None:
    if kind == "none":
        return None
    if kind == "hostile":
        return sampling.hostile_counts(tokens, columns, random)
    return torch.full((tokens,), columns if kind == "full" else 0, dtype=torch.int32)


def _indices(
    layout: str, tokens: int, topk: int, n_window: int, rows: tuple[int, int], seed: int
) -> torch.Tensor:
    """[tokens, topk]: window numbers, then compressed ones, each part laid out by itself."""
    random = sampling.generator(seed, "indices")
    widths = (n_window, topk - n_window)
    parts = list(zip(_parts(topk, n_window), rows, strict=True))
    indices = torch.cat(
        [sampling.unique_rows(tokens, n, w, random) for n, w in zip(rows, widths, strict=True)],
        dim=1,
    )
    if layout != "random":
        for token in range(tokens):
            sampling.lay_out(indices[token], layout, token, parts, random)
    return indices
