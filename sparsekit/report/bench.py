"""What `sparsekit bench` reports: times and ratios, rates, and what the GPU was doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sparsekit.model.bench import BenchResult, Ceilings, Interval, Timing
from sparsekit.report.document import Cell, Document, Lines, Table
from sparsekit.report.gpus import on_gpu_text, with_gpus
from sparsekit.report.sound import sound
from sparsekit.report.units import ENDED_EARLY, format_time, surroundings

PROBLEM = "problem"  # in place of a figure that one has made worthless


def bench_document(
    results: Sequence[BenchResult], environment: Mapping[str, Any], *, protocol: str, said: str,
    margin: float, ceilings: Ceilings | None, partial: bool = False,
) -> Document:  # fmt: skip
    """A table of times and one of rates per op, the conditions, and every problem in full.

    said: the protocol in words. margin: of what counts as the same, 0.01 for 1 %. partial: cases
    are still to come, or never came.
    """
    data = {
        "schema": 1, "kind": "bench", "environment": dict(environment), "protocol": protocol,
        "said": said, "margin": margin,
        "ceilings": asdict(ceilings) if ceilings else None,
        "results": [r.to_json() for r in results],
    }  # fmt: skip
    if partial:
        data["partial"] = True
    return Document(data, bench_parts(data, results))


def bench_parts(data: Mapping[str, Any], results: Sequence[BenchResult]) -> tuple[Any, ...]:
    """The tables and lines of a bench document, from its JSON and the results in it."""
    parts: list[Table | Lines] = []
    for op in dict.fromkeys(r.op for r in results):
        own = [sound(r) for r in results if r.op == op and r.timings]
        if own:
            parts.append(times_table(own, f"{op}: time per call"))
            parts.append(rates_table(own, f"{op}: rates"))
    timed = [r for r in results if r.mode]
    if timed:
        parts.append(conditions_table(timed))
    parts += [Lines(tuple(problems), "Problems")] if (problems := _problems(results)) else []
    parts.append(Lines((*_footer(data), *_skipped(results))))
    return tuple(parts)


def case_names(results: Sequence[BenchResult]) -> list[str]:
    """Each result's case; with how it was timed where one GPU timed it in several ways."""
    ways: dict[tuple[str, str, str], set[str]] = {}
    for r in results:
        ways.setdefault((r.gpu, r.op, r.case), set()).add(_way(r))
    return [
        f"{r.case} ({_way(r)})" if len(ways[r.gpu, r.op, r.case]) > 1 else r.case for r in results
    ]


def _way(result: BenchResult) -> str:
    mode = result.mode
    return f"{mode.protocol}, L2 {mode.l2}" if mode else "not timed"


def times_table(results: Sequence[BenchResult], title: str, several: bool = False) -> Table:
    """Rows cases, a column per candidate, then its ratio to the base with the verdict.

    several: whether the page has several GPUs, so that a column names them.
    """
    labels = list(dict.fromkeys(t.label for r in results for t in r.timings))
    bases = {r.base for r in results}
    compared = [x for x in labels if any(_ratio_cell(r, x) is not None for r in results)]
    op = results[0].op
    base = short_label(next(iter(bases)) or "", op) if len(bases) == 1 else "base"
    names = [short_label(x, op) for x in labels]
    ratios = [f"{short_label(x, op)} / {base}" for x in compared]
    rows: list[tuple[Cell, ...]] = [
        (case, *(_time_cell(_timing(r, x)) for x in labels), *(_ratio_cell(r, x) for x in compared))
        for r, case in zip(results, case_names(results), strict=True)
    ]
    table = Table(title, ("case", *names, *ratios), rows, frozenset({*names, *ratios}))
    return with_gpus(table, [r.gpu for r in results], several)


def rates_table(results: Sequence[BenchResult], title: str, several: bool = False) -> Table:
    """TFLOP/s and GB/s of each candidate, and their shares of what this run's GPU reached."""
    columns = (
        "case", "candidate", "toolchain", "TFLOP/s", "of matmul", "GB/s", "of copy", "bits as base",
    )  # fmt: skip
    timed = [
        (r.gpu, case, t)
        for r, case in zip(results, case_names(results), strict=True)
        for t in r.timings
        if t.time_s is not None
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            case, t.label, t.toolchain, PROBLEM if t.problem else _rate(t.tflops),
            _percent(t.matmul_share), _rate(t.gbps), _percent(t.copy_share), t.same_bits,
        )
        for _, case, t in timed
    ]  # fmt: skip
    table = Table(title, columns, rows, frozenset({"TFLOP/s", "of matmul", "GB/s", "of copy"}))
    return with_gpus(table, [gpu for gpu, _, _ in timed], several)


def other_bits(results: Sequence[BenchResult], several: bool = False) -> list[Lines]:
    """Of which candidates the outputs are not bit for bit the base's, in how many cases."""
    told = []
    for gpu, label in dict.fromkeys((r.gpu, t.label) for r in results for t in r.timings):
        own = [t.same_bits for r in results if r.gpu == gpu for t in r.timings if t.label == label]
        known = [same for same in own if same is not None]
        if False in known:
            name = short_label(label, results[0].op) + on_gpu_text(gpu, several)
            told.append(f"{name} in {known.count(False)} of {len(known)} cases")
    return [Lines((f"Other bits than the base: {', '.join(told)}.",))] if told else []


def conditions_table(results: Sequence[BenchResult], several: bool = False) -> Table:
    """How each case was timed, the base against itself, and the state of the GPU."""
    columns = (
        "case", "method", "calls", "L2", "rounds", "A/A", "SM MHz", "W", "°C", "remarks",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for r in results:
        mode = r.mode
        assert mode is not None
        samples = f"{mode.rounds}x{mode.iterations}" if mode.iterations > 1 else str(mode.rounds)
        remarks = "; ".join([*([mode.note] if mode.note else []), *r.cautions])
        rows.append((
            r.case, mode.method, mode.calls, mode.l2, samples,
            _ratio_text(r.control, r.control_interval),
            _range([x.sm_clock_mhz for x in r.readings]), _range([x.power_w for x in r.readings]),
            _range([x.temperature_c for x in r.readings]), remarks or None,
        ))  # fmt: skip
    table = Table("Conditions", columns, rows, frozenset({"calls", "rounds"}))
    return with_gpus(table, [r.gpu for r in results], several)


def short_label(label: str, op: str) -> str:
    """The label without the op's name, which stands in the table's title."""
    return label.removeprefix(f"{op}:")


def _timing(result: BenchResult, label: str) -> Timing | None:
    return next((t for t in result.timings if t.label == label), None)


def _time_cell(timing: Timing | None) -> str | None:
    """`3.017 ms ±0.2 %`: half of the interval's width, in percent of the time."""
    if timing is None:
        return None
    if timing.time_s is None:
        return timing.untimed
    text = format_time(timing.time_s)
    if timing.interval_s is not None:
        half = (timing.interval_s.high - timing.interval_s.low) / 2 / timing.time_s
        text += f" ±{half:.1%}"
    return f"{text}, {PROBLEM}" if timing.problem else text


def _ratio_cell(result: BenchResult, label: str) -> str | None:
    """The ratio with its verdict, or why a sound result has none."""
    timing = _timing(result, label)
    if timing is None or label == result.base:
        return None
    base = _timing(result, result.base or "")
    if timing.problem:
        return PROBLEM
    if base is not None and base.problem:
        return f"base has a {PROBLEM}"
    if timing.ratio is None:
        return None
    return f"{_ratio_text(timing.ratio, timing.ratio_interval)} {timing.verdict or ''}".rstrip()


def _ratio_text(ratio: float | None, interval: Interval | None) -> str | None:
    if ratio is None:
        return None
    return f"{ratio:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")


def _rate(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _range(values: Sequence[float | None]) -> str | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    low, high = f"{min(known):.0f}", f"{max(known):.0f}"
    return low if low == high else f"{low} to {high}"


def _problems(results: Sequence[BenchResult]) -> list[str]:
    return [f"{r.case} {t.label}: {t.problem}" for r in results for t in r.timings if t.problem]


def _skipped(results: Sequence[BenchResult]) -> list[str]:
    return [f"{r.case} skipped: {r.reason}" for r in results if r.reason]


def _footer(data: Mapping[str, Any]) -> list[str]:
    told = [f"on {data['environment'].get('gpu')}; {data['said']}; intervals are 99 % bootstraps"]
    if data.get("partial"):
        told.append(ENDED_EARLY)
    if ceilings := data["ceilings"]:
        told.append(
            f"ceilings in this run: bf16 matmul {ceilings['matmul_tflops']:.0f} TFLOP/s, copy "
            f"{ceilings['copy_gbps']:.0f} GB/s"
        )
    return [*told, *surroundings(data["environment"])]
