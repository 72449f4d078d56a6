"""Tensor maps: what the host says of a tensor in global memory, for copies of tiles of it.

Source: PTX ISA, Tensors; CUDA driver API, cuTensorMapEncodeTiled. The 128 bytes that a kernel gets
are laid out in a way of this emulator's own.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from sparsekit.emulator.memory import Allocation
from sparsekit.errors import ArgumentError

MAP_BYTES = 128
MAP_ALIGN = 64
MOST_DIMS = 5
_MAGIC = b"SKTM"
_FORM = struct.Struct("<4s4BQ5I4Q5H5B")
_ALIGN = 16
_MOST_BOX = 256
_MOST_STRIDE = 1 << 40
_KEPT_MAPS = 64

ELEMENT_BYTES = {
    "u8": 1, "u16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8, "fp16": 2, "fp32": 4, "fp32_ftz": 4,
    "fp64": 8, "bf16": 2, "tf32": 4, "tf32_ftz": 4,
}  # fmt: skip
"""Element types in the order of tensormap.replace, with their sizes."""

SWIZZLES = {"none": 0, "32B": 32, "64B": 64, "128B": 128, "128B_atom_32B": 128}
"""Swizzle modes in the order of tensormap.replace, with the bytes that the inner one spans."""

FILLS = ("zero", "nan")
_TYPES, _SWIZZLE_NAMES = tuple(ELEMENT_BYTES), tuple(SWIZZLES)


@dataclass(frozen=True)
class TensorMap:
    """A tensor of `dims` elements, the inner dimension first, of which boxes are copied.

    base: its first byte; stride_bytes: of the dimensions but the inner one, by default without
    gaps. step: every so many elements of a box are copied. fill: what is outside of the tensor.
    Raises ArgumentError for what the driver refuses, or is not modelled.
    """

    base: Allocation | int
    dtype: str
    dims: Sequence[int]
    box: Sequence[int]
    stride_bytes: Sequence[int] = ()
    step: Sequence[int] = ()
    swizzle: str = "none"
    fill: str = "zero"
    address: int = field(init=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        base = self.base
        set_(self, "address", base.address if isinstance(base, Allocation) else base)
        if self.dtype not in ELEMENT_BYTES or self.swizzle not in SWIZZLES:
            raise ArgumentError(f"a tensor map of {self.dtype} with swizzle {self.swizzle}")
        if self.fill not in FILLS:
            raise ArgumentError(f"a tensor map with fill {self.fill}; there are {FILLS}")
        size = ELEMENT_BYTES[self.dtype]
        if not self.stride_bytes:
            strides = [size * self.dims[0]]
            for extent in list(self.dims)[1:-1]:
                strides.append(strides[-1] * extent)
            set_(self, "stride_bytes", tuple(strides[: len(self.dims) - 1]))
        set_(self, "step", tuple(self.step) or (1,) * len(self.dims))
        if text := self._fault():
            raise ArgumentError(f"a tensor map {text}")

    def _fault(self) -> str:
        rank, size = len(self.dims), self.element_bytes
        inner, span = self.box[0] * size, SWIZZLES[self.swizzle]
        if not 1 <= rank <= MOST_DIMS or {len(self.box), len(self.step)} != {rank}:
            return f"of {rank} dimensions with a box of {len(self.box)}"
        if len(self.stride_bytes) != rank - 1:
            return f"of {rank} dimensions with {len(self.stride_bytes)} strides"
        if self.address % _ALIGN or any(s % _ALIGN for s in self.stride_bytes):
            return f"whose base or strides are not multiples of {_ALIGN} bytes"
        if any(not 0 < s < _MOST_STRIDE for s in self.stride_bytes):
            return "with a stride that does not fit 40 bits"
        if any(not 0 < b <= _MOST_BOX for b in self.box):
            return f"with a box of {tuple(self.box)}; each extent is 1 to {_MOST_BOX}"
        if any(not 0 < d <= 1 << 32 for d in self.dims):
            return f"of extents {tuple(self.dims)}"
        if any(not 0 < s <= 8 for s in self.step):
            return f"with steps {tuple(self.step)}; each is 1 to 8"
        if inner % _ALIGN:
            return f"with an inner box of {inner} bytes, no multiple of {_ALIGN}"
        if span and inner > span:
            return f"with an inner box of {inner} bytes, which swizzle {self.swizzle} does not take"
        if span and inner < span and rank > 1 and any(b > 1 for b in self.box[1:]):
            return f"with an inner box of {inner} bytes, less than its swizzle: not modelled"
        return ""

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]

    def packed(self) -> bytes:
        """The map as a kernel's parameter, or as content of memory aligned to 64 bytes."""

        def five(values: Sequence[int], count: int = MOST_DIMS) -> list[int]:
            return [*values, *[0] * (count - len(values))]

        return _FORM.pack(
            _MAGIC, len(self.dims), _TYPES.index(self.dtype), _SWIZZLE_NAMES.index(self.swizzle),
            FILLS.index(self.fill), self.address, *[d - 1 for d in five(self.dims) if d],
            *[0] * (MOST_DIMS - len(self.dims)), *five(self.stride_bytes, MOST_DIMS - 1),
            *five(self.box), *five(self.step),
        ).ljust(MAP_BYTES, b"\0")  # fmt: skip


@lru_cache(_KEPT_MAPS)
def unpack_map(data: bytes) -> TensorMap | None:
    """The map in 128 bytes; None where they hold none. Raises ArgumentError for a bad one."""
    magic, rank, dtype, swizzle, fill, address, *rest = _FORM.unpack_from(data)
    if magic != _MAGIC or not 1 <= rank <= MOST_DIMS:
        return None
    cuts = [0, 5, 9, 14, 19]
    dims, strides, box, step = (rest[a:b] for a, b in pairwise(cuts))
    return TensorMap(
        address, _TYPES[dtype], tuple(d + 1 for d in dims[:rank]), tuple(box[:rank]),
        tuple(strides[: rank - 1]), tuple(step[:rank]), _SWIZZLE_NAMES[swizzle], FILLS[fill],
    )  # fmt: skip


@dataclass(frozen=True)
class Field:
    """Where a field of a map is: bytes from its start, by dimension; less: what is taken off.

    most: the largest value that is modelled.
    """

    offset: int
    size_bytes: int
    count: int
    less: int
    most: int


FIELDS = {
    "rank": Field(4, 1, 1, -1, MOST_DIMS - 1),
    "elemtype": Field(5, 1, 1, 0, len(_TYPES) - 1),
    "swizzle_mode": Field(6, 1, 1, 0, _SWIZZLE_NAMES.index("128B")),
    "fill_mode": Field(7, 1, 1, 0, len(FILLS) - 1),
    "global_address": Field(8, 8, 1, 0, (1 << 64) - 1),
    "global_dim": Field(16, 4, MOST_DIMS, 1, (1 << 32) - 1),
    "global_stride": Field(36, 8, MOST_DIMS - 1, 0, _MOST_STRIDE - 1),
    "box_dim": Field(68, 2, MOST_DIMS, 0, _MOST_BOX),
    "element_stride": Field(78, 1, MOST_DIMS, 0, 8),
    "interleave_layout": Field(127, 1, 1, 0, 0),
}
"""What tensormap.replace may change, in the layout of this emulator's own."""


def field_bytes(content: bytearray, name: str, position: int, value: int) -> str:
    """Change a field of a packed map; what is wrong with the value, or nothing."""
    field = FIELDS[name]
    if not 0 <= value <= field.most or value < field.less:
        return f"a tensor map with {name} {value}, which is not modelled"
    content[: len(_MAGIC)] = _MAGIC
    start = field.offset + position * field.size_bytes
    stored = (value - field.less).to_bytes(field.size_bytes, "little")
    content[start : start + field.size_bytes] = stored
    return ""
