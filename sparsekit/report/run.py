"""What `sparsekit run` reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparsekit.check.runs import RunResult
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.units import format_bytes, format_seconds, place_of


def run_document(
    result: RunResult,
    environment: Mapping[str, Any],
    inputs_sha256: str | None,
    *,
    explain: bool,
) -> Document:
    """The launch, its time, the outputs in summary, and the decisions where they are asked for."""
    chosen = f"{result.candidate} {result.toolchain}" if result.candidate else "nothing to compute"
    lines = [
        f"{result.op}, case {result.case}, on {place_of(environment)}",
        f"kernel: {chosen}",
        f"time: {format_seconds(result.time_s)} (median of warm event timings)"
        if result.time_s is not None
        else "time: not measured, the kernel was emulated"
        if result.launches
        else "time: nothing was launched",
    ]
    lines += [f"inputs sha256: {inputs_sha256}"] if inputs_sha256 else []
    parts: list[Table | Lines] = [Lines(tuple(lines))]
    if result.launches:
        columns = ("entry", "grid", "threads", "cluster", "shared", "registers")
        rows: list[tuple[Any, ...]] = [
            (
                x.entry,
                _dims(x.grid),
                x.threads,
                _dims(x.cluster),
                format_bytes(x.shared_bytes),
                x.registers,
            )
            for x in result.launches
        ]
        parts.append(
            Table("Launches", columns, rows, frozenset({"threads", "shared", "registers"}))
        )
    parts.append(_outputs(result))
    if explain:
        rows = [
            ("taken" if d.taken else "passed over", d.subject, d.reason) for d in result.decisions
        ]
        parts.append(Table("Decisions", ("", "candidate", "reason"), rows))
    data = {
        "schema": 1, "kind": "run", "op": result.op, "case": result.case,
        "environment": dict(environment),
        "inputs_sha256": inputs_sha256,
        "kernel": str(result.candidate) if result.candidate else None,
        "toolchain": result.toolchain, "key": result.key, "time_s": result.time_s,
        "launches": [asdict(x) for x in result.launches],
        "outputs": [asdict(s) for s in result.summaries],
        "decisions": [
            {"candidate": d.subject, "taken": d.taken, "reason": d.reason} for d in result.decisions
        ],
    }  # fmt: skip
    return Document(data, tuple(parts))


def _outputs(result: RunResult) -> Table:
    columns = ("output", "type", "shape", "min", "max", "mean", "NaN", "inf", "sha256")
    rows = [
        (
            s.name,
            s.dtype,
            _dims(s.shape),
            s.least,
            s.largest,
            s.mean,
            s.nan_count,
            s.inf_count,
            s.sha256,
        )
        for s in result.summaries
    ]
    return Table("Outputs", columns, rows, frozenset({"min", "max", "mean", "NaN", "inf"}))


def _dims(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else "x".join(map(str, sizes)) or "scalar"
