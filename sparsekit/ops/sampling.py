"""Index lists and values for the references of index-driven ops: honest ones and hostile ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# What producers have been seen to put into unused slots; and, past the last row, the next two.
INVALID = (-1, -2, -123_456, -(2**31), 2_147_480_000, 2**31 - 1)
INVALID_PAST_END = (0, 1)


def generator(seed: int, *names: str) -> torch.Generator:
    """A generator for one purpose: the same seed and names give the same stream."""
    mixed = seed
    for name in names:
        for byte in name.encode():
            mixed = (mixed * 131 + byte) % (2**31 - 1)
    return torch.Generator().manual_seed(mixed)


def normal(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """N(0, 1) in bf16."""
    return torch.randn(shape, generator=random, dtype=torch.float32).to(torch.bfloat16)


def signs(shape: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    """Random +1 and -1 in bf16, for probes that must see a single wrong column."""
    return (torch.randint(0, 2, shape, generator=random) * 2 - 1).to(torch.bfloat16)


def unique_rows(count: int, rows: int, columns: int, random: torch.Generator) -> torch.Tensor:
    """[count, columns] int32: in each line different row numbers in random order.

    Where there are fewer rows than columns the numbers repeat.
    """
    if rows == 0 or columns == 0:
        return torch.full((count, columns), -1, dtype=torch.int32)
    if columns > rows // 2:
        picked = [_permutations(count, rows, random) for _ in range(-(-columns // rows))]
        return torch.cat(picked, dim=1)[:, :columns]
    numbers = torch.randint(0, rows, (count, columns), generator=random, dtype=torch.int32)
    pending = torch.arange(count)
    while len(pending):
        repeated = _repeated(numbers[pending])
        pending, where = pending[repeated.any(dim=1)], repeated[repeated.any(dim=1)]
        again = torch.randint(0, rows, (int(where.sum()),), generator=random, dtype=torch.int32)
        numbers[pending] = numbers[pending].masked_scatter(where, again)
    return numbers


def _permutations(count: int, rows: int, random: torch.Generator) -> torch.Tensor:
    lines = [torch.randperm(rows, generator=random, dtype=torch.int32) for _ in range(count)]
    return torch.stack(lines) if lines else torch.empty((0, rows), dtype=torch.int32)


def _repeated(numbers: torch.Tensor) -> torch.Tensor:
    """Which elements stand in their line already, further left."""
    ascending, order = numbers.sort(dim=1, stable=True)
    same = torch.zeros_like(numbers, dtype=torch.bool)
    same[:, 1:] = ascending[:, 1:] == ascending[:, :-1]
    return torch.zeros_like(same).scatter(1, order, same)


def invalid_numbers(count: int, rows: int, random: torch.Generator) -> torch.Tensor:
    """[count] int32: numbers that name no row, of every kind that producers are known to write."""
    kinds = [*INVALID, *(rows + past for past in INVALID_PAST_END)]
    picked = torch.randint(0, len(kinds), (count,), generator=random)
    return torch.tensor(kinds, dtype=torch.int64)[picked].to(torch.int32)


MIXED = ("full", "interior", "leading_invalid", "trailing", "empty", "one_key", "duplicates")
_LEADING_COLUMNS = 70  # more than one tile of any kernel's, so that a whole tile is invalid first


def lay_out(
    line: torch.Tensor, layout: str, row: int, parts: Sequence[tuple[slice, int]],
    random: torch.Generator,
) -> None:  # fmt: skip
    """Give one line of valid indices a layout, in place. `mixed` takes every layout in turn.

    parts: the columns that index one pool, with the number of its rows; what is made invalid is so
    for its own pool.
    """
    if layout == "mixed":
        layout = MIXED[row % len(MIXED)]
    valid = _valid_columns(layout, row, len(line), random)
    for part, rows in parts:
        numbers = line[part]
        if layout == "duplicates" and len(numbers):
            few = min(3, len(numbers))
            numbers[1:] = numbers[torch.randint(0, few, (len(numbers) - 1,), generator=random)]
        spoiled = ~valid[part]
        numbers[spoiled] = invalid_numbers(int(spoiled.sum()), rows, random)


def _valid_columns(layout: str, row: int, columns: int, random: torch.Generator) -> torch.Tensor:
    """[columns] bool: which columns of the layout are valid."""
    position = torch.arange(columns)
    if layout in ("full", "duplicates"):
        return position >= 0
    if layout == "interior":
        return torch.rand(columns, generator=random) >= 0.4
    if layout == "leading_invalid":
        return position >= min(_LEADING_COLUMNS, columns - 1)
    if layout == "trailing":
        return position < int(torch.randint(1, max(columns, 1) + 1, (), generator=random))
    if layout == "empty":
        return position < 0
    if layout == "one_key":
        return position == row % max(columns, 1)
    raise ValueError(f"unknown index layout {layout!r}")


def hostile_counts(count: int, columns: int, random: torch.Generator) -> torch.Tensor:
    """[count] int32: lengths below, inside, at and beyond the number of columns, in turn."""
    edges = [
        0,
        1,
        columns,
        columns + 1,
        -1,
        columns + 1000,
        max(columns - 1, 0),
        2**31 - 1,
        -(2**31),
    ]
    inside = torch.randint(0, columns + 1, (count,), generator=random)
    turn = torch.arange(count) % (2 * len(edges))
    fixed = torch.tensor(edges)[turn % len(edges)]
    return torch.where(turn < len(edges), fixed, inside).to(torch.int32)


def poison_rows(pool: torch.Tensor, where: torch.Tensor) -> None:
    """Fill the marked rows with NaN and inf in turn, in place: no result may ever see them."""
    marked = where.nonzero()[:, 0]
    pool[marked[0::2]] = float("nan")
    pool[marked[1::2]] = float("inf")


def spoil_rows(
    pool: torch.Tensor, listed: torch.Tensor, value: float, random: torch.Generator
) -> None:
    """Put the value into one column of three listed rows, in place."""
    rows = listed.nonzero()[:, 0]
    for row in rows[torch.randperm(len(rows), generator=random)[:3]].tolist():
        pool[row, ..., int(torch.randint(0, pool.shape[-1], (), generator=random))] = value


def sinks(kind: str, heads: int, random: torch.Generator) -> torch.Tensor | None:
    """[heads] fp32, or None: `none`, `finite`, `off` (-inf), or `special`, which takes finite,
    +inf, -inf and NaN in turn."""
    if kind == "none":
        return None
    if kind == "off":
        return torch.full((heads,), float("-inf"))
    values = torch.randn(heads, generator=random)
    if kind == "special":
        for turn, value in enumerate((float("inf"), float("-inf"), float("nan")), 1):
            values[turn::4] = value
    return values
