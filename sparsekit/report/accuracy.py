"""How far outputs lie from float64, as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparsekit.report.bench import short_label
from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.gpus import are_several, on_gpu_text, with_gpus

Place = tuple[str, str, str]  # case, output, GPU
Distances = Mapping[str, float]  # by label


def accuracy_of(
    op: str, results: Sequence[tuple[str, Mapping[str, Any]]], several: bool
) -> list[Table | Lines]:
    """A table of one op's cases, beside the first label's distances on the same GPU, and the most
    of each. results: each with its GPU; several: whether the page has more than one."""
    distances = _distances(op, results)
    labels = list(dict.fromkeys(label for found in distances.values() for label in found))
    if not labels:
        return []
    base = labels[0]
    rows: list[tuple[Cell, ...]] = [
        (case, output, *(_distance(found, label, base) for label in labels))
        for (case, output, _), found in distances.items()
    ]
    table = Table(f"{op}: accuracy", ("case", "output", *labels), rows, frozenset(labels))
    told = f"Largest distance from float64; in parentheses, over that of {base}."
    return [
        with_gpus(table, [gpu for _, _, gpu in distances], several),
        Lines((told, *_coarsest(distances, labels, base, several))),
    ]


def _distances(
    op: str, results: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[Place, dict[str, float]]:
    """By place, those of one case together; a label names the arch where one GPU has several."""
    archs = {gpu: [r["arch"] for of, r in results if of == gpu] for gpu, _ in results}
    by_arch = any(len(set(found)) > 1 for found in archs.values())
    found: dict[Place, dict[str, float]] = {}
    for gpu, r in results:
        label = short_label(f"{r['kernel']}:{r['variant']}", op)
        label += f" {r['arch']}" if by_arch else ""
        for output, check in r["outputs"].items():
            if check["max_abs"] is not None:
                found.setdefault((r["case"], output, gpu), {})[label] = check["max_abs"]
    if not are_several(archs):
        return found
    order = list(dict.fromkeys((case, output) for case, output, _ in found))
    return dict(sorted(found.items(), key=lambda item: order.index(item[0][:2])))


def _distance(found: Distances, label: str, base: str) -> str | None:
    if label not in found:
        return None
    if label == base or not found.get(base):
        return f"{found[label]:.3g}"
    return f"{found[label]:.3g} ({found[label] / found[base]:.2f})"


def _coarsest(
    distances: Mapping[Place, Distances], labels: Sequence[str], base: str, several: bool
) -> Iterator[str]:
    """For each output and GPU, the largest ratio of each variant to the base, with its case."""
    for output, gpu in dict.fromkeys((output, gpu) for _, output, gpu in distances):
        worst: dict[str, tuple[float, str]] = {}
        for (case, *place), found in distances.items():
            for label in labels:
                if place == [output, gpu] and label != base and label in found and found.get(base):
                    ratio = (found[label] / found[base], case)
                    worst[label] = max(worst.get(label, ratio), ratio)
        if worst:
            most = ", ".join(f"{k} {r:.2f} ({case})" for k, (r, case) in worst.items())
            yield f"The most for {output}{on_gpu_text(gpu, several)}: {most}."
