"""From choices and arch requests to compile jobs, and to the targets that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsekit.aot.closure import source_closure
from sparsekit.aot.options import compiler_options
from sparsekit.discover import Choice, compiles
from sparsekit.errors import ToolchainError
from sparsekit.model.arch import Arch, ArchRequest, format_capability
from sparsekit.model.artifact import CompileJob, SourceFile
from sparsekit.model.kernel import Instance, Kernel
from sparsekit.model.toolchain import Toolchain
from sparsekit.toolchain.find import Toolchains


@dataclass(frozen=True)
class Refusal:
    """A target that a kernel or its toolchain does not have. named: the user typed the target."""

    kernel: str
    arch: str
    reason: str
    named: bool


@dataclass(frozen=True)
class Plan:
    jobs: tuple[CompileJob, ...]
    refused: tuple[Refusal, ...]

    @property
    def cautions(self) -> tuple[str, ...]:
        """What is known against the toolchains for the targets that are planned."""
        told = (job.toolchain.caution(job.arch) for job in self.jobs)
        return tuple(dict.fromkeys(text for text in told if text))


class Planner:
    """Makes jobs; toolchains are found and sources read once per planner."""

    def __init__(self, toolchains: Toolchains, *, lineinfo: bool = False) -> None:
        self._toolchains = toolchains
        self._lineinfo = lineinfo
        self._found: dict[tuple[str, str | None], Toolchain] = {}
        self._sources: dict[Path, tuple[SourceFile, ...]] = {}

    def plan(
        self, choices: Iterable[Choice], requests: Sequence[ArchRequest], *, every_instance: bool
    ) -> Plan:
        """The jobs of the choices' variants, their default (or all) instances, and every target."""
        jobs: dict[str, CompileJob] = {}
        refused: list[Refusal] = []
        for choice in self._with_compiler(choices):
            toolchain = self.toolchain(choice)
            for request in requests:
                target = target_of(choice.kernel, request, toolchain)
                if isinstance(target, Refusal):
                    refused.append(target)
                    continue
                for name in choice.variants:
                    for instance in choice.kernel.instances:
                        if every_instance or instance.default:
                            job = self.job(choice, name, instance, target, ptx=request.ptx)
                            jobs[job.key] = job
        return Plan(tuple(jobs.values()), tuple(dict.fromkeys(refused)))

    def job(
        self, choice: Choice, variant: str, instance: Instance, arch: Arch, *, ptx: bool = False
    ) -> CompileJob:
        """The one job of a variant and instance of the chosen kernel at an exact target."""
        kernel = choice.kernel
        compiled = kernel.variant_at(variant, arch, instance)
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

    def _with_compiler(self, choices: Iterable[Choice]) -> list[Choice]:
        """The choices whose language the named toolchain compiles; an op may have others."""
        chosen = list(choices)
        kept = [c for c in chosen if not c.toolchain or compiles(c.toolchain, c.kernel)]
        if chosen and not kept:
            raise ToolchainError(
                f"toolchain {chosen[0].toolchain!r} compiles no {chosen[0].kernel.lang} kernels"
            )
        return kept


def target_of(kernel: Kernel, request: ArchRequest, toolchain: Toolchain) -> Arch | Refusal:
    """The exact target that a request means for the kernel, or why there is none."""
    if request.exact is not None:
        target = request.exact if request.exact in kernel.archs else None
    else:
        matching = (a for a in kernel.archs if a.compute_capability == request.capability)
        target = next(matching, None)
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
