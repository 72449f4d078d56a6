"""What `sparsekit emulate` reports."""

from __future__ import annotations

from dataclasses import asdict

from sparsekit.check.foreign import ForeignResult
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.emulation import blocks_text, finding_lines

_COLUMNS = ("entry", "blocks", "executed", "not executed, by PTX lines")


def emulate_document(result: ForeignResult) -> Document:
    """Findings first, what else failed, then coverage."""
    parts: list[Table | Lines] = []
    if result.findings:
        parts.append(Lines(finding_lines(result.findings), "Findings"))
    if result.problem:
        parts.append(Lines(tuple(result.problem.splitlines()), "FAILED"))
    rows = [
        (
            c.entry,
            c.blocks,
            c.blocks - len(c.uncovered),
            blocks_text(c.uncovered) or None,
        )
        for c in result.coverage
    ]
    if rows:
        title = "Coverage: basic blocks of PTX"
        parts.append(Table(title, _COLUMNS, rows, frozenset({"blocks", "executed"})))
    if result.printed:
        parts.append(Lines(result.printed, "Printed by the kernels", code=True))
    verdict = "ok" if result.ok else "FAILED"
    parts.append(
        Lines(
            (
                f"{verdict}: {result.file}, {result.launches} launches under each of "
                f"{', '.join(result.schedules)}; {len(result.findings)} findings",
            )
        )
    )
    data = {"schema": 1, "ok": result.ok, **asdict(result)}
    return Document(data, tuple(parts))
