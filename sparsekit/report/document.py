"""What a command says, before it has a form: data for machines, tables and lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """A table. columns: headings; rows: cells in their order; right: columns set flush right."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    right: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Lines:
    """Lines of prose or code. code: to be shown as it is (disassembly, a script)."""

    lines: tuple[str, ...]
    title: str = ""
    code: bool = False


@dataclass(frozen=True)
class Document:
    """A command's result. data: the JSON document; parts: the same for people, in order."""

    data: Mapping[str, Any]
    parts: tuple[Table | Lines, ...] = field(default=())


def joined(*documents: Document) -> Document:
    """The parts of several documents in order, their data side by side."""
    data: dict[str, Any] = {}
    for document in documents:
        data |= document.data
    return Document(data, tuple(part for document in documents for part in document.parts))


def cell_text(cell: Cell) -> str:
    """A cell as people read it; what was not measured is a dash."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:.0f}"
    return str(cell)
