"""How far outputs lie from float64, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsekit.report.bench import short_label
from sparsekit.report.document import Cell, Lines, Table


def accuracy_of(op: str, results: Sequence[Mapping[str, Any]]) -> list[Table | Lines]:
    """A table of one op's cases, beside the first label's distances, and the most of each."""
    several = len({r["arch"] for r in results}) > 1
    distances: dict[tuple[str, str], dict[str, float]] = {}
    for r in results:
        label = short_label(f"{r['kernel']}:{r['variant']}", op)
        label += f" {r['arch']}" if several else ""
        for output, check in r["outputs"].items():
            if check["max_abs"] is not None:
                distances.setdefault((r["case"], output), {})[label] = check["max_abs"]
    labels = list(dict.fromkeys(label for found in distances.values() for label in found))
    if not labels:
        return []
    base = labels[0]
    rows: list[tuple[Cell, ...]] = [
        (case, output, *(_distance(found, label, base) for label in labels))
        for (case, output), found in distances.items()
    ]
    columns = ("case", "output", *labels)
    told = f"Largest distance from float64; in parentheses, over that of {base}."
    return [
        Table(f"{op}: accuracy", columns, rows, frozenset(labels)),
        Lines((told, *_coarsest(distances, labels, base))),
    ]


def _distance(found: Mapping[str, float], label: str, base: str) -> str | None:
    if label not in found:
        return None
    if label == base or not found.get(base):
        return f"{found[label]:.3g}"
    return f"{found[label]:.3g} ({found[label] / found[base]:.2f})"


def _coarsest(
    distances: Mapping[tuple[str, str], Mapping[str, float]], labels: Sequence[str], base: str
) -> list[str]:
    """For each output, the largest ratio of each variant to the base, with its case."""
    told = []
    for output in dict.fromkeys(output for _, output in distances):
        worst: dict[str, tuple[float, str]] = {}
        for (case, of), found in distances.items():
            for label in labels:
                if of == output and label != base and label in found and found.get(base):
                    ratio = (found[label] / found[base], case)
                    worst[label] = max(worst.get(label, ratio), ratio)
        if worst:
            most = ", ".join(f"{k} {r:.2f} ({case})" for k, (r, case) in worst.items())
            told.append(f"The most for {output}: {most}.")
    return told
