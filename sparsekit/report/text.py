"""Documents by rich: coloured on a terminal, plain and never cut off elsewhere."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from sparsekit.report.document import Document, Lines, Table, cell_text

_PIPE_WIDTH = 4096  # wide enough that no line of a table breaks when it is read by a program
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
        if isinstance(part, Table):
            console.print(_table(part))
        else:
            _print_lines(console, part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _table(table: Table) -> RichTable:
    shown = RichTable(
        title=Text(table.title) if table.title else None, title_justify="left",
        title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
    )  # fmt: skip
    for heading in table.columns:
        shown.add_column(heading, justify="right" if heading in table.right else "left")
    for row in table.rows:
        shown.add_row(*(_cell(cell_text(c)) for c in row))
    return shown


def _cell(text: str) -> Text:
    return Text(text, style=_STYLES.get(text, ""))


def _print_lines(console: Console, part: Lines) -> None:
    if part.title:
        console.print(Text(part.title, style="bold"))
    for line in part.lines:
        console.print(Text(line))
