"""Entries against their bases, and the matrix of toolchains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sparsekit.codegen.facts import Fact, facts_of
from sparsekit.codegen.ledger import Ledger
from sparsekit.codegen.regression import Row
from sparsekit.codegen.verdict import Comparison
from sparsekit.report.document import Cell, Document, Lines, Table
from sparsekit.report.inspect import loads_by_loop

_WORSE, _WORST = "WORSE", "<-- WORST"
_NO_COUNTERPART = "no counterpart"
_LEGEND = (
    "gather, load: narrowest width in bytes per thread; regs: registers per thread; shared: bytes; "
    "loops: loads in one iteration of each loop, in order"
)


def comparison_document(comparisons: Sequence[Comparison]) -> Document:
    """Side by side: a verdict for each entry, then the facts that differ."""
    rows = [
        (
            str(c.ours.name), str(c.base.name) if c.base else None, _verdict(c),
            ", ".join(d.fact for d in c.worse) or None,
        )
        for c in comparisons
    ]  # fmt: skip
    parts: list[Table | Lines] = [Table("Verdicts", ("entry", "against", "verdict", "worse"), rows)]
    for comparison in comparisons:
        if comparison.differences and comparison.base:
            facts: list[tuple[Cell, ...]] = [
                (d.fact, d.before, d.now, _WORSE if d.worse else "") for d in comparison.differences
            ]
            title = f"{comparison.ours.name} against {comparison.base.name}"
            parts.append(Table(title, ("fact", "against", "now", ""), facts))
    return Document({"comparisons": [_comparison(c) for c in comparisons]}, tuple(parts))


def _verdict(comparison: Comparison) -> str:
    if comparison.base is None:
        return _NO_COUNTERPART
    return comparison.verdict or "unknown: the code of one side could not be read"


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "entry": asdict(comparison.ours.name),
        "against": asdict(comparison.base.name) if comparison.base else None,
        "verdict": comparison.verdict,
        "differences": [
            {"fact": d.fact, "before": d.before, "now": d.now, "worse": d.worse}
            for d in comparison.differences
        ],
    }


def matrix_document(toolchains: Sequence[str], rows: Sequence[Row]) -> Document:
    """A row for each entry and arch, a column for each toolchain, the worst cell marked, and the
    first bad release by arch."""
    table_rows: list[tuple[Cell, ...]] = []
    for row in rows:
        name = row.some.name
        subject = f"{name.kernel}:{name.variant}" if name.variant else name.kernel
        cells = [_cell(row, toolchain) for toolchain in toolchains]
        table_rows.append((subject, name.instance, name.entry, name.arch, *cells))
    columns = ("kernel", "instance", "entry", "arch", *toolchains)
    parts: list[Table | Lines] = [Table("", columns, table_rows), Lines((_LEGEND,))]
    parts.append(Lines(tuple(_first_bad(rows)), "First bad release"))
    data = {
        "toolchains": list(toolchains),
        "matrix": [_row_data(row) for row in rows],
    }
    return Document(data, tuple(parts))


def _cell(row: Row, toolchain: str) -> Cell:
    ledger = row.cells.get(toolchain)
    if ledger is None:
        return "no such target" if toolchain in row.cells else None
    mark = f" {_WORST}" if toolchain in row.worst else ""
    return f"{_summary(ledger)}{mark}"


def _summary(ledger: Ledger) -> str:
    """`gather 16, regs 128, shared 67968, loops 1/9`."""
    facts = facts_of(ledger)
    told = [*narrowest(facts), f"regs {facts['registers']}"]
    told += [f"spills {facts['spills']}"] if facts["spills"] else []
    told += [f"shared {facts['shared_bytes']}"] if facts["shared_bytes"] else []
    loops = loads_by_loop(ledger)
    return ", ".join([*told, *([f"loops {loops}"] if loops else [])])


def narrowest(facts: Mapping[str, Fact]) -> list[str]:
    """`gather 16`: the narrowest gather, else the narrowest load, in bytes per thread."""
    widths = {what: facts.get(f"{what}.min_bytes") for what in ("gather", "load")}
    return [f"{what} {width}" for what, width in widths.items() if width is not None][:1]


def _first_bad(rows: Iterable[Row]) -> list[str]:
    """One line for each kernel, entry and release, with the archs and what is bad on them."""
    grouped: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for row in rows:
        if row.first_bad is None:
            continue
        name = row.some.name
        subject = f"{name.kernel}:{name.variant} {name.entry}"
        by_reason = grouped.setdefault((subject, row.first_bad), {})
        by_reason.setdefault(", ".join(row.reasons), []).append(name.arch)
    lines = []
    for (subject, release), reasons in grouped.items():
        for why, archs in reasons.items():
            lines.append(f"{subject}: {release} on {' '.join(dict.fromkeys(archs))}: {why}")
    return lines or ["none: no release is bad against the oldest one"]


def _row_data(row: Row) -> dict[str, Any]:
    name = row.some.name
    return {
        "kernel": name.kernel,
        "variant": name.variant,
        "instance": name.instance,
        "entry": name.entry,
        "arch": name.arch,
        "worst": list(row.worst),
        "first_bad": row.first_bad,
        "reasons": list(row.reasons),
    }
