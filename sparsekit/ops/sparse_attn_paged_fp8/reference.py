"""sparse_attn_paged_fp8 in float64, on the values that its bytes stand for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from sparsekit.model import Case
from sparsekit.ops import sampling
from sparsekit.ops.sparse_attn_paged import reference as paged
from sparsekit.ops.sparse_attn_paged_fp8.packing import (
    COLUMNS,
    SCALE_BYTES,
    VALUE_BYTES,
    pack,
    unpack,
)

_POOLS = ("window", "cmp")
_EVERY = 3  # of the scales, one in so many is what `scales` says
_SCALES = {"tiny": (0, 1), "nan": (255,)}


def make_inputs(case: Case, probe: str) -> dict[str, Any]:
    """The case's arguments by name, on the CPU. Rows that no token lists are NaN throughout."""
    rows = {
        n: case.dims[f"{p}_pages"] * case.dims[f"{p}_page_size"]
        for p, n in zip(_POOLS, ("n_win", "n_cmp"), strict=True)
    }
    inputs = paged.make_inputs(replace(case, dims={**case.dims, "d": COLUMNS, **rows}), probe)
    packed: dict[int, torch.Tensor] = {}  # a pool that is both stays one
    for pool in _POOLS:
        size, own = case.dims[f"{pool}_page_size"], inputs[f"{pool}_pool"]
        if id(own) not in packed:
            packed[id(own)] = pack(own, size)
            _change_scales(packed[id(own)], size, case, pool)
        inputs[f"{pool}_pool"] = packed[id(own)]
        inputs[f"{pool}_page_size"] = size
    return inputs


def reference(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out [b, m, h, d] and lse [b, m, h] in float64 on the inputs' device, and what bounds need."""
    return paged.reference(_unpacked(inputs))


def tolerance(inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The largest |difference| allowed of each output's elements."""
    return paged.tolerance(_unpacked(inputs), expected)


def _unpacked(inputs: dict[str, Any]) -> dict[str, Any]:
    pools = {f"{p}_pool": unpack(inputs[f"{p}_pool"], inputs[f"{p}_page_size"]) for p in _POOLS}
    return {**inputs, **pools}


def _change_scales(pool: torch.Tensor, page_size: int, case: Case, name: str) -> None:
    if (kind := str(case.options["scales"])) == "own":
        return
    scales = pool[:, VALUE_BYTES * page_size :]
    random = sampling.generator(case.seed, "scales", name)
    chosen = torch.randint(_EVERY, scales.shape, generator=random) == 0
    values = torch.tensor(_SCALES[kind], dtype=torch.uint8)
    which = torch.randint(len(values), scales.shape, generator=random)
    scales.copy_(torch.where(chosen, values[which], scales))
    assert scales.shape[1] == SCALE_BYTES * page_size
