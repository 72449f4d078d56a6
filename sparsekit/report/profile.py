"""What `sparsekit profile` reports: counts of A and B with their ratio, stalls, a roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sparsekit.model.bench import Ceilings
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.report.document import Cell, Document, Lines, Table
from sparsekit.report.gpus import are_several, on_gpu_text
from sparsekit.report.roof import Point, Roof
from sparsekit.report.roof_text import drawn

# Names of counts with what a reader calls them; the order is that of the table.
TITLES = {
    "duration_s": "duration, us",
    "tensor_cycles": "tensor pipe busy cycles per SM, its pipes together",
    "tensor_percent": "tensor pipe busy, %",
    "dram_read_bytes": "DRAM read, MB",
    "dram_write_bytes": "DRAM written, MB",
    "l2_bytes": "L2, MB",
    "global_loads": "SASS global load instructions",
    "cp_async": "cp.async instructions",
    "tma_loads": "TMA load instructions",
    "bank_conflicts": "shared bank conflicts",
    "occupancy_percent": "achieved occupancy, %",
    "registers": "registers",
    "shared_bytes": "shared bytes",
    "spill_bytes": "spill bytes",
}
_SCALES = {"duration_s": 1e6, "dram_read_bytes": 1e-6, "dram_write_bytes": 1e-6, "l2_bytes": 1e-6}
_SHOWN_STALLS = 6
_LEAST_STALL_PERCENT = 1.0


def profile_document(
    results: Sequence[ProfileResult], environment: Mapping[str, Any],
    ceilings: Ceilings | None,
) -> Document:  # fmt: skip
    parts = profile_parts(results)
    if ceilings and (figure := drawn(roofline_points(results), Roof(ceilings))):
        parts.append(Lines(figure, "Roofline", code=True))
    data = {
        "schema": 1, "kind": "profile", "environment": dict(environment),
        "ceilings": asdict(ceilings) if ceilings else None,
        "results": [r.to_json() for r in results],
    }  # fmt: skip
    return Document(data, tuple(parts))


def roofline_points(results: Sequence[ProfileResult]) -> list[Point]:
    """A point for each candidate whose FLOP and time are known."""
    return [Point(*placed, placed[0]) for r in results if (placed := r.roofline_point)]


def profile_parts(results: Sequence[ProfileResult]) -> list[Table | Lines]:
    """A table of counts per case and GPU, the stalls, and what could not be counted, and why."""
    several = are_several(r.gpu for r in results)
    parts: list[Table | Lines] = []
    for op, case, gpu in dict.fromkeys((r.op, r.case, r.gpu) for r in results):
        own = [r for r in results if (r.op, r.case, r.gpu) == (op, case, gpu)]
        where = on_gpu_text(gpu, several)
        parts.append(_counts(own, f"{op} {case}{where}: one launch after 5 warm-ups"))
        stalled = [r for r in own if r.stalls]
        if stalled:
            parts.append(_stalls(stalled, where))
    remarks = []
    for r in results:
        label = r.label + on_gpu_text(r.gpu, several)
        remarks += [f"{label}: {r.problem}"] if r.problem else []
        remarks += [f"{label}: no {', '.join(r.dropped)} here"] if r.dropped else []
        remarks += [f"{label}: {r.report} holds it all"] if r.report else []
    if remarks:
        parts.append(Lines(tuple(dict.fromkeys(remarks))))
    return parts


def _counts(results: Sequence[ProfileResult], title: str) -> Table:
    labels = [r.label for r in results]
    base, *others = results
    columns = ("count", *labels, *(f"{r.label} / {base.label}" for r in others), "how")
    rows: list[tuple[Cell, ...]] = []
    for name, what in TITLES.items():
        found = [r.counts.get(name) for r in results]
        if not any(found):
            continue
        sources = " and ".join(dict.fromkeys(c.source for c in found if c))
        ratios = [_ratio(count, found[0]) for count in found[1:]]
        rows.append((what, *(_shown(name, c) for c in found), *ratios, sources))
    return Table(title, columns, rows, frozenset(columns[1:-1]))


def _shown(name: str, count: Count | None) -> str | None:
    if count is None:
        return None
    value = count.value * _SCALES.get(name, 1.0)
    return f"{value:.0f}" if value == int(value) or value >= 10_000 else f"{value:.4g}"


def _ratio(count: Count | None, base: Count | None) -> str | None:
    if count is None or base is None or base.value == 0:
        return None
    return f"{count.value / base.value:.3f}"


def _stalls(results: Sequence[ProfileResult], where: str) -> Table:
    totals = {
        name: max(r.stalls.get(name, 0) for r in results) for r in results for name in r.stalls
    }
    largest = sorted(totals, key=lambda n: -totals[n])[:_SHOWN_STALLS]
    rows: list[tuple[Cell, ...]] = [
        (name, *(f"{r.stalls[name]:.1f}" if name in r.stalls else None for r in results))
        for name in largest
        if totals[name] >= _LEAST_STALL_PERCENT
    ]
    labels = tuple(r.label for r in results)
    title = f"Stalls{where}, % of a warp's cycles per instruction"
    return Table(title, ("reason", *labels), rows, frozenset(labels))
