"""Toolchains side by side: which cell of a row is the worst, and where code got bad for the first
time.

Worse is any fact in its bad direction. Bad is what users feel: loads that lost a quarter of their
width, stores or loops that lost half of what they move at a time, new spills, twice the registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsekit.codegen.facts import Fact, facts_of
from sparsekit.codegen.finding import Finding
from sparsekit.codegen.ledger import Ledger
from sparsekit.model.toolchain import version_tuple

_Facts = Mapping[str, Fact]
# Fact -> now / before from which on it is bad, and the same for what should be small.
_SMALLER_IS_BAD = {
    "gather.min_bytes": 0.75, "gather.mean_bytes": 0.75, "load.min_bytes": 0.75,
    "load.mean_bytes": 0.75,
    "store.mean_bytes": 0.5, "loops.max_load_bytes": 0.5, "loops.min_load_bytes": 0.5,
}  # fmt: skip
_LARGER_IS_BAD = {"registers": 2.0}
_SPILLS = "spills"


@dataclass(frozen=True)
class Row:
    """One entry under each toolchain. cells: None where the toolchain has no such target. worst:
    the toolchains with the worst code where it is bad; first_bad: the first release that is bad
    against the oldest one, and why."""

    cells: Mapping[str, Ledger | None]
    worst: tuple[str, ...]
    first_bad: str | None
    reasons: tuple[str, ...]

    @property
    def some(self) -> Ledger:
        return next(ledger for ledger in self.cells.values() if ledger is not None)


def bad(before: _Facts, now: _Facts) -> tuple[str, ...]:
    """What is bad now against before, `gather.min_bytes 16 -> 2`."""
    found: list[str] = []
    for name, limit in _SMALLER_IS_BAD.items():
        ratio = _ratio(before, now, name)
        if ratio is not None and ratio <= limit:
            found.append(name)
    for name, limit in _LARGER_IS_BAD.items():
        ratio = _ratio(before, now, name)
        if ratio is not None and ratio >= limit:
            found.append(name)
    old, new = before.get(_SPILLS), now.get(_SPILLS)
    if isinstance(old, int) and isinstance(new, int) and new > old:
        found.append(_SPILLS)
    return tuple(f"{name} {_told(before[name])} -> {_told(now[name])}" for name in found)


def _ratio(before: _Facts, now: _Facts, name: str) -> float | None:
    old, new = before.get(name), now.get(name)
    if isinstance(old, str) or isinstance(new, str) or not old or new is None:
        return None
    return new / old


def _told(value: Fact) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows(ledgers: Sequence[Ledger]) -> tuple[list[str], list[Row]]:
    """The toolchains, oldest first, and a row for each kernel, variant, instance, entry and arch
    in the order of the ledgers."""
    toolchains = sorted({e.name.toolchain for e in ledgers}, key=_release)
    grouped: dict[tuple[str, ...], dict[str, Ledger]] = {}
    for ledger in ledgers:
        name = ledger.name
        family = _family(name.toolchain)
        row = (family, name.kernel, name.variant, name.instance, name.entry, name.arch)
        grouped.setdefault(row, {})[name.toolchain] = ledger
    found = []
    for (family, *_), cells in grouped.items():
        columns = [t for t in toolchains if _family(t) == family]
        found.append(_row({t: cells.get(t) for t in columns}))
    return toolchains, found


def are_side_by_side(ledgers: Sequence[Ledger]) -> bool:
    """Whether there is more than one release of a compiler among them."""
    toolchains = {e.name.toolchain for e in ledgers}
    return len({_family(t) for t in toolchains}) < len(toolchains)


def _family(toolchain: str) -> str:
    return toolchain.partition("-")[0]


def _release(toolchain: str) -> tuple[str, tuple[int, ...]]:
    family, _, version = toolchain.partition("-")
    return family, version_tuple(version)


def _row(cells: Mapping[str, Ledger | None]) -> Row:
    facts = {t: facts_of(ledger) for t, ledger in cells.items() if ledger is not None}
    oldest = next(iter(facts.values()))
    first_bad = next(((t, why) for t, now in facts.items() if (why := bad(oldest, now))), None)
    cost = {t: _cost(now) for t, now in facts.items()}
    best, worst = min(cost, key=cost.__getitem__), max(cost, key=cost.__getitem__)
    return Row(
        cells,
        tuple(t for t in cost if cost[t] == cost[worst]) if bad(facts[best], facts[worst]) else (),
        first_bad[0] if first_bad else None,
        first_bad[1] if first_bad else (),
    )


def _cost(facts: _Facts) -> float:
    """How bad code is, in doublings: narrow and few loads, many registers, spills."""
    cost = 0.0
    for name in _SMALLER_IS_BAD:
        cost -= math.log2(_number(facts, name) or 1.0)
    for name in _LARGER_IS_BAD:
        cost += math.log2(_number(facts, name) or 1.0)
    return cost + math.log2(1.0 + _number(facts, _SPILLS))


def _number(facts: _Facts, name: str) -> float:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def regression_findings(found: Sequence[Row]) -> list[Finding]:
    """The first bad release of each row that has one, as warnings."""
    findings = []
    for row in found:
        ledger = row.cells.get(row.first_bad or "")
        if ledger is not None:
            message = f"first bad {row.first_bad}: {', '.join(row.reasons)}"
            findings.append(Finding("regression", "warning", ledger.name, message, ledger.source))
    return findings
