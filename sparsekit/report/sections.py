"""The sections of a report, each from the results of its kind: pure, to tables and lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sparsekit.errors import UsageError
from sparsekit.report.checked import accuracy, checks, emulated
from sparsekit.report.document import Cell, Lines, Table
from sparsekit.report.gpus import are_several, on_gpu_text
from sparsekit.report.on_gpu import control, emulator, rows, tried
from sparsekit.report.problems import problems
from sparsekit.report.profile import profile_parts
from sparsekit.report.stored import Stored, Wanted, of_kind, profile_results
from sparsekit.report.timed import conditions, overview, rates, times
from sparsekit.report.units import widths_text

Part = Table | Lines


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


def sanitizer(stored: Sequence[Stored], wanted: Wanted) -> list[Part]:
    """What compute-sanitizer reported of the kernels, and whether it saw the planted faults."""
    told = tuple(_sanitized(of_kind(stored, "sanitizer")))
    return [Lines(told)] if told else []


def _sanitized(files: Sequence[Stored]) -> Iterator[str]:
    gpus = dict.fromkeys(file.gpu for file in files)
    for gpu in gpus:
        findings = [f for file in files if file.gpu == gpu for f in file.data["findings"]]
        clean = [f for f in findings if not f["expected"]]
        planted = [f for f in findings if f["expected"]]
        tools = ", ".join(dict.fromkeys(f["tool"] for f in clean))
        if findings:
            yield (
                f"compute-sanitizer{on_gpu_text(gpu, are_several(gpus))} ({tools}) over "
                f"{len({f['subject'] for f in clean})} ops: {sum(f['reports'] for f in clean)} "
                f"reports; of {len(planted)} kernels with a planted fault it misses "
                f"{sum(not f['ok'] for f in planted)}."
            )


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
    "problems": problems, "machine": machine, "resources": resources, "checks": checks,
    "accuracy": accuracy, "sanitizer": sanitizer, "emulated": emulated, "emulator": emulator,
    "control": control, "rows": rows, "tried": tried, "overview": overview, "times": times,
    "rates": rates, "conditions": conditions, "profile": profile, "footer": footer,
}  # fmt: skip
# What a page for a pull request shows, in order; the last ones go first when it is too long.
PAGE = (
    "problems", "resources", "checks", "emulated", "sanitizer", "emulator", "control", "rows",
    "times", "profile", "rates", "conditions", "footer",
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
