"""Copies of a workload's inputs that a kernel cannot tell from the first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sparsekit.runtime.tensors import ALLOCATION_ALIGN_BYTES


def copy_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs in memory of their own: the same strides, and addresses alike up to 256 bytes.

    Inputs that are one tensor stay one.
    """
    made: dict[int, torch.Tensor] = {}
    copied: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            made.setdefault(id(value), _copy(value))
            copied[name] = made[id(value)]
        else:
            copied[name] = value
    return copied


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() == 0 or 0 in tensor.stride():
        return tensor.clone()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    offset = tensor.data_ptr() % ALLOCATION_ALIGN_BYTES // tensor.element_size()
    memory = torch.empty(offset + span, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)


def bytes_of(inputs: Mapping[str, Any]) -> int:
    """What a copy takes, in bytes; a tensor that is given twice counts once."""
    tensors = {id(v): v for v in inputs.values() if isinstance(v, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in tensors.values())
