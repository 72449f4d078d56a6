"""Which GPU a result is of, where a page has results of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparsekit.report.document import Table

GPU = "GPU"


def are_several(gpus: Iterable[str | None]) -> bool:
    """Whether a reader has to be told which GPU a row is of; None is of none."""
    return len({gpu for gpu in gpus if gpu is not None}) > 1


def with_gpus(table: Table, gpus: Sequence[str | None], several: bool, at: int = 1) -> Table:
    """The table with the GPU of each row, as the column at that place, where there are several."""
    if not several:
        return table
    rows = [(*row[:at], gpu, *row[at:]) for row, gpu in zip(table.rows, gpus, strict=True)]
    return replace(table, columns=(*table.columns[:at], GPU, *table.columns[at:]), rows=rows)


def on_gpu_text(gpu: str, several: bool) -> str:
    """` on NVIDIA H200`, for a title, where there are several; else nothing."""
    return f" on {gpu}" if several else ""
