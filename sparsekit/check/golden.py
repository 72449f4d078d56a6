"""Digests of outputs kept in a file, so that a later compiler is checked without the old one.

The file says what made them: artifact key, toolchain and arch of each, GPU and versions of all.
The toolchain is no part of an entry's name: it is what may change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sparsekit.errors import UsageError
from sparsekit.files import parse_json, replace_file
from sparsekit.model.results import OutputCheck, VerifyResult

T = TypeVar("T")
SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """The digests of one kernel variant and case, by output, and what computed them."""

    outputs: Mapping[str, str]
    toolchain: str | None
    arch: str | None
    key: str | None


@dataclass(frozen=True)
class Golden:
    """What a golden file holds. entries: by `KERNEL:VARIANT CASE`, at least one."""

    file: Path
    environment: Mapping[str, Any]
    entries: Mapping[str, Entry]

    def check(self, results: Iterable[VerifyResult]) -> Iterator[VerifyResult]:
        """Each result that has outputs, against the digests of its kernel variant and case.

        One that the file does not hold is skipped, with the reason.
        """
        for result in results:
            if not result.outputs:
                continue
            against = f"golden {self.file.name}"
            blank = replace(result, against=against, outputs={}, ok=None, reason=None)
            entry = self.entries.get(_name(result))
            if entry is None:
                missing = f"{self.file} holds no digests of {_name(result)}"
                yield replace(blank, skipped=True, reason=missing)
                continue
            checks = {
                name: _checked(check, entry.outputs.get(name))
                for name, check in result.outputs.items()
            }
            wrong = [name for name, check in checks.items() if not check.ok]
            told = [f"{', '.join(wrong)} changed"] if wrong else []
            if lacking := [name for name in entry.outputs if name not in checks]:
                told.append(f"{', '.join(lacking)} lacking")
            reason = f"{' and '.join(told)} since {self._made(entry)}" if told else None
            yield replace(blank, outputs=checks, ok=not told, reason=reason)

    def _made(self, entry: Entry) -> str:
        versions = self.environment.get("versions") or {}
        return (
            f"{entry.toolchain} for {entry.arch} on {self.environment.get('gpu')}, "
            f"torch {versions.get('torch')} (artifact {str(entry.key)[:16]})"
        )


def _checked(found: OutputCheck, sha256: str | None) -> OutputCheck:
    if found.sha256 == sha256:
        return OutputCheck(True, found.sha256)
    problem = f"its bytes have another sha256, {sha256 or 'none'} before"
    return OutputCheck(False, found.sha256, problem=problem)


def read_golden(file: Path) -> Golden | None:
    """The file's digests; None when there is no such file. Raises UsageError on anything else."""
    try:
        data = _typed(parse_json(file.read_text()), dict, "the file")
        if data.get("kind") != "golden" or data.get("schema") != SCHEMA:
            raise ValueError(
                f"expected kind 'golden' and schema {SCHEMA}, found {data.get('kind')!r} and "
                f"{data.get('schema')!r}"
            )
        environment = _typed(data.get("environment"), dict, "environment")
        _typed(environment.get("versions") or {}, dict, "environment.versions")
        entries = _typed(data.get("entries"), dict, "entries")
        if not entries:
            raise ValueError("expected entries, found none: nothing could be checked")
        return Golden(file, environment, {name: _entry(e, name) for name, e in entries.items()})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} does not read as a golden file: {error}") from error


def _entry(value: Any, name: str) -> Entry:
    data = _typed(value, dict, f"entry {name!r}")
    outputs = _typed(data.get("outputs"), dict, f"outputs of {name!r}")
    if not outputs:
        raise ValueError(f"outputs of {name!r}: expected digests by name, found none")
    for output, sha256 in outputs.items():
        _typed(sha256, str, f"output {output} of {name!r}")
    told = [data.get(n) for n in ("toolchain", "arch", "key")]
    for field, found in zip(("toolchain", "arch", "key"), told, strict=True):
        if found is not None:
            _typed(found, str, f"{field} of {name!r}")
    return Entry(outputs, *told)


_JSON_TYPES: dict[type, str] = {dict: "an object", str: "a string"}


def _typed(value: Any, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{what}: expected {_JSON_TYPES[kind]}, found {json.dumps(value)[:60]}")
    return value


def write_golden(
    file: Path, results: Iterable[VerifyResult], environment: Mapping[str, Any]
) -> int:
    """Keep the digests of results that are right; how many there were. None: no file is made."""
    entries = {
        _name(r): {
            "outputs": {name: check.sha256 for name, check in r.outputs.items()},
            "toolchain": r.toolchain, "arch": r.arch, "key": r.key,
        }
        for r in results
        if r.ok and r.outputs
    }  # fmt: skip
    data = {
        "schema": SCHEMA, "kind": "golden", "environment": dict(environment), "entries": entries
    }  # fmt: skip
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    if entries:
        replace_file(file, lambda path: path.write_text(text))
    return len(entries)


def _name(result: VerifyResult) -> str:
    """A GPU has one arch; several may have been emulated, each with bits of its own."""
    at = f" {result.arch}" if result.schedules else ""
    variant = result.variant.partition("@")[0]
    return f"{result.kernel}:{variant} {result.case}{at}"
