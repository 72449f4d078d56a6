"""Documents by rich: coloured on a terminal, plain elsewhere; nothing is cut off on either."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from sparsekit.report.document import Cell, Document, Table, cell_text

_PIPE_WIDTH = 4096  # wide enough that no line of a table breaks when it is read by a program
_GAP, _LEAST_GAP = 3, 2  # between two columns
_READABLE_COLUMNS = 8  # what a folded column needs to be read, unless its cells are narrower
_BETWEEN_FACTS = " · "
_STYLES = {
    "built": "green", "cached": "dim", "failed": "bold red", "refused": "yellow", "ok": "green",
    "FAILED": "bold red", "skipped": "yellow", "missing": "yellow", "broken": "bold red",
}  # fmt: skip


def render_text(document: Document, *, terminal_columns: int | None) -> str:
    """The document as text; terminal_columns is None when it goes to a pipe or a file."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=terminal_columns or _PIPE_WIDTH,
        force_terminal=terminal_columns is not None,
        no_color=None if terminal_columns else True,
        highlight=False,
        soft_wrap=True,
    )
    for i, part in enumerate(document.parts):
        if i:
            console.print()
        if part.title:
            console.print(Text(part.title, style="bold"))
        if isinstance(part, Table):
            _print_table(console, part)
        else:
            for line in part.lines:
                console.print(Text(line))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _print_table(console: Console, table: Table) -> None:
    """As it is where it fits; else what all rows share in a line above it, then closer columns,
    then folded cells, then a paragraph for each row."""
    table, shared = _hoisted(console, table)
    if shared:
        _print_facts(console, shared)
    if _width(table, _GAP) <= console.width:
        console.print(_laid_out(table, _GAP))
    elif _folded_width(table, _LEAST_GAP) <= console.width:
        console.print(_laid_out(table, _LEAST_GAP))
    else:
        for row in table.rows:
            console.print()
            _print_facts(console, zip(table.columns, row, strict=True))


def _hoisted(console: Console, table: Table) -> tuple[Table, list[tuple[str, Cell]]]:
    """The table without columns that are the same in all rows, from the left as many as it takes
    to fit; and those."""
    shared: list[tuple[str, Cell]] = []
    at = 0
    while len(table.rows) > 1 and at < len(table.columns) and _width(table, _GAP) > console.width:
        cells = [row[at] for row in table.rows]
        if len(table.columns) > 1 and all(cell == cells[0] for cell in cells):
            shared.append((table.columns[at], cells[0]))
            rows = [row[:at] + row[at + 1 :] for row in table.rows]
            columns = table.columns[:at] + table.columns[at + 1 :]
            table = replace(table, columns=columns, rows=rows)
        else:
            at += 1
    return table, shared


def _print_facts(console: Console, facts: Iterable[tuple[str, Cell]]) -> None:
    """`arch sm_90 · toolchain nvrtc-13.0.88`, broken between the facts where it can be."""
    line = Text()
    for heading, cell in facts:
        fact = Text.assemble((f"{heading} " if heading else "", "dim"), _cell(cell_text(cell)))
        if line and line.cell_len + len(_BETWEEN_FACTS) + fact.cell_len > console.width:
            console.print(line, soft_wrap=False, overflow="fold")
            line = fact
        else:
            line = Text(_BETWEEN_FACTS).join([line, fact]) if line else fact
    console.print(line, soft_wrap=False, overflow="fold")


def _width(table: Table, gap: int) -> int:
    """How many columns of the terminal the table takes."""
    return sum(_widths(table)) + gap * (len(table.columns) - 1)


def _folded_width(table: Table, gap: int) -> int:
    """How many it needs where its cells are folded."""
    narrowed = [min(width, _READABLE_COLUMNS) for width in _widths(table)]
    return sum(narrowed) + gap * (len(table.columns) - 1)


def _widths(table: Table) -> list[int]:
    rows = [table.columns, *([cell_text(c) for c in row] for row in table.rows)]
    lines = [
        [line for text in column for line in text.splitlines()]
        for column in zip(*rows, strict=True)
    ]
    return [max(map(cell_len, column), default=0) for column in lines]


def _laid_out(table: Table, gap: int) -> RichTable:
    shown = RichTable(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
        padding=(0, gap // 2, 0, (gap - 1) // 2),  # the box has a column between the two
    )  # fmt: skip
    for heading in table.columns:
        right = heading in table.right
        shown.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(_cell(cell_text(c)) for c in row))
    return shown


def _cell(text: str) -> Text:
    return Text(text, style=_STYLES.get(text, ""))
