"""Index lists: different rows in each line, every row as likely as another."""

from __future__ import annotations

import pytest
import torch

from sparsekit.ops import sampling


@pytest.mark.parametrize(
    ("count", "rows", "columns"),
    [(40, 4000, 900), (40, 1000, 500), (3, 10, 5), (3, 10, 6), (7, 12, 12), (1, 1, 1)],
)
def test_lines_hold_different_rows(count, rows, columns):
    lines = sampling.unique_rows(count, rows, columns, sampling.generator(1, "rows"))
    assert lines.shape == (count, columns)
    assert lines.dtype == torch.int32
    assert int(lines.min()) >= 0
    assert int(lines.max()) < rows
    assert all(len(set(line.tolist())) == columns for line in lines)


@pytest.mark.parametrize(
    ("count", "rows", "columns"), [(0, 10, 4), (0, 10, 9), (3, 0, 2), (3, 5, 0)]
)
def test_nothing_to_pick(count, rows, columns):
    lines = sampling.unique_rows(count, rows, columns, sampling.generator(1, "rows"))
    assert lines.shape == (count, columns)
    assert (lines == -1).all()


def test_fewer_rows_than_columns_repeat():
    lines = sampling.unique_rows(5, 3, 7, sampling.generator(1, "rows"))
    assert all(sorted(line[:3].tolist()) == [0, 1, 2] for line in lines)


def test_every_row_is_as_likely_in_every_column():
    lines = sampling.unique_rows(20_000, 16, 8, sampling.generator(2, "rows"))
    share = torch.stack([(lines == row).double().mean(dim=0) for row in range(16)])
    assert float((share * 16 - 1).abs().max()) < 0.15  # 5 sigma


def test_the_same_seed_gives_the_same_lines():
    first, second = (
        sampling.unique_rows(9, 500, 90, sampling.generator(3, "rows")) for _ in range(2)
    )
    assert torch.equal(first, second)
