"""The sections of a report that show what `verify` found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparsekit.model.results import FLOAT64
from sparsekit.report.accuracy import accuracy_of
from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.emulation import emulated_parts
from sparsekit.report.gpus import are_several, on_gpu_text, with_gpus
from sparsekit.report.stored import Stored, Wanted, verify_results

Part = Table | Lines
Result = Mapping[str, Any]
_BATCHES = re.compile(r"in batches of [\d, ]+")


def checks(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What was verified, per variant and counterpart, and how much of it is bit for bit."""
    results = verify_results(stored, wanted)
    if not results:
        return []
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for gpu, r in results:
        against = _BATCHES.sub("in other batches", r["against"])
        groups.setdefault((f"{r['kernel']}:{r['variant']}", against, gpu), []).append(r)
    ordered = sorted(groups.items())
    rows: list[tuple[Cell, ...]] = [
        (
            name, against, len({r["case"] for r in own if not r["skipped"]}),
            sum(r["runs"] for r in own), sum(r["ok"] is True for r in own),
            sum(r["ok"] is False for r in own), sum(r["skipped"] for r in own),
        )
        for (name, against, _), own in ordered
    ]  # fmt: skip
    columns = ("variant", "against", "cases", "launches", "ok", "failed", "skipped")
    table = Table("Checks", columns, rows, frozenset(columns[2:]))
    gpus = [gpu for (_, _, gpu), _ in ordered]
    return [with_gpus(table, gpus, are_several(gpus), at=2), Lines(tuple(_bitwise(results)))]


def _bitwise(results: Sequence[tuple[str, Result]]) -> Iterator[str]:
    gpus = dict.fromkeys(gpu for gpu, _ in results)
    for gpu in gpus:
        own = [r for of, r in results if of == gpu]
        compared = [r for r in own if r["against"] != FLOAT64 and not r["skipped"]]
        tensors = sum(len(r["outputs"]) for r in compared)
        same = sum(c["ok"] for r in compared for c in r["outputs"].values())
        yield (
            f"Bit for bit{on_gpu_text(gpu, len(gpus) > 1)}: "
            f"{sum(r['ok'] is True for r in compared)} of {len(compared)} comparisons, "
            f"{same} of {tensors} tensors."
        )


def accuracy(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """How far outputs lie from float64, per case; each variant beside the first one's."""
    results = [
        (gpu, r)
        for gpu, r in verify_results(stored, wanted)
        if r["against"] == FLOAT64 and not r["skipped"]
    ]
    several = are_several(gpu for gpu, _ in results)
    parts: list[Part] = []
    for op in dict.fromkeys(r["op"] for _, r in results):
        parts += accuracy_of(op, [(gpu, r) for gpu, r in results if r["op"] == op], several)
    return parts


def emulated(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What was verified on the CPU, by schedules, and whether variants gave the same bits."""
    emulations = [file for file in stored if file.environment.get("emulated")]
    return list(emulated_parts([r for _, r in verify_results(emulations, wanted)]))
