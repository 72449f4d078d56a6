"""Tiles of tensors: which bytes of global memory make up a tile, in the order of shared memory.

Source: PTX ISA, Tensors: Tiled Mode, tile::gather4 and tile::scatter4. A tile's inner dimension
comes first; what lies outside of the tensor is filled on loads and left out on stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.memory import GLOBAL_BASE
from sparsekit.emulator.tensor_map import TensorMap

CHUNK_BYTES = 16
_NAN = {"fp16": 0x7FFF, "bf16": 0x7FFF, "fp64": (1 << 63) - 1}
_NAN |= dict.fromkeys(("fp32", "fp32_ftz", "tf32", "tf32_ftz"), 0x7FFF_FFFF)


@dataclass(frozen=True)
class Tile:
    """index: bytes in the arena of the pieces of a tile, i8, in the order of shared memory.

    inside: which pieces are in the tensor; fill: the bytes of one that is not.
    """

    piece_bytes: int
    index: Array
    inside: Array
    fill: bytes

    @property
    def size_bytes(self) -> int:
        return self.piece_bytes * self.index.size


def box_of(tensor: TensorMap, coordinates: Sequence[int]) -> Tile:
    """The tile whose first element has these coordinates, which may be outside of the tensor."""
    strides = (tensor.element_bytes, *tensor.stride_bytes)
    index, inside = np.zeros(1, np.int64), np.ones(1, np.bool_)
    for axis in reversed(range(1, len(tensor.dims))):
        along = coordinates[axis] + np.arange(0, tensor.box[axis], tensor.step[axis])
        index = (index[:, None] + along * strides[axis]).reshape(-1)
        within = (along >= 0) & (along < tensor.dims[axis])
        inside = (inside[:, None] & within).reshape(-1)
    return _with_rows(tensor, coordinates[0], index, inside)


def rows_of(tensor: TensorMap, column: int, rows: Sequence[int]) -> Tile:
    """Four rows of a tensor of two dimensions, one below the other."""
    numbers = np.array(rows, np.int64)
    inside = (numbers >= 0) & (numbers < tensor.dims[1])
    return _with_rows(tensor, column, numbers * tensor.stride_bytes[0], inside)


def _with_rows(tensor: TensorMap, column: int, starts: Array, inside: Array) -> Tile:
    """The tile whose rows start at these bytes of the tensor."""
    size = tensor.element_bytes
    per_chunk = CHUNK_BYTES // size
    whole = column % per_chunk == 0 and tensor.dims[0] % per_chunk == 0 and tensor.step[0] == 1
    step = per_chunk if whole else tensor.step[0]
    along = column + np.arange(0, tensor.box[0], step)
    index = (starts[:, None] + along * size).reshape(-1) + (tensor.address - GLOBAL_BASE)
    within = (along >= 0) & (along < tensor.dims[0])
    piece = CHUNK_BYTES if whole else size
    fill = b"\0" * piece
    if tensor.fill == "nan" and tensor.dtype in _NAN:
        fill = _NAN[tensor.dtype].to_bytes(size, "little") * (piece // size)
    return Tile(piece, index, (inside[:, None] & within).reshape(-1), fill)
