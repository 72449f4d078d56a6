"""What went wrong or was left out, of every kind of file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.gpus import are_several, with_gpus
from sparsekit.report.stored import Stored, Wanted, bench_results, of_kind, verify_results
from sparsekit.report.units import ENDED_EARLY, NO_REASON, surroundings

_SHOWN_ROWS = 100
_SHOWN_CASES = 8
_SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class Problem:
    """What went wrong or was skipped. of: the command; gpu, case: None where it is of none."""

    of: str
    gpu: str | None
    subject: str
    case: str | None
    reason: str


def problems(stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    """A table of what went wrong and one of what was skipped; alike ones share a row."""
    wrong = [*_surroundings(stored), *_of_bench(stored, wanted), *_of_verify(stored, wanted)]
    wrong += _of_inspect(stored)
    skipped = [
        Problem("bench", r.gpu, r.op, r.case, r.reason)
        for r in bench_results(stored, wanted)
        if r.reason
    ]
    skipped += [
        Problem("verify", gpu, _variant(r), r["case"], r["reason"] or NO_REASON)
        for gpu, r in verify_results(stored, wanted)
        if r["skipped"]
    ]
    return [*_table("Problems", wrong), *_table("Skipped", skipped)]


def _table(title: str, found: Sequence[Problem]) -> Iterator[Table | Lines]:
    alike: dict[Problem, list[str]] = {}
    for problem in found:
        cases = alike.setdefault(replace(problem, case=None), [])
        if problem.case is not None and problem.case not in cases:
            cases.append(problem.case)
    if not alike:
        return
    shown = list(alike.items())[:_SHOWN_ROWS]
    rows: list[tuple[Cell, ...]] = [
        (p.of, p.subject, _cases_text(cases), _one_line(p.reason)) for p, cases in shown
    ]
    table = Table(title, ("of", "what", "cases", "reason"), rows)
    several = are_several(p.gpu for p in alike)
    yield with_gpus(table, [p.gpu for p, _ in shown], several)
    if more := len(alike) - len(shown):
        yield Lines((f"{title}: and {more} more; the result files have all.",))


def _cases_text(cases: Sequence[str]) -> str | None:
    more = len(cases) - _SHOWN_CASES
    shown = ", ".join(cases[:_SHOWN_CASES])
    return f"{shown} and {more} more" if more > 0 else shown or None


def _surroundings(stored: Sequence[Stored]) -> Iterator[Problem]:
    for file in stored:
        if file.data.get("partial"):
            yield Problem(file.kind, file.gpu, file.name, None, ENDED_EARLY)
        for text in surroundings(file.environment):
            yield Problem(file.kind, file.gpu, file.name, None, text)


def _of_bench(stored: Sequence[Stored], wanted: Wanted) -> Iterator[Problem]:
    for r in bench_results(stored, wanted):
        for t in r.timings:
            if t.problem:
                yield Problem("bench", r.gpu, t.label, r.case, t.problem)


def _of_verify(stored: Sequence[Stored], wanted: Wanted) -> Iterator[Problem]:
    for gpu, r in verify_results(stored, wanted):
        if r["ok"] is False:
            subject = f"{_variant(r)} against {r['against']}"
            yield Problem("verify", gpu, subject, r["case"], _why(r))


def _of_inspect(stored: Sequence[Stored]) -> Iterator[Problem]:
    for file in of_kind(stored, "inspect"):
        for failed in file.data.get("failed", ()):
            yield Problem("inspect", None, failed["job"], None, failed["error"])
        for entry in file.data["entries"]:
            if entry.get("problem"):
                subject = f"{entry['kernel']}:{entry['variant']} {entry['entry']} {entry['arch']}"
                yield Problem("inspect", None, subject, None, entry["problem"])


def _variant(result: Mapping[str, Any]) -> str:
    return f"{result['kernel']}:{result['variant']}"


def _why(result: Mapping[str, Any]) -> str:
    """Why it failed; of each output where the result itself does not say it."""
    outputs = result["outputs"].items()
    told = [f"{name}: {o.get('problem') or 'differs'}" for name, o in outputs if not o["ok"]]
    return result["reason"] or "; ".join(told) or NO_REASON


def _one_line(reason: str) -> str:
    told = "; ".join(line.strip() for line in reason.splitlines())
    return told if len(told) <= _SHOWN_CHARACTERS else f"{told[:_SHOWN_CHARACTERS]}..."
