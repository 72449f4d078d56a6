"""The sections of a report that show what `bench` timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sparsekit.model.bench import BenchResult
from sparsekit.report.bench import (
    PROBLEM,
    case_names,
    conditions_table,
    other_bits,
    rates_table,
    short_label,
    times_table,
)
from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.gpus import are_several, with_gpus
from sparsekit.report.stored import Stored, Wanted, bench_results
from sparsekit.report.units import format_time

Part = Table | Lines
_LEAST_TFLOPS = 1.0  # below it a rate says nothing of the tensor cores


def overview(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """One row per case: every candidate's time, and the TFLOP/s of the fastest."""
    results = [r for r in bench_results(stored, wanted) if r.timings]
    if not results:
        return []
    several = are_several(r.op for r in results)
    columns = (*(["op"] if several else []), "case", "times", "TFLOP/s")
    rows: list[tuple[Cell, ...]] = [
        (*([r.op] if several else []), case, _times(r), _best_rate(r))
        for r, case in zip(results, case_names(results), strict=True)
    ]
    gpus = [r.gpu for r in results]
    table = Table("", columns, rows, frozenset({"TFLOP/s"}))
    return [with_gpus(table, gpus, are_several(gpus), columns.index("times"))]


def _times(result: BenchResult) -> str:
    told = []
    for t in result.timings:
        text = t.untimed if t.time_s is None else format_time(t.time_s)
        mark = f" ({PROBLEM})" if t.problem and t.time_s is not None else ""
        told.append(f"{short_label(t.label, result.op)} {text}{mark}")
    return ", ".join(told)


def _best_rate(result: BenchResult) -> str:
    best = max((t.tflops for t in result.timings if t.tflops is not None), default=0.0)
    return f"{best:.0f}" if best >= _LEAST_TFLOPS else ""


def times(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """Per op, a column per candidate and its ratio to the base; then whose bits are others."""
    return _per_op(
        stored, wanted,
        lambda own, op, several: [
            times_table(own, f"{op}: time per call", several), *other_bits(own, several)
        ],
    )  # fmt: skip


def rates(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    return _per_op(
        stored, wanted, lambda own, op, several: [rates_table(own, f"{op}: rates", several)]
    )


def _per_op(
    stored: Sequence[Stored], wanted: Wanted,
    made: Callable[[Sequence[BenchResult], str, bool], Iterable[Part]],
) -> list[Part]:  # fmt: skip
    results = [r for r in bench_results(stored, wanted) if r.timings]
    several = are_several(r.gpu for r in results)
    ops = dict.fromkeys(r.op for r in results)
    return [part for op in ops for part in made([r for r in results if r.op == op], op, several)]


def conditions(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    results = [r for r in bench_results(stored, wanted) if r.mode]
    return [conditions_table(results, are_several(r.gpu for r in results))] if results else []
