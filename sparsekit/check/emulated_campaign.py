"""Verifying kernels on the CPU, case by case, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from sparsekit.aot.plan import Planner, Refusal, target_among
from sparsekit.check.campaign import guarded, skipped
from sparsekit.check.cases import cases_of_ops
from sparsekit.check.emulated import EmulatedSubject, Emulation
from sparsekit.check.processes import run_in_processes
from sparsekit.check.reference import load_reference
from sparsekit.check.verify import verify_reference
from sparsekit.check.workload import make_workload
from sparsekit.discover import Catalog, Choice
from sparsekit.emulator import Launches, Schedule
from sparsekit.errors import SpecError, TooLargeError, ToolchainError
from sparsekit.model.arch import Arch, ArchRequest, parse_arch
from sparsekit.model.op import Case, Op, with_settings
from sparsekit.model.results import FLOAT64, VerifyResult
from sparsekit.settings import Settings
from sparsekit.store.local import Store
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains

CPU = torch.device("cpu")
_WORTH_A_PROCESS_FLOP = 5 * 10**8  # some five seconds; a process takes three to start


@dataclass(frozen=True)
class EmulatedKernel:
    """A kernel variant at an arch, as plain data. reference: one that only it bears."""

    reference: str
    variant: str
    target: str

    @property
    def kernel(self) -> str:
        """The reference without the variant."""
        return self.reference.partition(":")[0]


@dataclass(frozen=True)
class CaseTask:
    """One case with one of its data sets, for kernels of an op. flop: of all of them.

    changes: what the case takes instead of its own sizes and options, in their order.
    """

    kernels: tuple[EmulatedKernel, ...]
    case: str
    probe: str
    flop: int
    changes: tuple[tuple[str, str], ...] = ()

    def of(self, op: Op) -> Case:
        """The case as it is emulated."""
        case = op.case(self.case)
        assert case is not None
        return with_settings(op, case.for_emulator(), dict(self.changes))

    @property
    def kernel(self) -> str:
        """The first kernel's reference without a variant; one process best does all tasks of it."""
        return self.kernels[0].kernel

    def __str__(self) -> str:
        return f"case {self.case} ({self.probe})"


@dataclass(frozen=True)
class EmulationPlan:
    """How to make an Emulation in a process of its own."""

    settings: Settings
    build: bool
    only_built: bool
    lineinfo: bool
    checks: frozenset[str]
    schedules: tuple[Schedule, ...]
    store_options: tuple[str, ...] = ()

    def open(self, note: Callable[[str], None]) -> Emulation:
        """The emulation of a process that has nothing yet."""
        planner = Planner(
            Toolchains(self.settings), lineinfo=self.lineinfo, store_options=self.store_options
        )
        return self.on(planner, open_store(self.settings.cache_dir, note), note)

    def on(self, planner: Planner, store: Store, note: Callable[[str], None]) -> Emulation:
        """The emulation of a process that has a planner and a store already."""
        return Emulation(
            planner, store, self.build, self.only_built, self.checks, self.schedules, Launches(),
            note,
        )  # fmt: skip


def requested_targets(
    choices: Sequence[Choice], requests: Sequence[ArchRequest], planner: Planner
) -> tuple[list[tuple[Choice, Arch]], list[Refusal]]:
    """Each choice with the targets that were asked for, and those that it does not have.

    A kernel whose compiler is missing leaves the others alone.
    """
    targets: list[tuple[Choice, Arch]] = []
    refused: list[Refusal] = []
    for choice in choices:
        for request in requests:
            try:
                target = target_among(choices, choice, request, planner.toolchain(choice))
            except ToolchainError as error:
                target = Refusal(choice.kernel.name, str(request), str(error), request.named)
            if isinstance(target, Refusal):
                refused.append(target)
            else:
                targets.append((choice, target))
    return targets, refused


def built_targets(
    choices: Sequence[Choice], planner: Planner, store: Store
) -> list[tuple[Choice, Arch]]:
    """Each choice with the targets for which the store holds one of its default instances."""
    archs = dict.fromkeys(arch for choice in choices for arch in choice.kernel.archs)
    requests = [ArchRequest(arch.compute_capability, arch, named=False) for arch in archs]
    found, _ = requested_targets(choices, requests, planner)
    return [
        (choice, target) for choice, target in found if _is_built(choice, target, planner, store)
    ]


def _is_built(choice: Choice, target: Arch, planner: Planner, store: Store) -> bool:
    try:
        return any(
            store.has(planner.job(choice, variant, instance, target).key)
            for variant in choice.variants
            for instance in choice.kernel.instances
            if instance.default
        )
    except SpecError:
        return True  # sources that do not hold together: what runs the kernel says so


def tasks_of(
    targets: Sequence[tuple[Choice, Arch]],
    patterns: Sequence[str],
    tags: Sequence[str],
    changes: Mapping[str, str],
    jobs: int,
) -> list[CaseTask]:
    """The tasks, longest first, of the ops that have such cases. Raises UsageError where none has,
    and for a pattern that is of no case.

    One process does all kernels of an op at once, to compute what is expected once; of several
    each has kernels of its own as far as possible, to translate them once.
    """
    by_kernel: dict[tuple[str, str], tuple[Op, list[EmulatedKernel]]] = {}
    for choice, target in targets:
        key = (choice.op.name, str(choice.kernel.folder) if jobs > 1 else "")
        kernels = by_kernel.setdefault(key, (choice.op, []))[1]
        suffix = f"@{choice.toolchain}" if choice.toolchain else ""
        for variant in choice.variants:
            reference = f"{choice.kernel.folder}:{variant}{suffix}"
            kernels.append(EmulatedKernel(reference, variant, str(target)))
    ops = {op.name: op for op, _ in by_kernel.values()}
    cases = {op.name: own for op, own in cases_of_ops(list(ops.values()), patterns, tags)}
    tasks = [
        CaseTask(
            tuple(kernels),
            case.name,
            p,
            op.work(with_settings(op, case.for_emulator(), changes)).flop * len(kernels),
            tuple(changes.items()),
        )
        for op, kernels in by_kernel.values()
        for case in cases.get(op.name, ())
        for p in op.probes
    ]
    return sorted(tasks, key=lambda task: -task.flop)


def run_tasks(
    plan: EmulationPlan, tasks: Sequence[CaseTask], jobs: int, note: Callable[[str], None]
) -> Iterator[VerifyResult]:
    """The results as they come; in this process for one job, or for little to do."""
    if jobs == 1 or len(tasks) == 1 or sum(task.flop for task in tasks) < _WORTH_A_PROCESS_FLOP:
        work = CaseWork(plan, note)
        for task in tasks:
            with _one_thread():
                results = work(task)
            yield from results
        return
    each = run_in_processes(make_work, (plan,), tasks, jobs, lambda task: task.kernel)
    for _, results in each:
        yield from results


@contextmanager
def _one_thread() -> Iterator[None]:
    """torch computes in one thread: the tensors are so small that others would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_work(plan: EmulationPlan) -> CaseWork:
    """The function of a worker process; what it would note, the parent has noted."""
    torch.set_num_threads(1)
    return CaseWork(plan, lambda text: None)


class CaseWork:
    """Does tasks; kernels are found, loaded and translated once."""

    def __init__(self, plan: EmulationPlan, note: Callable[[str], None]) -> None:
        self._emulation = plan.open(note)
        self._catalog = Catalog(plan.settings.kernel_dirs, plan.settings.kernels_origin)
        self._choices: dict[str, Choice] = {}
        self._subjects: dict[tuple[EmulatedKernel, bool], EmulatedSubject] = {}

    def __call__(self, task: CaseTask) -> list[VerifyResult]:
        op = self._choice(task.kernels[0]).op
        first = task.probe == op.probes[0]  # of others, what they do to memory is known from it
        subjects = [self._subject(kernel, checked=first) for kernel in task.kernels]
        return list(guarded(op, subjects, self._results(op, subjects, task), CPU))

    def _results(
        self, op: Op, subjects: Sequence[EmulatedSubject], task: CaseTask
    ) -> Iterator[VerifyResult]:
        reference = load_reference(op)
        case = task.of(op)
        try:
            workload = make_workload(op, reference, case, task.probe, CPU)
        except TooLargeError as error:
            yield from (skipped(op, s, case, FLOAT64, CPU, error) for s in subjects)
            return
        yield from verify_reference(workload, subjects, reference, 1)

    def _choice(self, kernel: EmulatedKernel) -> Choice:
        if kernel.reference not in self._choices:
            (self._choices[kernel.reference],) = self._catalog.resolve([kernel.reference])
        return self._choices[kernel.reference]

    def _subject(self, kernel: EmulatedKernel, *, checked: bool) -> EmulatedSubject:
        """With all checks and schedules, or one that only computes."""
        found = self._subjects.get((kernel, checked))
        if found is None:
            target = parse_arch(kernel.target)
            found = self._emulation.subject(
                self._choice(kernel), kernel.variant, target, checked=checked
            )
            self._subjects[kernel, checked] = found
        return found
