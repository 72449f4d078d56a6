"""What `sparsekit inspect-sass` reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsekit.aot.execute import Outcome
from sparsekit.codegen.inspect import EntryCode
from sparsekit.report.build import entry_resources, failure_lines
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.units import widths_text

_COLUMNS = (
    "kernel", "variant", "instance", "arch", "toolchain", "entry", "regs", "spills", "local",
    "shared", "PTX loads", "SASS loads and stores",
)  # fmt: skip
_RIGHT = frozenset({"regs", "spills", "local", "shared"})


def inspect_document(
    entries: Sequence[EntryCode], failed: Sequence[Outcome], dump: str | None
) -> Document:
    """Resources and widths of each entry, and its whole code where `dump` asks for it."""
    parts: list[Table | Lines] = []
    if entries:
        parts.append(Table("", _COLUMNS, [_row(e) for e in entries], _RIGHT))
        parts.append(Lines(("widths are bytes per thread, as WIDTHxCOUNT; counts are static",)))
    problems = dict.fromkeys(e.problem for e in entries if e.problem)
    parts += [Lines((f"no SASS: {problem}",)) for problem in problems]
    parts += [failure_lines(outcome) for outcome in failed]
    if dump:
        parts += [_dump(e, dump) for e in entries]
    data = {"schema": 1, "kind": "inspect", "entries": [_entry(e, dump) for e in entries]}
    return Document(data, tuple(parts))


def _names(code: EntryCode) -> dict[str, Any]:
    identity = code.manifest.identity
    return {
        "kernel": identity["kernel"],
        "variant": identity["variant"],
        "instance": identity["instance"],
        "arch": code.manifest.arch,
        "toolchain": code.manifest.toolchain,
        "entry": code.record.entry,
    }


def _row(code: EntryCode) -> tuple[Any, ...]:
    record, sass = code.record, code.sass_loads
    return (
        *_names(code).values(),
        record.registers,
        record.spill_store_bytes,
        record.local_bytes,
        record.shared_bytes,
        widths_text(code.ptx_loads),
        widths_text(sass),
    )


def _entry(code: EntryCode, dump: str | None) -> dict[str, Any]:
    listing = {"listing": _listing(code, dump).splitlines()} if dump else {}
    return {
        **_names(code),
        **entry_resources(code.record),
        "ptx_loads": code.ptx_loads,
        "sass_loads": code.sass_loads,
        "text_sha256": code.record.text_sha256,
        "problem": code.problem,
        **listing,
    }


def _dump(code: EntryCode, dump: str) -> Lines:
    title = " ".join(map(str, _names(code).values()))
    return Lines(tuple(_listing(code, dump).splitlines()), f"{dump.upper()} of {title}", code=True)


def _listing(code: EntryCode, dump: str) -> str:
    if dump == "ptx":
        return code.ptx
    return "\n".join(map(str, code.sass or ())) or "not available"
