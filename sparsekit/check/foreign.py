"""Any PTX on the CPU: the user's file makes the memory, the launches and the check.

The file defines `run(device)`, which is called once per schedule with a fresh device. What it
returns, arrays by name, must not depend on the schedule.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsekit.check.emulated import finding_of, uncovered_of
from sparsekit.check.verify import merged_findings
from sparsekit.digest import sha256_of
from sparsekit.emulator import (
    Allocation,
    Memory,
    Program,
    Report,
    Schedule,
    UnsupportedError,
    launch,
    load,
)
from sparsekit.errors import SpecError, UsageError
from sparsekit.model.results import Coverage, Finding
from sparsekit.spec_file import load_module

Array = Any
Extent = Sequence[int] | int


class Device:
    """What the user's `run` works with: memory, and launches of the file's entries."""

    def __init__(self, program: Program, schedule: Schedule, checks: frozenset[str]) -> None:
        self.schedule = schedule
        self.reports: list[Report] = []
        self._program, self._checks = program, checks
        self._memory = Memory()

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels in the PTX."""
        return self._program.entries

    def allocate(
        self, content: Array | int, name: str = "", *, initialised: bool | None = None,
        read_only: bool = False,
    ) -> Allocation:  # fmt: skip
        """Global memory with a copy of an array, or so many bytes that nobody has written.

        name: for messages. initialised: whether it may be read before it is written.
        """
        return self._memory.allocate(content, name, initialised=initialised, read_only=read_only)

    def launch(
        self, entry: str, grid: Extent, block: Extent, args: Sequence[Any] | bytes, *,
        shared_bytes: int = 0, cluster: Extent = 1,
    ) -> Report:  # fmt: skip
        """Run a kernel. grid in blocks, block in threads, cluster in blocks.

        args: one per parameter: an allocation, a number, or bytes; or the whole buffer as bytes.
        shared_bytes: dynamic shared memory. Faults are collected; one that ends the launch ends
        `run` too, since nothing can follow it.
        """
        report = launch(
            self._program, entry, _extent(grid), _extent(block),
            args if isinstance(args, bytes) else list(args), self._memory,
            shared_bytes=shared_bytes, cluster=_extent(cluster), schedule=self.schedule,
            checks=self._checks,
        )  # fmt: skip
        self.reports.append(report)
        if report.stopped:
            raise _Ended
        return report

    def read(self, allocation: Allocation, dtype: Any, shape: Sequence[int] | int = -1) -> Array:
        """A copy of what an allocation holds now."""
        return self._memory.read(allocation, dtype, shape)

    def write(self, allocation: Allocation, content: Array, offset_bytes: int = 0) -> None:
        """Overwrite a part of an allocation, between launches."""
        self._memory.write(allocation, content, offset_bytes)


class _Ended(Exception):
    """A fault has ended a launch."""


def _extent(extent: Extent) -> tuple[int, ...]:
    return (extent,) if isinstance(extent, int) else tuple(extent)


@dataclass(frozen=True)
class ForeignResult:
    """What came of one PTX file. problem: what failed besides the findings; None when nothing did.

    launches: of each run. printed: what the kernels printed in the first run.
    """

    file: str
    sha256: str
    schedules: tuple[str, ...]
    launches: int
    findings: tuple[Finding, ...]
    coverage: tuple[Coverage, ...]
    problem: str | None
    printed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.problem is None and not self.findings


def emulate_file(
    ptx: Path, script: Path, schedules: Sequence[Schedule], checks: frozenset[str]
) -> ForeignResult:
    """Run the script's `run` under every schedule.

    Raises UsageError for a file that cannot be read, SpecError for a script that does not load,
    CompileError for PTX that does not parse or is not modelled.
    """
    try:
        content = ptx.read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{ptx} cannot be read as PTX: {error}") from error
    program, run = load(text), _run_of(script)
    devices = [Device(program, schedule, checks) for schedule in schedules]
    problems: list[str] = []
    results: list[tuple[Schedule, Mapping[str, Array]]] = []
    for device in devices:
        problem, found = _one_run(run, device, script)
        if problem is not None:
            problems.append(f"{problem} (schedule {device.schedule})")
        elif found is not None:
            results.append((device.schedule, found))
    problems += _differences(results)
    reports = [(d.schedule, r) for d in devices for r in d.reports]
    findings = merged_findings(
        [tuple(finding_of(f, schedule) for f in report.faults) for schedule, report in reports]
    )
    sha256 = sha256_of(content)
    return ForeignResult(
        file=str(ptx),
        sha256=sha256,
        schedules=tuple(map(str, schedules)),
        launches=len(devices[0].reports),
        findings=findings,
        coverage=_covered([report for _, report in reports], sha256),
        problem="\n".join(problems) or (None if reports else "nothing was launched"),
        printed=tuple(line for r in devices[0].reports for line in r.printed),
    )


def _run_of(script: Path) -> Callable[[Device], Any]:
    """The script's `run`; the script is the user's, and runs as such."""
    if script.suffix != ".py" or not script.is_file():
        raise UsageError(f"--args {script}: expected a Python file that defines run(device)")
    run = getattr(load_module(script, "sparsekit_emulate_args"), "run", None)
    if not callable(run):
        raise SpecError(f"{script} defines no run(device)")
    return run  # type: ignore[no-any-return]


def _one_run(
    run: Callable[[Device], Any], device: Device, script: Path
) -> tuple[str | None, Mapping[str, Array] | None]:
    """(what failed, what the run returned)."""
    try:
        found = run(device)
    except _Ended:
        return None, None
    except AssertionError as error:
        return f"the check failed: {str(error) or _line_of(error, script)}", None
    except (UnsupportedError, UsageError):
        raise
    except Exception as error:
        where = _line_of(error, script)
        raise SpecError(f"{where}: {type(error).__name__}: {error}") from error
    if found is None:
        return None, None
    if not isinstance(found, Mapping):
        raise SpecError(f"run in {script} must return arrays by name, or None; found {found!r}")
    return None, {str(name): np.asarray(value) for name, value in found.items()}


def _line_of(error: Exception, script: Path) -> str:
    lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)]
    return f"{script}:{lines[-1].lineno}" if lines else str(script)


def _differences(results: Sequence[tuple[Schedule, Mapping[str, Array]]]) -> list[str]:
    if len(results) < 2:
        return []
    base, first = results[0]
    problems = []
    for schedule, found in results[1:]:
        for name in dict.fromkeys([*first, *found]):
            if name not in first or name not in found:
                problems.append(f"{name} is returned under one of {base} and {schedule} only")
            elif first[name].tobytes() != found[name].tobytes():
                problems.append(f"{name} depends on the schedule: {schedule} differs from {base}")
    return problems


def _covered(reports: Sequence[Report], key: str) -> tuple[Coverage, ...]:
    found: dict[str, Coverage] = {}
    for report in reports:
        new = Coverage(key, "", report.entry, report.blocks_present, uncovered_of(report))
        known = found.get(report.entry)
        found[report.entry] = new if known is None else known.joined(new)
    return tuple(found.values())
