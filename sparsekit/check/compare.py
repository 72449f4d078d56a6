"""Comparing outputs: against float64 within bounds, or bit for bit.

Positions of NaN and inf are compared by themselves: they must be the same, whatever the bound says.
"""

from __future__ import annotations

import numpy as np
import torch

from sparsekit.digest import sha256_of
from sparsekit.model.results import OutputCheck

_BIT_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tensor_sha256(tensor: torch.Tensor) -> str:
    """sha256 of the elements' bytes in row-major order."""
    data = tensor.detach().contiguous().view(torch.uint8).cpu().numpy()
    return sha256_of(data.tobytes())


def compare_to_reference(
    actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor
) -> OutputCheck:
    """The actual output against float64, each element within its bound.

    expected, bound: float64, of the same shape. Not finite: NaN where NaN is expected, the same
    infinity where one is, or where a value in the bound overflows the type. A bound that is not
    finite allows nothing. max_rel is relative to no less than the type's smallest normal number.
    """
    sha256 = tensor_sha256(actual)
    if actual.numel() == 0:
        return OutputCheck(True, sha256)
    found = actual.double()
    finite = torch.isfinite(found) & torch.isfinite(expected)
    limits = torch.finfo(actual.dtype)
    overflows = (expected.abs() + bound > limits.max) & (found == expected.sign() * torch.inf)
    same_special = torch.where(torch.isnan(expected), torch.isnan(found), found == expected)
    same_special |= overflows
    difference = torch.where(finite, (found - expected).abs(), 0.0)
    # How far beyond its bound: 1 is just allowed; a wrong NaN or inf is worse than any number.
    excess = torch.where(difference == 0, 0.0, difference / bound.clamp_min(1e-300))
    excess = torch.where(torch.isfinite(bound), excess, torch.inf)
    excess = torch.where(finite, excess, torch.where(same_special, 0.0, torch.inf))
    worst = int(excess.argmax())
    index = tuple(int(i) for i in np.unravel_index(worst, tuple(actual.shape)))
    ok = bool(excess.flatten()[worst] <= 1.0)
    relative = torch.where(finite, difference / expected.abs().clamp_min(limits.tiny), 0.0)
    ulp = torch.where(finite, ulp_distance(actual, expected.to(actual.dtype)), 0)
    return OutputCheck(
        ok=ok,
        sha256=sha256,
        max_abs=float(difference.max()),
        max_rel=float(relative.max()),
        max_ulp=int(ulp.max()),
        worst_index=index,
        problem=None if ok else _what_is_wrong(found, expected, bound, excess, index),
    )


def _what_is_wrong(
    found: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor, excess: torch.Tensor,
    index: tuple[int, ...],
) -> str:  # fmt: skip
    count = int((excess > 1.0).sum())
    return (
        f"{count} of {found.numel()} elements are wrong; at {list(index)} "
        f"found {found[index]:.9g}, expected {expected[index]:.9g} within {bound[index]:.3g}"
    )


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Units in the last place between equal-typed floats, as int64; meaningless for NaN and inf."""
    return (_ordered(a) - _ordered(b)).abs()


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the floats that they are the bits of, -0 and 0 alike."""
    bits = tensor.contiguous().view(_BIT_TYPES[tensor.element_size()]).long()
    smallest = -(1 << (8 * tensor.element_size() - 1))
    return torch.where(bits < 0, smallest - bits, bits)


def compare_bits(actual: torch.Tensor, base: torch.Tensor) -> OutputCheck:
    """Byte for byte: -0 differs from 0, and NaN payloads count."""
    sha256 = tensor_sha256(actual)
    if actual.dtype != base.dtype or actual.shape != base.shape:
        return OutputCheck(False, sha256, problem="the outputs have different types or shapes")
    bits = _BIT_TYPES[actual.element_size()]
    differs = actual.contiguous().view(bits) != base.contiguous().view(bits)
    count = int(differs.sum())
    if count == 0:
        histogram = {"0": actual.numel()}
        return OutputCheck(True, sha256, 0.0, 0.0, 0, ulp_histogram=histogram)
    index = tuple(int(i) for i in differs.nonzero()[0])
    both = torch.isfinite(actual) & torch.isfinite(base)
    difference = torch.where(both, (actual.double() - base.double()).abs(), 0.0)
    tiny = torch.finfo(base.dtype).tiny
    relative = torch.where(both, difference / base.double().abs().clamp_min(tiny), 0.0)
    ulps = torch.where(both, ulp_distance(actual, base), 0)
    return OutputCheck(
        ok=False,
        sha256=sha256,
        max_abs=float(difference.max()),
        max_rel=float(relative.max()),
        max_ulp=int(ulps.max()),
        worst_index=index,
        problem=f"{count} of {actual.numel()} elements differ; the first at {list(index)}: "
        f"{_shown(actual[index])} against {_shown(base[index])}",
        ulp_histogram=_histogram(ulps, differs & ~both),
    )


def _histogram(ulps: torch.Tensor, special: torch.Tensor) -> dict[str, int]:
    """Elements by distance, in steps that double; -0 against 0 is at distance 0."""
    distances, counts = torch.unique(ulps[~special], return_counts=True)
    found: dict[str, int] = {}
    for distance, count in zip(distances.tolist(), counts.tolist(), strict=True):
        top = 1 << max(distance - 1, 0).bit_length() if distance else 0
        name = str(top) if top <= 2 else f"{top // 2 + 1}-{top}"
        found[name] = found.get(name, 0) + count
    if spoilt := int(special.sum()):
        found["special"] = spoilt
    return found


def _shown(value: torch.Tensor) -> str:
    bits = int(value.reshape(1).view(_BIT_TYPES[value.element_size()])[0])
    digits = 2 * value.element_size()
    return f"{float(value):.9g} (0x{bits & (16**digits - 1):0{digits}x})"
