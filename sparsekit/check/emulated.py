"""Kernels as the emulator runs them: one variant of one arch, under several schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sparsekit.aot.plan import Planner
from sparsekit.check.subject import Ran, Subject, arguments_of, named
from sparsekit.discover import Choice
from sparsekit.emulator import Fault, FaultError, Launches, Report, Schedule
from sparsekit.errors import MissingArtifactError, NoKernelError, TooLargeError, UsageError
from sparsekit.model.arch import Arch
from sparsekit.model.results import CodeBlock, Coverage, Finding
from sparsekit.operators.acquire import Prepared
from sparsekit.operators.emulated_driver import EmulatedDriver, Launched
from sparsekit.operators.operator import Operator
from sparsekit.store.local import Store

NOT_BUILT = "it needs an instance that is not built; sparsekit build --instances all, or --arch"
LAZY, EAGER = Schedule("lazy"), Schedule("eager")


def schedules_of(seeds: int) -> tuple[Schedule, ...]:
    """Lazy, eager, and so many random ones."""
    return (LAZY, EAGER, *(Schedule("random", seed) for seed in range(1, seeds + 1)))


@dataclass(frozen=True)
class Emulation:
    """How kernels are emulated, and what they come from. launches: shared, so that code which
    several archs have in common runs once. note(text): told of what the user should know.
    only_built: a case that needs what is not built is skipped."""

    planner: Planner
    store: Store
    build: bool
    only_built: bool
    checks: frozenset[str]
    schedules: tuple[Schedule, ...]
    launches: Launches
    note: Callable[[str], None]

    def subject(
        self, choice: Choice, variant: str, target: Arch, *, checked: bool = True
    ) -> EmulatedSubject:
        """checked: False for one that is asked for values alone, under one schedule."""
        only = replace(choice, variants=(variant,))
        checks = self.checks if checked else frozenset[str]()
        driver = EmulatedDriver(
            target.compute_capability, target, checks=checks, launches=self.launches
        )
        operator = Operator(
            choice.op, [only], self.planner, self.store, build=self.build, note=self.note,
            driver=driver,
        )  # fmt: skip
        return EmulatedSubject(
            choice.kernel.name, named(variant, choice.toolchain), str(target), operator, driver,
            self.only_built, self.schedules if checked else self.schedules[:1],
        )  # fmt: skip


@dataclass(frozen=True)
class EmulatedSubject:
    """A kernel variant at one arch through the operator that users call, on the CPU.

    It runs under the first of its schedules; turns() are itself under each.
    """

    kernel: str
    variant: str
    arch: str | None
    operator: Operator
    driver: EmulatedDriver
    only_built: bool = False
    schedules: tuple[Schedule, ...] = (LAZY,)

    def turns(self, repeat: int) -> Sequence[tuple[str, Subject]]:
        if repeat != 1:
            raise UsageError("an emulated run is the same each time; --seeds varies its schedule")
        return [(str(s), replace(self, schedules=(s,))) for s in self.schedules]

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Ran:
        arguments = arguments_of(self.operator.op, inputs, outputs)
        try:
            prepared = self.operator.prepared(arguments)
        except MissingArtifactError as error:
            if not self.only_built:
                raise
            raise NoKernelError(NOT_BUILT) from error
        if prepared is None:
            return Ran()
        self.driver.schedule = self.schedules[0]
        faults: tuple[Fault, ...] = ()
        stopped = False
        try:
            self.operator.run(arguments)
        except FaultError as error:
            faults, stopped = error.faults, error.stopped
        except MemoryError as error:
            raise TooLargeError("not enough memory to emulate this case") from error
        launched = self.driver.launched
        return Ran(
            prepared.artifact.manifest.arch,
            prepared.artifact.manifest.toolchain,
            prepared.artifact.manifest.key,
            tuple(finding_of(f, self.schedules[0]) for f in faults),
            tuple(_coverage(prepared, done) for done in launched),
            launches=len(launched),
            reused=sum(done.reused for done in launched),
            stopped=stopped,
        )


def finding_of(fault: Fault, schedule: Schedule) -> Finding:
    return Finding(
        fault.kind, fault.message, fault.entry, fault.cta, fault.thread, fault.line,
        fault.instruction, fault.source, (str(schedule),),
    )  # fmt: skip


def uncovered_of(report: Report) -> tuple[CodeBlock, ...]:
    return tuple(CodeBlock(u.function, u.line, u.last_line, u.source) for u in report.uncovered)


def _coverage(prepared: Prepared, done: Launched) -> Coverage:
    report, manifest = done.report, prepared.artifact.manifest
    return Coverage(
        manifest.key, str(manifest.identity["instance"]), report.entry, report.blocks_present,
        uncovered_of(report),
    )  # fmt: skip
