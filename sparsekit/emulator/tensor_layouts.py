"""Layouts of tensor memory: which lane and column each register, and each row of a matrix, has.

Source: PTX ISA, TensorCore 5th Generation, Data Movement Shape and Data Path Layout Organization;
CUTLASS, copy_traits_sm100.hpp and mma_traits_sm100.hpp (as documentation). An address is a lane in
its upper half and a column of 32 bits in its lower half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.geometry import WARP

LANES, COLUMNS = 128, 512
_HALF = 64
_LANE_SHIFT = 16
_COLUMN_MASK = 0xFFFF

SHAPES = {
    # name: (registers of x1, lanes, columns of x1)
    "32x32b": (1, 32, 1), "16x64b": (1, 16, 2), "16x128b": (2, 16, 4), "16x256b": (4, 16, 8),
    "16x32bx2": (1, 16, 1),
}  # fmt: skip


def lane_of(address: int) -> int:
    return address >> _LANE_SHIFT


def column_of(address: int) -> int:
    return address & _COLUMN_MASK


def register_cells(shape: str, count: int, split: int) -> tuple[Array, Array]:
    """(lanes, columns), [registers, threads], of a load or store from its address on.

    count: registers. split: how many columns the second half of 16x32bx2 is away.
    """
    t, j = np.arange(WARP)[None], np.arange(count)[:, None]
    zero = np.zeros((count, WARP), np.int64)
    if shape == "32x32b":
        return t + zero, j + zero
    if shape == "16x32bx2":
        return t % 16 + zero, j + t // 16 * split
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2) + zero, t // 2 % 2 + 2 * j
    if shape == "16x128b":
        return t // 4 + 8 * (j % 2), t % 4 + 4 * (j // 2)
    return t // 4 + 8 * (j // 2 % 2), t % 4 * 2 + j % 2 + 8 * (j // 4)


@dataclass(frozen=True)
class DataPath:
    """How a block's part of D lies in tensor memory.

    lanes: of the rows of each part; parts: how many parts the columns of N are cut into, each in
    lanes of its own, with a copy of A of its own where A is in tensor memory.
    """

    lanes: tuple[Array, ...]
    rows: int

    @property
    def parts(self) -> int:
        return len(self.lanes)


def data_path(rows: int, *, halves: bool, weight_stationary: bool) -> DataPath:
    """rows: of M that a block computes; halves: cta_group::2 with 64 rows a block."""
    every = np.arange(LANES)
    if rows == LANES:
        return DataPath((every,), rows)
    if rows == _HALF and (halves or weight_stationary):
        return DataPath((every[:_HALF], every[_HALF:]), rows)
    if rows == _HALF:
        return DataPath((np.arange(_HALF) // 16 * 32 + np.arange(_HALF) % 16,), rows)
    return DataPath(tuple(every[i : i + WARP] for i in range(0, LANES, WARP)), rows)


def copied_rows(shape: str, multicast: str) -> tuple[Array, int]:
    """(row of the source for each lane, 32-bit words of a row) of tcgen05.cp."""
    lane = np.arange(LANES)
    if shape in ("128x256b", "128x128b"):
        return lane, 8 if shape == "128x256b" else 4
    if shape == "64x128b":
        quarter = lane // WARP
        half = quarter % 2 if multicast == "warpx2::02_13" else quarter // 2
        return half * WARP + lane % WARP, 4
    return lane % WARP, 4
