"""Result files, read back: what kind each is, and what part of it is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from sparsekit.digest import sha256_of
from sparsekit.errors import UsageError
from sparsekit.model.bench import BenchResult, Ceilings
from sparsekit.model.profile import ProfileResult

KINDS = (
    "bench", "verify", "inspect", "profile", "run", "sanitizer", "control", "against-emulator",
    "prefill-rows", "prefill-tried", "paged-rows",
)  # fmt: skip
SCHEMA = 1
Result = TypeVar("Result", BenchResult, ProfileResult)


@dataclass(frozen=True)
class Stored:
    """One result file. name: as the user gave it."""

    name: str
    kind: str
    data: Mapping[str, Any]

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.data.get("environment") or {}

    @property
    def samples_sha256(self) -> str | None:
        """sha256 over every sample of a bench file; None where it holds none."""
        if self.kind != "bench":
            return None
        samples = [[t["samples_s"] for t in r["timings"]] for r in self.data["results"]]
        if not any(any(per_case) for per_case in samples):
            return None
        return sha256_of(json.dumps(samples).encode())


@dataclass(frozen=True)
class Wanted:
    """What of the files is asked for. op, cases, and candidates of bench by label: patterns; none
    means all."""

    op: str | None = None
    cases: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()

    def takes(self, op: str, case: str) -> bool:
        if self.op is not None and not fnmatchcase(op, self.op):
            return False
        return _matches(case, self.cases)

    def only(self, result: BenchResult) -> BenchResult:
        """The result with the wanted candidates alone."""
        taken = tuple(t for t in result.timings if _matches(t.label, self.candidates))
        return replace(result, timings=taken)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def read_stored(file: Path, name: str | None = None) -> Stored:
    """The result file. Raises UsageError when it is none, or of another schema."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} does not read as a result file: {error}") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in KINDS or data.get("schema") != SCHEMA:
        raise UsageError(
            f"{file}: expected a JSON result of bench, verify, inspect-sass, profile, run or "
            f"tests/gpu (schema {SCHEMA}), found kind {kind!r}; write it with --format json"
        )
    return Stored(name or str(file), kind, data)


def of_kind(stored: Sequence[Stored], kind: str) -> list[Stored]:
    return [s for s in stored if s.kind == kind]


def bench_results(stored: Sequence[Stored], wanted: Wanted) -> list[BenchResult]:
    """Every timed case that is wanted, those of one case together, whatever file they are from."""
    read = _results(of_kind(stored, "bench"), BenchResult.from_json, wanted)
    found = [wanted.only(result) for result in read]
    order = {key: number for number, key in enumerate(dict.fromkeys((r.op, r.case) for r in found))}
    return sorted(found, key=lambda r: order[r.op, r.case])


def profile_results(stored: Sequence[Stored], wanted: Wanted) -> list[ProfileResult]:
    return list(_results(of_kind(stored, "profile"), ProfileResult.from_json, wanted))


def _results(
    files: Iterable[Stored], read: Callable[[Any], Result], wanted: Wanted
) -> Iterator[Result]:
    for file in files:
        try:
            results = [read(r) for r in file.data["results"]]
        except (KeyError, TypeError) as error:
            raise UsageError(f"{file.name} is no {file.kind} result: {error!r}") from error
        yield from (r for r in results if wanted.takes(r.op, r.case))


def ceilings_of(stored: Sequence[Stored]) -> Ceilings | None:
    """What the GPU reached in the first run that measured it; None where none did."""
    told = [c for file in stored if (c := file.data.get("ceilings"))]
    return Ceilings(**told[0]) if told else None
