"""Documents as GitHub markdown. Needs nothing but the standard library."""

from __future__ import annotations

from sparsekit.report.document import Document, Lines, Table, cell_text


def render_markdown(document: Document) -> str:
    return "\n\n".join(
        _table(part) if isinstance(part, Table) else _lines(part) for part in document.parts
    )


def _table(table: Table) -> str:
    rows = [[_escaped(cell_text(c)) for c in row] for row in table.rows]
    widths = [
        max(len(heading), 3, *(len(row[i]) for row in rows)) if rows else max(len(heading), 3)
        for i, heading in enumerate(table.columns)
    ]
    rule = [
        "-" * (w - 1) + ":" if heading in table.right else "-" * w
        for w, heading in zip(widths, table.columns, strict=True)
    ]
    aligned = [_row(table.columns, widths, table), "| " + " | ".join(rule) + " |"]
    aligned += [_row(tuple(row), widths, table) for row in rows]
    return "\n".join(([f"### {table.title}", ""] if table.title else []) + aligned)


def _row(cells: tuple[str, ...], widths: list[int], table: Table) -> str:
    padded = [
        cell.rjust(width) if heading in table.right else cell.ljust(width)
        for cell, width, heading in zip(cells, widths, table.columns, strict=True)
    ]
    return "| " + " | ".join(padded) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _lines(part: Lines) -> str:
    body = "\n".join(part.lines)
    if part.code:
        body = f"```\n{body}\n```"
    return f"### {part.title}\n\n{body}" if part.title else body
