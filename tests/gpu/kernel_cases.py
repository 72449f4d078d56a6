"""Which calls of the shipped kernels are compared: the ops' own cases, as small as emulation needs
them, and one for each instance that those leave out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from sparsekit.model.op import Case, Op

TAGS = ("smoke", "corner")
INTEGRAL, RANDOM = "integers", "random"
_MOST_FLOP = 150_000_000  # about two seconds of emulation
_MOST_ROWS = 200  # along an op's batch
_MOST_BYTES = 1 << 31  # of a call's tensors, as the emulator has it
_FLOAT_BYTES = 4
LN2 = 0.693147182464599609375  # as a float: times a float's log2(e) it is 1
_FLOATS = ("fp32", "bf16", "fp16")


def cases_of(op: Op) -> list[Case]:
    """The op's smoke and corner cases in the sizes that are compared, and those of instances."""
    found = [_shrunk(op, c.for_emulator()) for c in op.cases if set(c.tags) & set(TAGS)]
    every = [*found, *_INSTANCES.get(op.name, lambda op: ())(op)]
    return [c for c in {c.name: c for c in every}.values() if _span_bytes(c) < _MOST_BYTES]


def left_out(op: Op) -> list[str]:
    """The names of cases that are too large for the emulator in any number of rows."""
    return [c.name for c in op.cases if set(c.tags) & set(TAGS) and _span_bytes(c) >= _MOST_BYTES]


def _shrunk(op: Op, case: Case) -> Case:
    """The case with fewer rows, tokens and columns, until it is small."""
    changed: dict[str, int] = {}
    if op.batch and case.dims[op.batch] > _MOST_ROWS:
        changed[op.batch] = _MOST_ROWS
    for name, least in ((op.batch, 1), ("m", 2), ("topk", 128)):
        while name in case.dims and _flop(op, case, changed) > _MOST_FLOP:
            size = changed.get(name, case.dims[name])
            if size <= least:
                break
            changed[name] = max(least, size // 2)
    if "n_window" in case.dims and case.dims["n_window"] > changed.get("topk", 1 << 31):
        changed["n_window"] = changed["topk"]
    return case.with_emulated(**changed).for_emulator() if changed else case


def cost_flop(op: Op, case: Case) -> int:
    """What a kernel computes that skips no columns, as some do: that is what emulation costs."""
    return op.work(replace(case, options={**case.options, "indices": "random"})).flop


def _flop(op: Op, case: Case, changed: Mapping[str, int]) -> int:
    return cost_flop(op, replace(case, dims={**case.dims, **changed}))


def _span_bytes(case: Case) -> int:
    """Of pools whose rows are far apart; other tensors are small."""
    return sum(
        _FLOAT_BYTES // 2 * case.dims.get(rows, 0) * int(case.options.get(f"{pool}_pad", 0))
        for pool, rows in (("window_pool", "n_win"), ("cmp_pool", "n_cmp"), ("kv", "s_kv"))
    )


def _paged_instances(op: Op) -> Iterator[Case]:
    for base_name in ("prefill_16", "decode_16"):
        base = op.case(base_name)
        assert base is not None
        ways = product((64, 128, 256, 512), ("none", "hostile"), (False, True), (512, 500))
        for d, counts, lse, n_cmp in ways:
            name = f"{base_name}_d{d}_{counts}{'_lse' * lse}{'' if n_cmp == 512 else '_odd'}"
            sizes = {"d": d, "n_cmp": n_cmp, "topk": 160, "n_window": 64, "b": 2}
            dims = {**base.dims, **sizes, "m": min(base.dims["m"], 2)}
            options = {**base.options, "counts": counts, "return_lse": lse, "scale": d**-0.5}
            yield replace(base, name=name, dims=dims, options=options)


def _pool_instances(op: Op) -> Iterator[Case]:
    base = op.case("r8_d128")
    assert base is not None
    for kv, score, out in product(_FLOATS, repeat=3):
        for columns in (128, 100):  # a multiple of 16, and none
            options = {**base.options, "kv_dtype": kv, "score_dtype": score, "out_dtype": out}
            dims = {"B": 2, "R": 9, "D": columns}
            name = f"{kv}_{score}_{out}_d{columns}"
            yield replace(base, name=name, dims=dims, options=options)


_INSTANCES = {"sparse_attn_paged": _paged_instances, "gated_pool": _pool_instances}


# ---- data that leaves nothing to round


def make_integral(inputs: dict[str, Any], seed: int) -> dict[str, Any]:
    """The inputs with integers for finite values, in place, and a scale that makes scores steps of
    ln 2: weights are powers of two then, and every product and sum is exact in single precision.

    NaN, inf and index lists stay as they are.
    """
    random = torch.Generator().manual_seed(seed)
    seen: dict[int, torch.Tensor] = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and id(value) not in seen:
            seen[id(value)] = value
            value.copy_(torch.where(value.isfinite(), _integers(name, value, random), value))
    scales = [s for s in inputs if s.endswith("_scale")]
    return {**inputs, **dict.fromkeys(scales, LN2)}


def _integers(name: str, like: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    def drawn(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, like.shape, generator=random).to(like.dtype)

    if name == "q":  # one column of each row, so that scores are few and small
        found = torch.zeros_like(like)
        column = torch.randint(0, like.shape[-1], (*like.shape[:-1], 1), generator=random)
        sign = torch.randint(0, 2, column.shape, generator=random) * 2 - 1
        return found.scatter_(-1, column, sign.to(like.dtype))
    if name == "attn_sink":
        return torch.zeros_like(like)
    if name == "score":  # weights 1 and 0; in fp32 also powers of two
        steps = torch.tensor([0.0, -1.0, -2.0, -4.0] if like.dtype == torch.float32 else [0.0, 0.0])
        chosen = torch.randint(0, len(steps), like.shape, generator=random)
        return (steps[chosen] * LN2).to(like.dtype)
    return drawn(-1, 2)


def must_be_equal(op: Op, case: Case, output: str) -> bool:
    """Whether integral inputs leave an output no rounding that a GPU does in a way of its own.

    A logarithm does; the merge of decode goes by one. An fp32 quotient of gated_pool may be off by
    what div.full may.
    """
    if output == "lse":
        return False
    if op.name.startswith("sparse_attn_paged"):  # rows of bytes stay as they are; none has m != 1
        return case.dims["m"] != 1
    return case.options.get("out_dtype") != "fp32"
