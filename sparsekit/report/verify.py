"""What `sparsekit verify` reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sparsekit.model.results import VerifyResult
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.emulation import (
    coverage_data,
    coverage_parts,
    finding_lines,
    merged_coverage,
)
from sparsekit.report.units import place_of

_COLUMNS = (
    "kernel", "variant", "against", "arch", "toolchain", "cases", "runs", "ok", "failed", "skipped",
    "max abs", "max rel", "max ulp",
)  # fmt: skip
_RIGHT = frozenset({"cases", "runs", "ok", "failed", "skipped", "max abs", "max rel", "max ulp"})


def verify_document(
    results: Sequence[VerifyResult],
    environment: Mapping[str, Any],
    inputs_sha256: str | None = None,
) -> Document:
    """A row per kernel variant and counterpart, every failure in full, skips counted by reason."""
    groups: dict[tuple[str, ...], list[VerifyResult]] = {}
    emulated = bool(environment.get("emulated"))
    for result in results:
        key = (result.kernel, result.variant, result.against)
        groups.setdefault((*key, result.arch or "") if emulated else key, []).append(result)
    parts: list[Table | Lines] = [
        Table(
            f"on {place_of(environment)}",
            _COLUMNS,
            [_row(k, group) for k, group in groups.items()],
            _RIGHT,
        )
    ]
    parts += [_failure(r) for r in results if r.ok is False]
    coverage = merged_coverage(results)
    parts += coverage_parts(coverage)
    if skips := _skips(results):
        parts.append(Table("Skipped", ("count", "reason"), skips, frozenset({"count"})))
    parts.append(Lines(tuple(_summary(results).splitlines())))
    data: dict[str, Any] = {
        "schema": 1, "kind": "verify", "environment": dict(environment),
        "inputs_sha256": inputs_sha256, "results": [_told(r) for r in results],
        "coverage": coverage_data(coverage),
    }  # fmt: skip
    return Document(data, tuple(parts))


def _told(result: VerifyResult) -> dict[str, Any]:
    """Its coverage without the lines of blocks: those that no case reached are told once."""
    coverage = [
        {"key": c.key, "instance": c.instance, "entry": c.entry, "blocks": c.blocks,
         "executed": c.blocks - len(c.uncovered)}
        for c in result.coverage
    ]  # fmt: skip
    return {**asdict(replace(result, coverage=())), "coverage": coverage}


def _row(key: tuple[str, ...], group: Sequence[VerifyResult]) -> tuple[Any, ...]:
    ran = [r for r in group if not r.skipped]
    checks = [c for r in ran for c in r.outputs.values()]
    return (
        *key[:3],
        ", ".join(dict.fromkeys(r.arch for r in ran if r.arch)) or None,
        ", ".join(dict.fromkeys(r.toolchain for r in ran if r.toolchain)) or None,
        len(group),
        sum(r.runs for r in ran),
        sum(r.ok is True for r in ran),
        sum(r.ok is False for r in ran),
        sum(r.skipped for r in group),
        max((c.max_abs for c in checks if c.max_abs is not None), default=None),
        max((c.max_rel for c in checks if c.max_rel is not None), default=None),
        max((c.max_ulp for c in checks if c.max_ulp is not None), default=None),
    )


def _failure(result: VerifyResult) -> Lines:
    place = f" {result.arch}" if result.schedules and result.arch else ""
    title = (
        f"FAILED {result.kernel}:{result.variant}{place} against {result.against}, "
        f"case {result.case}"
    )
    lines = [
        f"{name}: {c.problem} (max abs {c.max_abs:.3g}, rel {c.max_rel:.3g}, ulp {c.max_ulp})"
        if c.max_abs is not None and c.max_rel is not None
        else f"{name}: {c.problem}"
        for name, c in result.outputs.items()
        if not c.ok
    ]
    if result.reason and not (lines and result.reason in lines):
        lines = [result.reason, *lines] if not lines or result.findings else lines
    lines += [
        f"{name}: elements by ulp: {', '.join(f'{k}: {n}' for k, n in c.ulp_histogram.items())}"
        for name, c in result.outputs.items()
        if not c.ok and c.ulp_histogram
    ]
    return Lines((*lines, *finding_lines(result.findings)) or ("no reason given",), title)


def _skips(results: Sequence[VerifyResult]) -> list[tuple[Any, ...]]:
    counted: dict[str, int] = {}
    for result in results:
        if result.skipped:
            reason = (result.reason or "").replace("\n", "; ")
            counted[reason] = counted.get(reason, 0) + 1
    return [(count, reason) for reason, count in counted.items()]


def _summary(results: Sequence[VerifyResult]) -> str:
    ok, failed = sum(r.ok is True for r in results), sum(r.ok is False for r in results)
    runs, skipped = sum(r.runs for r in results), sum(r.skipped for r in results)
    cases = len({r.case for r in results})
    text = f"{cases} cases, {runs} launches: {ok} ok, {failed} failed, {skipped} skipped"
    if reused := sum(r.reused for r in results):
        launches = sum(r.launches for r in results)
        text += (
            f"\nof {launches} emulated launches {launches - reused} ran; {reused} have the same "
            "PTX, but for its header, and the same data as one of those"
        )
    return text
