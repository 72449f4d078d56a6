"""The sections of a report, each from the results of its kind: pure, to tables and lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsekit.errors import UsageError
from sparsekit.model.bench import BenchResult
from sparsekit.model.results import FLOAT64
from sparsekit.report.accuracy import accuracy_of
from sparsekit.report.bench import (
    case_names,
    conditions_table,
    rates_table,
    short_label,
    times_table,
)
from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.emulation import emulated_parts
from sparsekit.report.on_gpu import control, emulator, rows, tried
from sparsekit.report.profile import profile_parts
from sparsekit.report.stored import Stored, Wanted, bench_results, of_kind, profile_results
from sparsekit.report.units import format_time, widths_text

Part = Table | Lines
_BATCHES = re.compile(r"in batches of [\d, ]+")
_LEAST_TFLOPS = 1.0  # below it a rate says nothing of the tensor cores


def machine(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """GPU, driver, power limit and versions, once for each that differs."""
    told: list[str] = []
    for file in stored:
        found = file.environment
        if not found.get("gpu"):
            continue
        versions = found.get("versions") or {}
        told.append(
            f"{found['gpu']}, driver {found.get('driver_version')}, {found.get('power.limit')} "
            f"limit; Triton {versions.get('triton')}, NVRTC {versions.get('nvidia-cuda-nvrtc')}, "
            f"torch {versions.get('torch')}."
        )
    return [Lines(tuple(dict.fromkeys(told)))] if told else []


def resources(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """Registers, spills, shared bytes and load widths of every entry that was inspected."""
    columns = (
        "kernel", "variant", "arch", "toolchain", "entry", "regs", "spills", "shared", "PTX loads",
        "SASS loads and stores",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            e["kernel"], e["variant"], e["arch"], e["toolchain"], e["entry"], e["registers"],
            e["spill_store_bytes"], e["shared_bytes"], widths_text(e["ptx_loads"]),
            widths_text(e["sass_loads"]),
        )
        for file in of_kind(stored, "inspect")
        for e in file.data["entries"]
    ]  # fmt: skip
    right = frozenset({"regs", "spills", "shared"})
    return [Table("Resources and load widths", columns, rows, right)] if rows else []


def checks(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What was verified, per variant and counterpart, and how much of it is bit for bit."""
    results = [
        r
        for file in of_kind(stored, "verify")
        for r in file.data["results"]
        if wanted.takes(r["op"], r["case"])
    ]
    if not results:
        return []
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for r in results:
        against = _BATCHES.sub("in other batches", r["against"])
        name = f"{r['kernel']}:{r['variant']}"
        groups.setdefault((name, against), []).append(r)
    rows = [
        (
            name, against, len({r["case"] for r in own if not r["skipped"]}),
            sum(r["runs"] for r in own), sum(r["ok"] is True for r in own),
            sum(r["ok"] is False for r in own),
        )
        for (name, against), own in sorted(groups.items())
    ]  # fmt: skip
    columns = ("variant", "against", "cases", "launches", "ok", "failed")
    return [
        Table("Checks", columns, rows, frozenset(columns[2:])),
        Lines((_bitwise(results),)),
    ]


def _bitwise(results: Sequence[Mapping[str, Any]]) -> str:
    compared = [r for r in results if r["against"] != FLOAT64 and not r["skipped"]]
    tensors = sum(len(r["outputs"]) for r in compared)
    same = sum(c["ok"] for r in compared for c in r["outputs"].values())
    return (
        f"Bit for bit: {sum(r['ok'] is True for r in compared)} of {len(compared)} comparisons, "
        f"{same} of {tensors} tensors."
    )


def accuracy(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """How far outputs lie from float64, per case; each variant beside the first one's."""
    results = [
        r
        for file in of_kind(stored, "verify")
        for r in file.data["results"]
        if r["against"] == FLOAT64 and not r["skipped"] and wanted.takes(r["op"], r["case"])
    ]
    ops = dict.fromkeys(r["op"] for r in results)
    return [part for op in ops for part in accuracy_of(op, [r for r in results if r["op"] == op])]


def emulated(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What was verified on the CPU, by schedules, and whether variants gave the same bits."""
    results = [
        r
        for file in of_kind(stored, "verify")
        if file.environment.get("emulated")
        for r in file.data["results"]
        if wanted.takes(r["op"], r["case"])
    ]
    return list(emulated_parts(results))


def sanitizer(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What compute-sanitizer reported of the kernels, and whether it saw the planted faults."""
    findings = [f for file in of_kind(stored, "sanitizer") for f in file.data["findings"]]
    if not findings:
        return []
    clean = [f for f in findings if not f["expected"]]
    planted = [f for f in findings if f["expected"]]
    tools = ", ".join(dict.fromkeys(f["tool"] for f in clean))
    return [Lines((
        f"compute-sanitizer ({tools}) over {len({f['subject'] for f in clean})} ops: "
        f"{sum(f['reports'] for f in clean)} reports; of {len(planted)} kernels with a planted "
        f"fault it misses {sum(not f['ok'] for f in planted)}.",
    ))]  # fmt: skip


def overview(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """One row per case: every candidate's time, and the TFLOP/s of the fastest."""
    results = [r for r in bench_results(stored, wanted) if r.timings]
    if not results:
        return []
    several = len({r.op for r in results}) > 1
    columns = (*(["op"] if several else []), "case", "times", "TFLOP/s")
    rows: list[tuple[Cell, ...]] = [
        (*([r.op] if several else []), case, _times(r), _best_rate(r))
        for r, case in zip(results, case_names(results), strict=True)
    ]
    return [Table("", columns, rows, frozenset({"TFLOP/s"}))]


def _times(result: BenchResult) -> str:
    names = [short_label(t.label, result.op) for t in result.timings]
    told = [t.untimed if t.time_s is None else format_time(t.time_s) for t in result.timings]
    return ", ".join(f"{name} {time}" for name, time in zip(names, told, strict=True))


def _best_rate(result: BenchResult) -> str:
    best = max((t.tflops for t in result.timings if t.tflops is not None), default=0.0)
    return f"{best:.0f}" if best >= _LEAST_TFLOPS else ""


def times(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """Per op, a column per candidate and its ratio to the base."""
    return _per_op(stored, wanted, times_table, "time per call")


def rates(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    return _per_op(stored, wanted, rates_table, "rates")


def _per_op(
    stored: Sequence[Stored], wanted: Wanted,
    table: Callable[[Sequence[BenchResult], str], Table], what: str,
) -> list[Part]:  # fmt: skip
    results = [r for r in bench_results(stored, wanted) if r.timings]
    ops = dict.fromkeys(r.op for r in results)
    return [table([r for r in results if r.op == op], f"{op}: {what}") for op in ops]


def conditions(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    results = [r for r in bench_results(stored, wanted) if r.mode]
    return [conditions_table(results)] if results else []


def profile(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    return list(profile_parts(profile_results(stored, wanted)))


def footer(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """Where each file was made and by what, and the digest of its samples."""
    columns = (
        "command", "commit", "GPU", "driver", "SM clock", "Triton", "NVRTC", "ptxas", "time",
        "how", "sha256 of the samples",
    )  # fmt: skip
    rows = [_made(file) for file in stored if file.environment]
    return [Table("Made by", columns, rows)] if rows else []


def _made(file: Stored) -> tuple[Cell, ...]:
    found = file.environment
    versions, commit = found.get("versions") or {}, found.get("commit")
    dirty = " with changes" if found.get("dirty") else ""
    ptxas = "; ".join(dict.fromkeys((found.get("ptxas") or {}).values()))
    clock = found.get("clocks.sm")
    return (
        found.get("command"), f"{commit[:12]}{dirty}" if commit else None, found.get("gpu"),
        found.get("driver_version"), f"{clock} of {found.get('clocks.max.sm')}" if clock else None,
        versions.get("triton"), versions.get("nvidia-cuda-nvrtc"), ptxas or None,
        found.get("time"), file.data.get("said"), file.samples_sha256,
    )  # fmt: skip


SECTIONS: dict[str, Callable[[Sequence[Stored], Wanted], list[Part]]] = {
    "machine": machine, "resources": resources, "checks": checks, "accuracy": accuracy,
    "sanitizer": sanitizer, "emulated": emulated, "emulator": emulator, "control": control,
    "rows": rows, "tried": tried, "overview": overview, "times": times, "rates": rates,
    "conditions": conditions, "profile": profile, "footer": footer,
}  # fmt: skip
# What a page for a pull request shows, in order; the last ones go first when it is too long.
PAGE = (
    "resources", "checks", "emulated", "sanitizer", "emulator", "control", "rows", "times",
    "profile", "rates", "conditions", "footer",
)  # fmt: skip
_EXPENDABLE = ("conditions", "rates")


def parts_of(names: Sequence[str], stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """The sections of those names, in order. Raises UsageError for a name that is none."""
    if unknown := [n for n in names if n not in SECTIONS]:
        raise UsageError(f"no section is called {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return [part for name in names for part in SECTIONS[name](stored, wanted)]


def shortened(names: Sequence[str]) -> tuple[str, ...] | None:
    """The sections without the next one that a page can do without; None when none is left."""
    for name in _EXPENDABLE:
        if name in names:
            return tuple(n for n in names if n != name)
    return None
