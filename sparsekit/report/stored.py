"""Result files, read back: what kind each is, and what part of it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from sparsekit.digest import sha256_of
from sparsekit.errors import UsageError
from sparsekit.files import parse_json
from sparsekit.model.bench import BenchResult, Ceilings
from sparsekit.model.profile import ProfileResult
from sparsekit.report.schemas import SCHEMAS
from sparsekit.report.shape import Mismatch, found_text
from sparsekit.report.sound import sound
from sparsekit.report.units import place_of

SCHEMA = 1


@dataclass(frozen=True)
class Stored:
    """One result file. name: as the user gave it; data: of the shape that its kind has."""

    name: str
    kind: str
    data: Mapping[str, Any]

    @property
    def environment(self) -> Mapping[str, Any]:
        return self.data.get("environment") or {}

    @property
    def gpu(self) -> str:
        """Where the results were made."""
        return place_of(self.environment)

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
    """The result file. Raises UsageError when it is none, is of another schema, or holds something
    else than its kind has."""
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} does not read as a result file: {error}") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in SCHEMAS:
        raise UsageError(
            f"{file}: expected a JSON result of bench, verify, inspect-sass, profile, run or "
            f"tests/gpu, found kind {found_text(kind)}; write it with --format json"
        )
    if (schema := data.get("schema")) != SCHEMA or isinstance(schema, bool):
        raise UsageError(
            f"{file}: expected a {kind} result of schema {SCHEMA}, found schema "
            f"{found_text(schema)}; this version of sparsekit does not read it: make it again"
        )
    try:
        SCHEMAS[kind].check(data, "")
    except Mismatch as error:
        raise UsageError(
            f"{file} is no {kind} result: {error}; make it again with the command that its "
            "environment names"
        ) from error
    return Stored(name or str(file), kind, data)


def of_kind(stored: Sequence[Stored], kind: str) -> list[Stored]:
    return [s for s in stored if s.kind == kind]


def bench_results(stored: Sequence[Stored], wanted: Wanted) -> list[BenchResult]:
    """Every timed case that is wanted, those of one case together, whatever file they are from;
    figures that a problem has made worthless are left out."""
    found = [
        wanted.only(sound(result))
        for file in of_kind(stored, "bench")
        for data in file.data["results"]
        if wanted.takes((result := BenchResult.from_json(data)).op, result.case)
    ]
    order = {key: number for number, key in enumerate(dict.fromkeys((r.op, r.case) for r in found))}
    return sorted(found, key=lambda r: order[r.op, r.case])


def profile_results(stored: Sequence[Stored], wanted: Wanted) -> list[ProfileResult]:
    return [
        result
        for file in of_kind(stored, "profile")
        for data in file.data["results"]
        if wanted.takes((result := ProfileResult.from_json(data)).op, result.case)
    ]


def verify_results(stored: Sequence[Stored], wanted: Wanted) -> list[tuple[str, Mapping[str, Any]]]:
    """Every verified case that is wanted, with where it ran."""
    return [
        (file.gpu, result)
        for file in of_kind(stored, "verify")
        for result in file.data["results"]
        if wanted.takes(result["op"], result["case"])
    ]


def ceilings_of(stored: Sequence[Stored]) -> dict[str, Ceilings]:
    """By GPU, what it reached in the first run that measured it."""
    found: dict[str, Ceilings] = {}
    for file in stored:
        if file.data.get("ceilings"):
            for result in file.data["results"]:
                found.setdefault(result["gpu"], Ceilings(**file.data["ceilings"]))
    return found
