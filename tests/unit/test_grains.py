"""What stands for a cell is what a table of all cells would hold."""

from __future__ import annotations

import numpy as np
import pytest

from sparsekit.emulator.grains import Grains

BYTES = 512
CELL = 2
SIZES = (2, 4, 8, 16)


def cells_of(index: np.ndarray, size_bytes: int) -> list[list[int]]:
    """Access by access the cells of it."""
    return [list(range(i // CELL, (i + size_bytes) // CELL)) for i in index.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_reads_find_what_was_written(seed):
    random = np.random.default_rng(seed)
    grains = Grains(BYTES // CELL, 1)
    kept = np.zeros((2, BYTES // CELL), np.int32)  # of any number of dimensions
    model = np.zeros(BYTES // CELL, np.int32)
    for step in range(1, 200):
        size = int(random.choice(SIZES, p=(0.02, 0.08, 0.3, 0.6)))
        index = random.integers(0, BYTES // size, random.integers(1, 9)).astype(np.uint32) * size
        touched = grains.touch(index, size, [kept])
        if step % 2:
            kept[:, touched.cells] = step
            for cells in cells_of(index, size):
                model[cells] = step
            continue
        accesses = touched.accesses(np.arange(len(touched.cells)))
        assert np.array_equal(touched.spread(index), index[accesses])
        for access, cells in enumerate(cells_of(index, size)):
            own = touched.cells[accesses == access]
            first = [max(own[own <= cell]) for cell in cells]
            assert first[0] == cells[0]
            assert kept[0, first].tolist() == kept[1, first].tolist() == model[cells].tolist()


def test_wide_accesses_touch_one_cell_each_until_a_narrow_one_comes():
    grains = Grains(BYTES // CELL, 1)
    kept = np.arange(BYTES // CELL)
    wide = np.array([0, 32], np.uint32)
    assert grains.touch(wide, 16, [kept]).cells.tolist() == [0, 16]
    assert grains.touch(np.array([36], np.uint32), 4, [kept]).cells.tolist() == [18]
    assert kept[16:24].tolist() == [16] * 8
    mixed = grains.touch(wide, 16, [kept])
    assert mixed.cells.tolist() == [0, 16, 18, 20, 22]
    assert mixed.accesses(np.arange(5)).tolist() == [0, 1, 1, 1, 1]
    assert mixed.spread(np.array([7, 8])).tolist() == [7, 8, 8, 8, 8]


def test_cells_as_wide_as_the_widest_access():
    grains = Grains(BYTES // 16, 4)
    assert grains.touch(np.array([16, 496], np.uint32), 16, []).cells.tolist() == [1, 31]
