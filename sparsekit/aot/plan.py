"""From choices and arch requests to compile jobs, and to the targets that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparsekit.aot.closure import source_closure
from sparsekit.aot.options import compiler_options
from sparsekit.discover import Choice
from sparsekit.errors import SparsekitError, SpecError, ToolchainError
from sparsekit.model.arch import Arch, ArchRequest, format_capability
from sparsekit.model.artifact import CompileJob, SourceFile
from sparsekit.model.kernel import Instance, Kernel
from sparsekit.model.toolchain import Toolchain
from sparsekit.toolchain.find import Toolchains


@dataclass(frozen=True)
class Refusal:
    """A target that a kernel or its toolchain does not have. named: the user typed the target, and
    no kernel beside this one has it."""

    kernel: str
    arch: str
    reason: str
    named: bool


@dataclass(frozen=True)
class Unplanned:
    """A kernel that cannot be planned at all: its sources do not hold together, or the compiler of
    its language is missing."""

    kernel: Kernel
    error: SparsekitError


@dataclass(frozen=True)
class Plan:
    jobs: tuple[CompileJob, ...]
    refused: tuple[Refusal, ...]
    unplanned: tuple[Unplanned, ...] = ()

    @property
    def cautions(self) -> tuple[str, ...]:
        """What is known against the toolchains for the targets that are planned."""
        told = (job.toolchain.caution(job.arch) for job in self.jobs)
        return tuple(dict.fromkeys(text for text in told if text))


class Planner:
    """Makes jobs; toolchains are found and sources read once per planner."""

    def __init__(
        self, toolchains: Toolchains, *, lineinfo: bool = False, store_options: Sequence[str] = ()
    ) -> None:
        self._toolchains = toolchains
        self._lineinfo, self.store_options = lineinfo, tuple(store_options)
        self._found: dict[tuple[str, str | None], Toolchain] = {}
        self._sources: dict[Path, tuple[SourceFile, ...]] = {}

    def plan(
        self, choices: Iterable[Choice], requests: Sequence[ArchRequest], *, every_instance: bool
    ) -> Plan:
        """The jobs of the choices' variants, their default (or all) instances, and every target.

        A kernel that cannot be planned leaves the others alone.
        """
        jobs: dict[str, CompileJob] = {}
        refused: dict[Refusal, None] = {}
        unplanned: list[Unplanned] = []
        chosen = tuple(choices)
        for choice in chosen:
            try:
                own, not_had = self._of_choice(choice, requests, every_instance, chosen)
            except (SpecError, ToolchainError) as error:
                unplanned.append(Unplanned(choice.kernel, error))
                continue
            jobs |= {job.key: job for job in own}
            refused |= dict.fromkeys(not_had)
        return Plan(tuple(jobs.values()), tuple(refused), tuple(unplanned))

    def _of_choice(
        self, choice: Choice, requests: Sequence[ArchRequest], every_instance: bool,
        chosen: Sequence[Choice],
    ) -> tuple[list[CompileJob], list[Refusal]]:  # fmt: skip
        jobs: list[CompileJob] = []
        refused: list[Refusal] = []
        toolchain = self.toolchain(choice)
        for request in requests:
            target = target_among(chosen, choice, request, toolchain)
            if isinstance(target, Refusal):
                refused.append(target)
                continue
            jobs += [
                self.job(choice, name, instance, target, ptx=request.ptx)
                for name in choice.variants
                for instance in choice.kernel.instances
                if every_instance or instance.default
            ]
        return jobs, refused

    def job(
        self, choice: Choice, variant: str, instance: Instance, arch: Arch, *, ptx: bool = False
    ) -> CompileJob:
        """The one job of a variant and instance of the chosen kernel at an exact target."""
        kernel = choice.kernel
        compiled = kernel.variant_at(kernel.compiled_as(variant), arch, instance)
        toolchain = self.toolchain(choice)
        return CompileJob(
            kernel=kernel,
            variant=compiled,
            instance=instance,
            arch=arch,
            toolchain=toolchain,
            sources=self._closure(kernel),
            compiler=compiler_options(kernel, compiled, instance, arch, toolchain, self._lineinfo),
            lineinfo=self._lineinfo,
            ptx=ptx,
            store_options=self.store_options,
        )

    def toolchain(self, choice: Choice) -> Toolchain:
        lang, identifier = choice.kernel.lang, choice.toolchain
        if (lang, identifier) not in self._found:
            find = self._toolchains
            self._found[lang, identifier] = (
                find.named(lang, identifier) if identifier else find.default(lang)
            )
        return self._found[lang, identifier]

    def _closure(self, kernel: Kernel) -> tuple[SourceFile, ...]:
        if kernel.folder not in self._sources:
            self._sources[kernel.folder] = source_closure(kernel)
        return self._sources[kernel.folder]


def target_of(kernel: Kernel, request: ArchRequest, toolchain: Toolchain) -> Arch | Refusal:
    """The exact target that a request means for the kernel, or why there is none."""
    target = _own_target(kernel, request)
    if target is None:
        reason = (
            f"{kernel.name} has no target {request.exact or format_capability(request.capability)}"
        )
        reason += f"; it has {' '.join(kernel.targets)}"
        return Refusal(kernel.name, str(request), reason, request.named)
    if request.ptx and kernel.lang == "triton":
        reason = "the PTX of a Triton kernel is not loadable: its launch facts belong to the cubin"
        return Refusal(kernel.name, str(request), reason, request.named)
    if lacking := toolchain.lacks(target):
        return Refusal(kernel.name, str(target), lacking, request.named)
    return target


def target_among(
    chosen: Iterable[Choice], choice: Choice, request: ArchRequest, toolchain: Toolchain
) -> Arch | Refusal:
    """`target_of` for one of the choices.

    A kernel of which only the op was named may lack what another of them has.
    """
    target = target_of(choice.kernel, request, toolchain)
    if isinstance(target, Refusal) and choice.by_op and not _own_target(choice.kernel, request):
        of_op = (other.kernel for other in chosen if other.op.name == choice.op.name)
        if any(_own_target(kernel, request) for kernel in of_op):
            return replace(target, named=False)
    return target


def _own_target(kernel: Kernel, request: ArchRequest) -> Arch | None:
    """The target of the kernel's spec that a request means."""
    if request.exact is not None:
        return request.exact if request.exact in kernel.archs else None
    return next((a for a in kernel.archs if a.compute_capability == request.capability), None)
