"""What `sparsekit inspect-sass` reports of each entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sparsekit.aot.execute import Outcome
from sparsekit.codegen.facts import facts_of
from sparsekit.codegen.ledger import Ledger, Name, count_of
from sparsekit.report.build import failure_lines
from sparsekit.report.document import Cell, Document, Lines, Table
from sparsekit.report.units import widths_text

_COLUMNS = (
    "kernel", "variant", "instance", "arch", "toolchain", "entry", "regs", "spills", "local",
    "shared", "gathers", "loops", "PTX loads", "SASS loads and stores",
)  # fmt: skip
_RIGHT = frozenset({"regs", "spills", "local", "shared"})
_SHOWN_LOOPS = 12
_LEGEND = (
    "widths are bytes per thread, as WIDTHxCOUNT; counts are static. gathers: loads whose address "
    "depends on an earlier load. loops: loads in one iteration of each loop, in order"
)


def inspect_document(ledgers: Sequence[Ledger], *, shown: bool) -> Document:
    """Resources and widths of each entry. shown: as a table too, where no check shows them."""
    parts = _ledger_parts(ledgers) if shown else []
    problems = dict.fromkeys(e.problem for e in ledgers if e.problem)
    parts += [Lines((f"no SASS: {problem}",)) for problem in problems]
    return Document({"entries": [_entry(e) for e in ledgers]}, tuple(parts))


def failures_document(failed: Sequence[Outcome]) -> Document:
    """Why jobs could not be built."""
    data = [{"job": str(o.job), "error": str(o.error)} for o in failed]
    return Document({"failed": data}, tuple(failure_lines(outcome) for outcome in failed))


def listings_document(listings: Mapping[Name, Sequence[str]]) -> Document:
    """The whole code of each entry."""
    parts = [Lines(tuple(lines), f"Code of {name}", code=True) for name, lines in listings.items()]
    data = [{**asdict(name), "lines": list(lines)} for name, lines in listings.items()]
    return Document({"listings": data} if data else {}, tuple(parts))


def _ledger_parts(ledgers: Sequence[Ledger]) -> list[Table | Lines]:
    parts: list[Table | Lines] = []
    if ledgers:
        parts.append(Table("", _COLUMNS, [_row(e) for e in ledgers], _RIGHT))
        parts.append(Lines((_LEGEND,)))
    return parts


def _row(ledger: Ledger) -> tuple[Cell, ...]:
    resources, sass = ledger.resources, ledger.sass
    return (
        *asdict(ledger.name).values(),
        resources.registers,
        resources.spill_store_bytes,
        resources.local_bytes,
        _of_limit(resources.shared_bytes, resources.shared_limit_bytes),
        widths_text(sass.gathers if sass else None),
        None
        if sass is None
        else "/".join(str(count_of(loop.loads)) for loop in sass.loops) or "none",
        widths_text(ledger.ptx_loads),
        widths_text(sass.accesses if sass else None),
    )


def loads_by_loop(ledger: Ledger) -> str:
    """`4/1/8/2`: loads in one iteration of each loop, in order; the first where they are many."""
    loops = ledger.sass.loops if ledger.sass else ()
    shown = "/".join(str(count_of(loop.loads)) for loop in loops[:_SHOWN_LOOPS])
    return f"{shown}/... ({len(loops)} loops)" if len(loops) > _SHOWN_LOOPS else shown


def _of_limit(needed: int | None, limit: int | None) -> Cell:
    return needed if needed is None or limit is None else f"{needed} of {limit}"


def _entry(ledger: Ledger) -> dict[str, Any]:
    sass, resources = ledger.sass, ledger.resources
    return {
        **asdict(ledger.name),
        "source": ledger.source,
        **asdict(resources),
        "shared_bytes": resources.shared_bytes,
        "ptx_loads": ledger.ptx_loads,
        "sass_loads": sass.accesses if sass else None,
        "gathers": sass.gathers if sass else None,
        "loops": [asdict(loop) for loop in sass.loops] if sass else None,
        "tensor": sass.tensor if sass else None,
        "arithmetic": sass.arithmetic if sass else None,
        "text_sha256": sass.text_sha256 if sass else None,
        "instructions_sha256": sass.instructions_sha256 if sass else None,
        "facts": facts_of(ledger),
        "problem": ledger.problem,
    }
