"""What `sparsekit build` reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsekit.aot.execute import Outcome
from sparsekit.aot.plan import Refusal
from sparsekit.kernel_folders import Broken
from sparsekit.model.artifact import CompileJob, EntryRecord, Manifest
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.units import format_bytes

_COLUMNS = (
    "kernel", "variant", "instance", "arch", "toolchain", "regs", "spills", "shared", "size",
    "seconds", "status",
)  # fmt: skip
_RIGHT = frozenset({"regs", "spills", "shared", "size", "seconds"})
_SHOWN_WARNINGS = 20


def build_document(
    outcomes: Sequence[Outcome], refused: Sequence[Refusal], broken: Sequence[Broken] = ()
) -> Document:
    """The result of a build: every artifact, what was refused, folders that cannot be used, and how
    to repeat a failure."""
    order = sorted(outcomes, key=lambda o: _order(o.job))
    parts: list[Table | Lines] = []
    if order:
        parts.append(Table("", _COLUMNS, [_row(o) for o in order], _RIGHT))
    parts += _refused_tables(refused)
    parts += broken_tables(broken)
    warnings = [f"{o.job}: {o.job.with_paths(w)}" for o in order for w in _warnings(o)]
    if warnings:
        more = len(warnings) - _SHOWN_WARNINGS
        rest = (f"and {more} more; --format json has all",) if more > 0 else ()
        parts.append(Lines((*warnings[:_SHOWN_WARNINGS], *rest), "Warnings"))
    for outcome in order:
        if outcome.error is not None:
            parts.append(failure_lines(outcome))
    parts.append(Lines((_summary(outcomes, refused),)))
    data = {
        "schema": 1,
        "artifacts": [_artifact(o) for o in order],
        "refused": _refused_data(refused),
        "broken": broken_data(broken),
    }
    return Document(data, tuple(parts))


def plan_document(
    jobs: Sequence[CompileJob], stored: Sequence[bool], refused: Sequence[Refusal],
    broken: Sequence[Broken] = (),
) -> Document:  # fmt: skip
    """The result of a dry run: what would be built, and what is there."""
    rows = [
        (j.kernel.name, j.variant.name, j.instance.name, str(j.arch), j.toolchain.id,
         "cached" if there else "to build", j.key[:16])
        for j, there in zip(jobs, stored, strict=True)
    ]  # fmt: skip
    columns = ("kernel", "variant", "instance", "arch", "toolchain", "status", "key")
    parts: list[Table | Lines] = [Table("", columns, rows)]
    parts += _refused_tables(refused)
    parts += broken_tables(broken)
    parts.append(Lines((f"{len(jobs) - sum(stored)} to build, {sum(stored)} cached",)))
    data = {
        "schema": 1,
        "jobs": [
            {**_names(j), "key": j.key, "status": "cached" if there else "to build"}
            for j, there in zip(jobs, stored, strict=True)
        ],
        "refused": _refused_data(refused),
        "broken": broken_data(broken),
    }
    return Document(data, tuple(parts))


def _refused_tables(refused: Sequence[Refusal]) -> list[Table]:
    rows = [(r.kernel, r.arch, r.reason) for r in refused]
    return [Table("Refused", ("kernel", "arch", "reason"), rows)] if rows else []


def _refused_data(refused: Sequence[Refusal]) -> list[dict[str, str]]:
    return [{"kernel": r.kernel, "arch": r.arch, "reason": r.reason} for r in refused]


def broken_tables(broken: Sequence[Broken]) -> list[Table]:
    """Kernel folders that cannot be used, in one table where there are any."""
    rows = [(str(b.folder), b.reason) for b in broken]
    return [Table("Broken", ("folder", "reason"), rows)] if rows else []


def broken_data(broken: Sequence[Broken]) -> list[dict[str, str]]:
    return [{"folder": str(b.folder), "reason": b.reason} for b in broken]


def _order(job: CompileJob) -> tuple[Any, ...]:
    return (
        job.kernel.lang,
        job.kernel.name,
        job.variant.name,
        job.arch,
        job.instance.name,
        job.toolchain.id,
    )


def _names(job: CompileJob) -> dict[str, str]:
    return {
        "kernel": job.kernel.name,
        "variant": job.variant.name,
        "instance": job.instance.name,
        "arch": str(job.arch),
        "toolchain": job.toolchain.id,
    }


def _row(outcome: Outcome) -> tuple[Any, ...]:
    worst = _worst(outcome.artifact.manifest) if outcome.artifact else {}
    size = sum(map(len, outcome.artifact.files.values())) if outcome.artifact else None
    return (
        *_names(outcome.job).values(),
        worst.get("registers"),
        worst.get("spill_store_bytes"),
        worst.get("shared_bytes"),
        format_bytes(size),
        f"{outcome.seconds:.2f}",
        outcome.status,
    )


_RESOURCES = (
    "registers", "spill_store_bytes", "spill_load_bytes", "local_bytes", "shared_bytes",
)  # fmt: skip


def entry_resources(entry: EntryRecord) -> dict[str, int | None]:
    """The figures of one entry under their names in JSON."""
    return {name: getattr(entry, name) for name in _RESOURCES}


def _worst(manifest: Manifest) -> dict[str, int | None]:
    """The worst entry's figure of each resource; None when an entry's is not known."""
    figures = [entry_resources(e) for e in manifest.entries]
    worst: dict[str, int | None] = {}
    for name in _RESOURCES:
        known = [f[name] for f in figures]
        worst[name] = None if None in known else max(v for v in known if v is not None)
    return worst


def _artifact(outcome: Outcome) -> dict[str, Any]:
    manifest = outcome.artifact.manifest if outcome.artifact else None
    return {
        **_names(outcome.job),
        "key": outcome.job.key,
        "status": outcome.status,
        "cubin_sha256": manifest.cubin_sha256 if manifest else None,
        **(_worst(manifest) if manifest else dict.fromkeys(_RESOURCES)),
        "seconds": round(outcome.seconds, 4),
        "entries": [
            {"entry": e.entry, "cubin_sha256": e.cubin_sha256, **entry_resources(e)}
            for e in (manifest.entries if manifest else ())
        ],
        "warnings": list(manifest.warnings) if manifest else [],
        "error": str(outcome.error) if outcome.error else None,
    }


def _warnings(outcome: Outcome) -> Sequence[str]:
    return outcome.artifact.manifest.warnings if outcome.artifact else ()


def failure_lines(outcome: Outcome) -> Lines:
    """Why a job failed, and the command that repeats it."""
    repeat = f"repeat it with: {outcome.job.build_command}"
    return Lines((*str(outcome.error).splitlines(), repeat), f"Failed: {outcome.job}")


def _summary(outcomes: Sequence[Outcome], refused: Sequence[Refusal]) -> str:
    counts = {s: sum(o.status == s for o in outcomes) for s in ("built", "cached", "failed")}
    text = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(outcomes)} artifacts: {text}" + (f"; {len(refused)} refused" if refused else "")
