"""What `verify` asks of the engine: the same checks on a GPU and on the CPU.

torch and numpy are imported here, and only when a verification starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsekit.cli.emulation import emulated_targets, emulation_plan
from sparsekit.cli.options import require_inputs, say
from sparsekit.cli.selection import by_op, changed_case, only, operator_of
from sparsekit.cli.session import Session
from sparsekit.discover import Choice
from sparsekit.errors import SpecError, UsageError
from sparsekit.model.arch import Arch, parse_arch
from sparsekit.model.op import TAGS, Op, with_settings
from sparsekit.model.results import VerifyResult
from sparsekit.toolchain.find import Toolchains

Steps = tuple[Iterator[VerifyResult], str | None]  # the results, the sha256 of the user's inputs
_TAGS, _EMULATED_TAGS = ("smoke", "corner"), ("smoke",)


@dataclass(frozen=True)
class Request:
    """What the options say, apart from the device.

    across: each under every other toolchain at hand against itself under the one it would use.
    changes: sizes and options that the cases take instead of theirs, or the scalars of a file.
    """

    session: Session
    choices: Sequence[Choice]
    bases: Sequence[Choice]
    build: bool
    repeat: int
    patterns: tuple[str, ...]
    tags: Sequence[str]
    bitwise: bool
    across: bool
    changes: dict[str, str]

    def require(self, file: Path | None) -> None:
        """Raise UsageError for what is wrong whatever the machine has."""
        from sparsekit.check.campaign import chosen_cases

        if self.bases and sum(len(c.variants) for c in self.bases) != 1:
            raise UsageError(
                "--against must name one variant, as in --against sparse_prefill:noskip"
            )
        ops = by_op(self.choices)
        if file is None:
            for op, _ in ops:
                for case in chosen_cases(op, self.patterns, self.tags or TAGS):
                    changed_case(op, case, self.changes)
        elif len(ops) != 1:
            raise UsageError("--inputs holds the tensors of one op; name it")
        else:
            require_inputs(file, ops[0][0], self.changes)


def on_gpu(request: Request, file: Path | None, device: Any) -> Steps:
    from sparsekit.check.subject import OperatorSubject, named

    def subjects(choice: Choice, variant: str) -> list[Any]:
        operator = operator_of(request.session, [only(choice, variant)], build=request.build)
        return [OperatorSubject(choice.kernel.name, named(variant, choice.toolchain), operator)]

    return _Campaign(request, subjects, device, _TAGS).steps(file)


def on_cpu(
    request: Request, file: Path | None, arch: str | None, *, seeds: int, strict: bool,
    without: Sequence[str], lineinfo: bool,
) -> Steps:  # fmt: skip
    session = request.session
    plan = emulation_plan(
        session,
        build=request.build,
        only_built=arch is None,
        lineinfo=lineinfo,
        strict=strict,
        without=without,
        seeds=seeds,
    )
    if request.repeat != 1:
        raise UsageError("--repeat is for a GPU; an emulated run is the same each time")
    targets = emulated_targets(session, request.choices, arch)
    from sparsekit.check.emulated_campaign import CPU, run_tasks, tasks_of

    if file is None and not request.bitwise:
        tags = request.tags or _EMULATED_TAGS
        tasks = tasks_of(targets, request.patterns, tags, request.changes, session.settings.jobs)
        return run_tasks(plan, tasks, session.settings.jobs, say), None
    emulation = plan.on(session.planner, session.store, say)
    archs: dict[Path, list[Arch]] = {}
    for choice, target in targets:
        archs.setdefault(choice.kernel.folder, []).append(target)

    def subjects(choice: Choice, variant: str) -> list[Any]:
        wanted = archs.get(choice.kernel.folder) or _like(choice, [t for _, t in targets])
        return [emulation.subject(choice, variant, target) for target in dict.fromkeys(wanted)]

    return _Campaign(request, subjects, CPU, _EMULATED_TAGS).steps(file)


@dataclass(frozen=True)
class _Campaign:
    """The engine's calls with what the options say.

    subjects(choice, variant): one, or one for each arch.
    """

    request: Request
    subjects: Callable[[Choice, str], list[Any]]
    device: Any
    default_tags: Sequence[str]

    def steps(self, file: Path | None) -> Steps:
        if file is not None:
            return self._on_file(file)
        return (self._bitwise() if self.request.bitwise else self._against_float64()), None

    @property
    def _tags(self) -> Sequence[str]:
        return self.request.tags or self.default_tags

    def _cases(self, op: Op) -> list[Any]:
        from sparsekit.check.campaign import chosen_cases

        cases = chosen_cases(op, self.request.patterns, self._tags)
        sized = cases if self.device.type == "cuda" else [c.for_emulator() for c in cases]
        return [with_settings(op, case, self.request.changes) for case in sized]

    def _against_float64(self) -> Iterator[VerifyResult]:
        from sparsekit.check import campaign

        for op, chosen in by_op(self.request.choices):
            subjects = [s for c in chosen for v in c.variants for s in self.subjects(c, v)]
            steps = campaign.against_reference(
                op, subjects, self._cases(op), self.device, self.request.repeat
            )
            yield from campaign.guarded(op, subjects, steps, self.device)

    def _bitwise(self) -> Iterator[VerifyResult]:
        from sparsekit.check import campaign

        bases = [(c, v) for c in self.request.bases for v in c.variants]
        for op, chosen in by_op(self.request.choices):
            if self.request.across:
                pairs = [p for c in chosen for p in self._across_toolchains(c)]
                if not pairs:
                    say(f"{op.name}: no other toolchain is at hand; see sparsekit doctor")
            else:
                pairs = [p for c in chosen for p in self._pairs(c, bases)]
            alone = not self.request.across and not self.request.patterns
            steps = campaign.against_bits(
                op, pairs, self._cases(op), self.device, self.request.repeat,
                rows=alone and "smoke" in self._tags, streams=self.device.type == "cuda",
            )  # fmt: skip
            yield from campaign.guarded(op, [p.subject for p in pairs], steps, self.device)

    def _on_file(self, file: Path) -> Steps:
        from sparsekit.check import campaign
        from sparsekit.check.files import load_inputs

        ((op, chosen),) = by_op(self.request.choices)
        inputs, digest = load_inputs(file, op, self.request.changes, self.device)
        subjects = [s for c in chosen for v in c.variants for s in self.subjects(c, v)]
        name = f"{file.name}:{digest[:12]}"
        steps = campaign.on_inputs(op, subjects, inputs, name, self.device, self.request.repeat)
        return steps, digest

    def _across_toolchains(self, choice: Choice) -> list[Any]:
        """Each variant under every other toolchain with itself under the one it would use."""
        from sparsekit.check.campaign import Pair

        session = self.request.session
        own = session.planner.toolchain(choice).id
        others = [t.id for t in Toolchains(session.settings).all(choice.kernel.lang) if t.id != own]
        return [
            Pair(subject, base)
            for name in choice.variants
            for other in others
            for subject in self.subjects(replace(choice, toolchain=other), name)
            for base in self.subjects(choice, name)
            if subject.arch == base.arch
        ]

    def _pairs(self, choice: Choice, bases: Sequence[tuple[Choice, str]]) -> list[Any]:
        """Each variant with its base, and with itself on new buffers; arch by arch."""
        from sparsekit.check.campaign import Pair

        pairs = []
        for name in choice.variants:
            own = self.subjects(choice, name)
            known = choice.kernel.variant(name)
            given = [self.subjects(*base) for base in bases]
            if not bases and known is not None and known.same_bits_as:
                given = [self.subjects(*self._base(choice, known.same_bits_as))]
            for base in given:
                pairs += [Pair(s, b) for s in own for b in base if _alike(s.arch, b.arch)]
            if not bases:
                pairs += [Pair(s, s) for s in own]
        return pairs

    def _base(self, choice: Choice, name: str) -> tuple[Choice, str]:
        """What same_bits_as means: a variant of the choice's own kernel, or of another one."""
        if ":" not in name:
            return choice, name
        (base,) = self.request.session.catalog.resolve([name])
        (variant,) = base.variants
        if base.op.name != choice.op.name:
            raise SpecError(
                f"{choice.kernel.spec_file}: same_bits_as must name a kernel of {choice.op.name}, "
                f"found {name}, which computes {base.op.name}"
            )
        return base, variant


def _like(choice: Choice, targets: Sequence[Arch]) -> list[Arch]:
    """Of a base that no reference names: its targets for the devices that the others are for."""
    found = [choice.kernel.targets_for(t.compute_capability) for t in targets]
    return [targets[0] for targets in found if targets]


def _alike(arch: str | None, other: str | None) -> bool:
    """Whether both are for the same devices: sm_90 and sm_90a are."""
    return arch == other or (
        arch is not None
        and other is not None
        and parse_arch(arch).compute_capability == parse_arch(other).compute_capability
    )
