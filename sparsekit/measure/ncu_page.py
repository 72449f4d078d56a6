"""Reading ncu's raw page as CSV: a row of names, a row of units, a row per launch."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsekit.errors import SparsekitError
from sparsekit.measure.metrics import Metric
from sparsekit.model.profile import Count

_KERNEL, _ID = "Kernel Name", "ID"
# Of every unit that ncu writes for our metrics, in ours: seconds, bytes, plain numbers.
_UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
    "s": 1.0, "second": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12,
}  # fmt: skip


class Unreadable(SparsekitError):
    """Text that is not ncu's raw page."""


@dataclass(frozen=True)
class ProfiledLaunch:
    """One launch. figures: by ncu's name, in seconds, bytes or plain numbers."""

    entry: str
    figures: Mapping[str, float]


def read_raw_page(text: str) -> list[ProfiledLaunch]:
    """The launches of a raw page; lines before its header are ncu's and the program's talk.

    A cell that is empty or no number is left out. Raises Unreadable where there is no header.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        raise Unreadable(f"no raw page of ncu: {' '.join(text.split())[-200:] or 'it is empty'}")
    table = [row for row in csv.reader(io.StringIO("\n".join(lines[start:]))) if row]
    header, rest = table[0], table[1:]
    units = dict(zip(header, rest[0], strict=False)) if rest and not rest[0][0] else {}
    rows = rest[1:] if units else rest
    return [_launch(header, units, row) for row in rows if len(row) == len(header)]


def _is_header(line: str) -> bool:
    names = next(csv.reader([line]), [])
    return _ID in names and _KERNEL in names


def _launch(header: Sequence[str], units: Mapping[str, str], row: Sequence[str]) -> ProfiledLaunch:
    cells = dict(zip(header, row, strict=True))
    figures: dict[str, float] = {}
    for name, cell in cells.items():
        if "__" not in name:
            continue
        try:
            figures[name] = float(cell.replace(",", "")) * _UNITS.get(units.get(name, ""), 1.0)
        except ValueError:
            continue  # n/a: this launch has no such figure
    return ProfiledLaunch(cells[_KERNEL], figures)


def joined(
    launches: Sequence[ProfiledLaunch], metrics: Mapping[str, Metric]
) -> tuple[dict[str, Count], dict[str, float]]:
    """Counts of one call by our names, and stalls in percent of all, by reason.

    Figures of several launches are added, or averaged by the launches' durations.
    """
    duration = metrics.get("duration_s")
    weights = [x.figures.get(duration.name, 0.0) if duration else 0.0 for x in launches]
    if not any(weights):
        weights = [1.0] * len(launches)
    figures: dict[str, float] = {}
    for name, metric in metrics.items():
        found = [(x.figures[metric.name], w) for x, w in zip(launches, weights, strict=True)
                 if metric.name in x.figures]  # fmt: skip
        total = sum(w for _, w in found)
        if not found:
            continue
        if metric.joined == "added":
            figures[name] = sum(value for value, _ in found)
        elif total:
            figures[name] = sum(value * w for value, w in found) / total
    stalls = {n.removeprefix("stall "): v for n, v in figures.items() if n.startswith("stall ")}
    whole = sum(stalls.values())
    shares = {n.replace("_", " "): 100 * v / whole for n, v in stalls.items()} if whole else {}
    counts = {
        name: Count(value, "measured")
        for name, value in figures.items()
        if not name.startswith("stall ")
    }
    return counts, shares
