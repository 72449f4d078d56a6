"""What `verify` asks of the engine: the same checks on a GPU and on the CPU.

torch and numpy are imported here, and only when a verification starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsekit.check.cases import cases_of_ops
from sparsekit.cli.emulation import emulated_targets, emulation_plan
from sparsekit.cli.options import require_inputs, say
from sparsekit.cli.selection import by_op, changed_case, only, operator_of
from sparsekit.cli.session import Session
from sparsekit.cli.verify_pairs import Subjects, across_toolchains, with_bases
from sparsekit.discover import Choice
from sparsekit.errors import UsageError
from sparsekit.model.arch import Arch
from sparsekit.model.op import TAGS, Case, Op, with_settings
from sparsekit.model.results import VerifyResult

if TYPE_CHECKING:
    from sparsekit.check.beside import Beside

_Work = tuple[Op, list[Choice], list[Case]]
_TAGS, _EMULATED_TAGS = ("smoke", "corner"), ("smoke",)


@dataclass(frozen=True)
class Steps:
    """The results to come, the sha256 of the user's inputs, what is left out and why."""

    results: Iterator[VerifyResult]
    inputs_sha256: str | None = None
    left_out: tuple[str, ...] = ()


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
        if self.bases and sum(len(c.variants) for c in self.bases) != 1:
            raise UsageError(
                "--against must name one variant, as in --against sparse_prefill:noskip"
            )
        ops = by_op(self.choices)
        compared = dict.fromkeys(c.op.name for c in (*self.choices, *self.bases))
        if self.bases and len(compared) > 1:
            raise UsageError(
                f"what is compared must compute one op, found {', '.join(compared)}; name kernels "
                f"of {self.bases[0].op.name}, the op of --against"
            )
        if file is None:
            chosen = cases_of_ops([op for op, _ in ops], self.patterns, self.tags or TAGS)
            for op, cases in chosen:
                for case in cases:
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
        ops = [op for op, _ in by_op([choice for choice, _ in targets])]
        chosen = cases_of_ops(ops, request.patterns, tags)
        left_out = ops_left_out(ops, chosen, request.patterns, tags)
        tasks = tasks_of(targets, request.patterns, tags, request.changes, session.settings.jobs)
        return Steps(run_tasks(plan, tasks, session.settings.jobs, say), None, left_out)
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
    subjects: Subjects
    device: Any
    default_tags: Sequence[str]

    def steps(self, file: Path | None) -> Steps:
        if file is not None:
            return self._on_file(file)
        work, left_out = self._work()
        if not self.request.bitwise:
            return Steps(self._against_float64(work), None, left_out)

        from sparsekit.check.beside import beside_pairs

        on_cpu = self.device.type != "cuda"
        beside = {
            op.name: beside_pairs(
                op, cases, named=bool(self.request.patterns), across=self.request.across,
                emulated=on_cpu,
            )
            for op, _, cases in work
        }  # fmt: skip
        told = tuple(text for b in beside.values() for text in b.left_out)
        return Steps(self._bitwise(work, beside), None, (*left_out, *told))

    def _work(self) -> tuple[list[_Work], tuple[str, ...]]:
        """What there is to do, op by op, and the ops that are left out, with the reason."""
        request, groups = self.request, by_op(self.request.choices)
        tags = request.tags or self.default_tags
        chosen = cases_of_ops([op for op, _ in groups], request.patterns, tags)
        of_op = {op.name: choices for op, choices in groups}
        work = [(op, of_op[op.name], [self._case(op, c) for c in cases]) for op, cases in chosen]
        return work, ops_left_out([op for op, _ in groups], chosen, request.patterns, tags)

    def _case(self, op: Op, case: Case) -> Case:
        sized = case if self.device.type == "cuda" else case.for_emulator()
        return with_settings(op, sized, self.request.changes)

    def _against_float64(self, work: Sequence[_Work]) -> Iterator[VerifyResult]:
        from sparsekit.check import campaign

        for op, chosen, cases in work:
            subjects = [s for c in chosen for v in c.variants for s in self.subjects(c, v)]
            steps = campaign.against_reference(
                op, subjects, cases, self.device, self.request.repeat
            )
            yield from campaign.guarded(op, subjects, steps, self.device)

    def _bitwise(
        self, work: Sequence[_Work], beside: Mapping[str, Beside]
    ) -> Iterator[VerifyResult]:
        from sparsekit.check import campaign

        session = self.request.session
        bases = [(c, v) for c in self.request.bases for v in c.variants]
        for op, chosen, cases in work:
            if self.request.across:
                pairs = [p for c in chosen for p in across_toolchains(session, c, self.subjects)]
                if not pairs:
                    say(f"{op.name}: no other toolchain is at hand; see sparsekit doctor")
            else:
                pairs = [p for c in chosen for p in with_bases(session, c, bases, self.subjects)]
            steps = campaign.against_bits(
                op, pairs, cases, self.device, self.request.repeat, beside[op.name]
            )
            yield from campaign.guarded(op, [p.subject for p in pairs], steps, self.device)

    def _on_file(self, file: Path) -> Steps:
        from sparsekit.check import campaign
        from sparsekit.check.files import load_inputs

        ((op, chosen),) = by_op(self.request.choices)
        inputs, digest = load_inputs(file, op, self.request.changes, self.device)
        subjects = [s for c in chosen for v in c.variants for s in self.subjects(c, v)]
        name = f"{file.name}:{digest[:12]}"
        steps = campaign.on_inputs(op, subjects, inputs, name, self.device, self.request.repeat)
        return Steps(steps, digest)


def _like(choice: Choice, targets: Sequence[Arch]) -> list[Arch]:
    """Of a base that no reference names: its targets for the devices that the others are for."""
    found = [choice.kernel.targets_for(t.compute_capability) for t in targets]
    return [targets[0] for targets in found if targets]


def ops_left_out(
    ops: Sequence[Op], chosen: Sequence[tuple[Op, list[Case]]], patterns: Sequence[str],
    tags: Sequence[str],
) -> tuple[str, ...]:  # fmt: skip
    """The ops without such a case, and that they have none."""
    having = {op.name for op, _ in chosen}
    asked = " or ".join(patterns) if patterns else f"with the tag {' or '.join(tags)}"
    return tuple(f"{op.name}: it has no case {asked}" for op in ops if op.name not in having)
