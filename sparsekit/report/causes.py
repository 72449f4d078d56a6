"""Why code differs: specialisations, parts of a toolchain, and rounding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sparsekit.codegen.audit import Audited
from sparsekit.codegen.blame import SIDES, Blame, Cell, Side
from sparsekit.codegen.facts import Fact
from sparsekit.codegen.numerics import Numerics
from sparsekit.report.compare import narrowest
from sparsekit.report.document import Cell as TableCell
from sparsekit.report.document import Document, Lines, Table


def audit_document(found: Sequence[Audited]) -> Document:
    """What gets bad when an argument is not a multiple of 16 or is 1, and what to do about it."""
    bad = [a for a in found if a.reasons]
    # Instances, and toolchains, that agree share a row, which says how many they are.
    rows = [(*row, count) for row, count in Counter(map(_audit_row, bad)).items()]
    columns = ("kernel", "entry", "arch", "argument", "when it is", "what gets bad", "fix", "times")
    parts: list[Table | Lines] = []
    if rows:
        table = Table("Arguments that the code depends on", columns, rows, frozenset({"times"}))
        parts.append(table)
    tried = len({(a.specialisation.arg, a.specialisation.state) for a in found})
    parts.append(
        Lines((f"{tried} specialisations of {len(found)} entries tried, {len(bad)} are bad",))
    )
    return Document({"audit": [_audit(a) for a in found]}, tuple(parts))


def _audit_row(found: Audited) -> tuple[TableCell, ...]:
    name, arg = found.ledger.name, found.specialisation.arg
    return (
        f"{name.kernel}:{name.variant}", name.entry, name.arch, arg.name if arg else None,
        found.specialisation.state, ", ".join(found.reasons), found.fix,
    )  # fmt: skip


def _audit(found: Audited) -> dict[str, Any]:
    arg = found.specialisation.arg
    return {
        **asdict(found.ledger.name),
        "argument": arg.name if arg else None,
        "state": found.specialisation.state,
        "bad": list(found.reasons),
        "fix": found.fix or None,
    }


def blame_document(found: Sequence[Blame]) -> Document:
    """The cells and what they say of every fact that differs."""
    parts: list[Table | Lines] = []
    for blame in found:
        parts.append(_cells(blame))
        rows = [(d.fact, d.before, d.now, d.cause) for d in blame.differences]
        if rows:
            parts.append(Table("Causes", ("fact", "against", "now", "cause"), rows))
        for side, right in blame.reproduced.items():
            if not right:
                name = blame.sources[side].ledger.name
                parts.append(Lines((f"assembling {name} again gives other code; trust no cause",)))
    return Document({"blame": [_blame(b) for b in found]}, tuple(parts))


def _cells(blame: Blame) -> Table:
    rows: list[tuple[TableCell, ...]] = []
    for cell in blame.cells:
        rows.append(
            (
                blame.sources[cell.ptx].ledger.name.toolchain,
                blame.sources[cell.ptxas].ptxas_release,
                _options(blame, cell.options),
                cell.problem or _summary(cell.facts or {}),
            )
        )
    name = blame.sources["ours"].ledger.name
    title = f"{name.kernel}:{name.variant} {name.entry} {name.arch}"
    return Table(title, ("PTX of", "ptxas", "options of", "code"), list(dict.fromkeys(rows)))


def _options(blame: Blame, side: Side) -> str:
    """The toolchain whose options they are; both where they are the same."""
    same = len({blame.sources[s].options for s in SIDES}) == 1
    return "either" if same else blame.sources[side].ledger.name.toolchain


def _summary(facts: Mapping[str, Fact]) -> str:
    told = [f"regs {facts.get('registers')}"]
    told += [f"spills {facts['spills']}"] if facts.get("spills") else []
    told += narrowest(facts)
    count = facts.get("loops")
    loops = [str(facts[f"loop{n}.loads"]) for n in range(count if isinstance(count, int) else 0)]
    return ", ".join([*told, *([f"loops {'/'.join(loops)}"] if loops else [])])


def _blame(blame: Blame) -> dict[str, Any]:
    return {
        "against": asdict(blame.sources["base"].ledger.name),
        "now": asdict(blame.sources["ours"].ledger.name),
        "reproduced": dict(blame.reproduced),
        "cells": [_cell(cell) for cell in blame.cells],
        "differences": [asdict(d) for d in blame.differences],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "ptx": cell.ptx,
        "ptxas": cell.ptxas,
        "options": cell.options,
        "facts": None if cell.facts is None else dict(cell.facts),
        "problem": cell.problem,
    }


def numerics_document(found: Sequence[Numerics]) -> Document:
    rows: list[tuple[TableCell, ...]] = []
    for item in found:
        name = str(item.comparison.ours.name)
        if item.changes is None:
            rows.append((name, "unknown", "the code of one side could not be read", None))
        elif not item.changes:
            rows.append((name, "nothing changes rounding", None, None))
        for change in item.changes or ():
            rows.append((name, change.what, change.before, change.now))
    data = [
        {
            "entry": asdict(n.comparison.ours.name),
            "changes": None if n.changes is None else [asdict(c) for c in n.changes],
        }
        for n in found
    ]
    table = Table("Rounding", ("entry", "what", "against", "now"), rows)
    return Document({"numerics": data}, (table,))
