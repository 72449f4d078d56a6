"""Digests of outputs kept in a file, so that a later compiler is checked without the old one.

The file says what made them: artifact key, toolchain and arch of each, GPU and versions of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsekit.errors import UsageError
from sparsekit.files import replace_file
from sparsekit.model.results import OutputCheck, VerifyResult

SCHEMA = 1


@dataclass(frozen=True)
class Golden:
    """What a golden file holds. entries: by `KERNEL:VARIANT CASE`, the digests and what ran."""

    file: Path
    environment: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]

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
                name: _checked(check, entry["outputs"].get(name))
                for name, check in result.outputs.items()
            }
            wrong = [name for name, check in checks.items() if not check.ok]
            reason = f"{', '.join(wrong)} changed since {self._made(entry)}" if wrong else None
            yield replace(blank, outputs=checks, ok=not wrong, reason=reason)

    def _made(self, entry: Mapping[str, Any]) -> str:
        versions = self.environment.get("versions") or {}
        return (
            f"{entry['toolchain']} for {entry['arch']} on {self.environment.get('gpu')}, "
            f"torch {versions.get('torch')} (artifact {str(entry['key'])[:16]})"
        )


def _checked(found: OutputCheck, sha256: str | None) -> OutputCheck:
    if found.sha256 == sha256:
        return OutputCheck(True, found.sha256)
    problem = f"its bytes have another sha256, {sha256 or 'none'} before"
    return OutputCheck(False, found.sha256, problem=problem)


def read_golden(file: Path) -> Golden | None:
    """The file's digests; None when there is no such file. Raises UsageError on anything else."""
    try:
        data = json.loads(file.read_text())
        if data["kind"] != "golden" or data["schema"] != SCHEMA:
            raise ValueError(f"kind {data['kind']!r}, schema {data['schema']!r}")
        return Golden(file, data["environment"], data["entries"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} does not read as a golden file: {error}") from error


def write_golden(
    file: Path, results: Iterable[VerifyResult], environment: Mapping[str, Any]
) -> int:
    """Keep the digests of results that are right; how many there were."""
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
    replace_file(file, lambda path: path.write_text(text))
    return len(entries)


def _name(result: VerifyResult) -> str:
    """A GPU has one arch; several may have been emulated, each with bits of its own."""
    at = f" {result.arch}" if result.schedules else ""
    return f"{result.kernel}:{result.variant} {result.case}{at}"
