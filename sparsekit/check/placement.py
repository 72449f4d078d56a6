"""Hostile memory: inputs in padded, shifted views, outputs poisoned between sentinels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from sparsekit.model.op import Case

# On each side of an output: two rows of any op's, and a multiple of 256 bytes.
_GUARD_ELEMENTS = 2**17
_PAD = "pad"
_MIX, _WORD = 0x9E3779B97F4A7C15, 2**64  # an odd multiplier; what the words are counted in
_CHUNK = 2**23  # eight-byte words looked at together, 64 MiB
# NaN payloads that no arithmetic makes: an element nobody wrote is told from a computed NaN.
_POISON_BITS = {torch.bfloat16: 0x7FB5, torch.float16: 0x7D5A, torch.float32: 0x7FA5A5A5}
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def place_inputs(inputs: Mapping[str, Any], case: Case, device: torch.device) -> dict[str, Any]:
    """The inputs on the device, laid out as the case's options say.

    `NAME_pad`: elements between lines of the last dimension; `NAME_offset`: elements before the
    first; `NAME_row_offset`: whole lines before the first. What lies between is NaN, or -1; where
    the emulator leaves gaps out, they take no memory here either. An input that is another one's
    tensor stays so.
    """
    placed: dict[int, torch.Tensor] = {}
    result: dict[str, Any] = {}
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            result[name] = value
            continue
        if id(value) not in placed:
            pad, offset, rows = (
                int(case.options.get(f"{name}_{what}", 0))
                for what in (_PAD, "offset", "row_offset")
            )
            placed[id(value)] = _placed(value, pad, offset, rows, device)
        result[name] = placed[id(value)]
    return result


def span_elements(name: str, shape: tuple[int, ...], case: Case) -> int:
    """From the first element to the last of an input of that shape, laid out as the case says."""
    count = prod(shape)
    lines = count // max(shape[-1], 1) if shape else 1
    return count + max(lines - 1, 0) * int(case.options.get(f"{name}_{_PAD}", 0))


def _placed(
    value: torch.Tensor, pad: int, offset: int, rows: int, device: torch.device
) -> torch.Tensor:
    if not (pad or offset or rows):
        return value.to(device)
    width = value.shape[-1] + pad
    lines = value.numel() // max(value.shape[-1], 1)
    memory = _filled(offset + (rows + lines) * width, value, pad, device)
    strides = [width] * (value.dim() - 1) + [1]
    for i in range(value.dim() - 3, -1, -1):
        strides[i] = strides[i + 1] * value.shape[i + 1]
    view = memory.as_strided(value.shape, strides, offset + rows * width)
    view.copy_(value)
    return view


def _filled(count: int, like: torch.Tensor, pad: int, device: torch.device) -> torch.Tensor:
    """So many elements, for lines with a pad between them."""
    if device.type == "cpu":
        from sparsekit.emulator import is_wide, sparse_zeros  # not for those who have a GPU

        if is_wide(pad * like.element_size()):
            return torch.from_numpy(sparse_zeros(count * like.element_size())).view(like.dtype)
    filler = float("nan") if like.is_floating_point() else -1
    return torch.full((count,), filler, dtype=like.dtype, device=device)


@dataclass(frozen=True)
class Guarded:
    """An output between two guards, filled with poison throughout."""

    memory: torch.Tensor
    view: torch.Tensor

    def problem(self) -> str | None:
        """What is wrong with the memory after a run: a guard that changed, an unwritten element."""
        bits, poison = self.memory.view(_BITS[self.memory.dtype]), _POISON_BITS[self.memory.dtype]
        guard, end = bits.new_full((_GUARD_ELEMENTS,), poison), _GUARD_ELEMENTS + self.view.numel()
        if not (torch.equal(bits[:_GUARD_ELEMENTS], guard) and torch.equal(bits[end:], guard)):
            return "it was written outside its bounds"
        inside = bits[_GUARD_ELEMENTS:end] == poison
        if unwritten := int(inside.sum()):
            first = int(inside.nonzero()[0])
            index = torch.unravel_index(torch.tensor(first), self.view.shape)
            where = [int(i) for i in index]
            count = self.view.numel()
            return f"{unwritten} of {count} elements were not written, the first at {where}"
        return None


def guarded_output(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Guarded:
    count = 1
    for size in shape:
        count *= size
    memory = torch.empty(count + 2 * _GUARD_ELEMENTS, dtype=dtype, device=device)
    memory.view(_BITS[dtype]).fill_(_POISON_BITS[dtype])
    return Guarded(memory, memory[_GUARD_ELEMENTS : _GUARD_ELEMENTS + count].view(shape))


def fingerprint(tensor: torch.Tensor) -> int:
    """A number of all the bytes that the tensor's memory holds, those between its lines too.

    Any change of one word changes it; it is made in place, without a copy of the memory.
    """
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    memory.set_(tensor.untyped_storage())
    whole = memory.numel() // 8 * 8
    words = memory[:whole].view(torch.int64)
    weights = torch.arange(1, 2 * min(_CHUNK, words.numel()) + 1, 2, device=tensor.device)
    found = int.from_bytes(memory[whole:].cpu().numpy().tobytes(), "little")
    for chunk in words.split(_CHUNK):
        found = (found * _MIX + int((chunk * weights[: len(chunk)]).sum())) % _WORD
    return found
