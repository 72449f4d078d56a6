"""Tensor maps as arguments: which view of a tensor the bulk copies of a kernel see.

Source: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, Tensors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparsekit.model.call import Call

MAP_BYTES = 128
SWIZZLE_BYTES = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
"""Swizzle modes with the bytes of a box's inner dimension that they span."""
_FORM = re.compile(r"tensormap\((?P<axes>[\d,]+); (?P<box>[\d,]+); (?P<swizzle>\w+)\)")
_PREFIX = "tensormap("
_MOST_DIMS = 5
_MOST_BOX = 256
_ALIGN_BYTES = 16
_STRIDE_LIMIT_BYTES = 1 << 40


@dataclass(frozen=True)
class MapType:
    """The type `tensormap(AXES; BOX; SWIZZLE)` of an argument, as `tensormap(2,0; 64,1; 128B)`.

    axes: of the tensor, the inner one first; one that is left out must have one element. box:
    elements of each axis that one copy moves.
    """

    axes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str


@dataclass(frozen=True)
class MapFacts:
    """All of a tensor map but the address: dims and box in elements, the inner axis first.

    stride_bytes: of the axes but the inner one.
    """

    dtype: str
    dims: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str


def is_map(arg_type: str) -> bool:
    return arg_type.startswith(_PREFIX)


def map_type(text: str) -> MapType | None:
    """The type in that text; None where it is no such type."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    axes, box = (tuple(int(n) for n in found[g].split(",") if n) for g in ("axes", "box"))
    good = 1 <= len(axes) == len(box) <= _MOST_DIMS and len(set(axes)) == len(axes)
    good = good and all(1 <= b <= _MOST_BOX for b in box) and found["swizzle"] in SWIZZLE_BYTES
    return MapType(axes, box, found["swizzle"]) if good else None


def map_problem(kind: MapType, call: Call, tensor: str, element_bytes: int) -> str | None:
    """Why the call's tensor cannot be seen that way; None where it can, or has no elements."""
    shape, strides = call.shapes[tensor], call.strides[tensor]
    if 0 in shape:
        return None
    for axis, size in enumerate(shape):
        if axis not in kind.axes and size > 1:
            return f"its tensor map of {tensor} has no axis {axis}, found shape {list(shape)}"
    if strides[kind.axes[0]] != 1 and shape[kind.axes[0]] > 1:
        return f"its tensor map of {tensor} needs stride({kind.axes[0]}) = 1"
    for axis in kind.axes[1:]:
        stride = strides[axis] * element_bytes
        if stride % _ALIGN_BYTES or not 0 < stride < _STRIDE_LIMIT_BYTES:
            return (
                f"a tensor map takes strides that are positive multiples of {_ALIGN_BYTES} bytes "
                f"below 2^40, found {stride} bytes in stride({axis}) of {tensor}"
            )
    return None


def map_facts(kind: MapType, call: Call, tensor: str, element_bytes: int) -> MapFacts | None:
    """The map of the call's tensor; None of a tensor without elements, which has none."""
    shape, strides = call.shapes[tensor], call.strides[tensor]
    if 0 in shape:
        return None
    return MapFacts(
        dtype=call.dtypes[tensor],
        dims=tuple(shape[axis] for axis in kind.axes),
        stride_bytes=tuple(strides[axis] * element_bytes for axis in kind.axes[1:]),
        box=kind.box,
        swizzle=kind.swizzle,
    )
