"""`sparsekit verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sparsekit.cli.device import device_option, gpu_of
from sparsekit.cli.emit import emit
from sparsekit.cli.options import (
    build_option,
    output_options,
    place_options,
    require_inputs,
    say,
    settings_option,
)
from sparsekit.cli.progress import shown
from sparsekit.cli.session import Session, open_session
from sparsekit.discover import Choice
from sparsekit.errors import SparsekitError, SpecError, UsageError
from sparsekit.model.op import TAGS, Op
from sparsekit.model.results import VerifyResult
from sparsekit.report.verify import verify_document
from sparsekit.runtime.environment import environment


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@click.option("--case", "pattern", metavar="GLOB", help="Cases by name, whatever their tags.")
@click.option(
    "--tag", "tags", type=click.Choice(TAGS), multiple=True,
    help="Cases by tag; repeatable [default: smoke, corner].",
)  # fmt: skip
@click.option(
    "--bitwise", is_flag=True, help="Bit for bit against the base, itself, and row by row."
)
@click.option("--against", metavar="REF", help="With --bitwise: the base, instead of the spec's.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True,
              help="Launches of each case, all with the same bytes.")  # fmt: skip
@click.option("--inputs", "inputs_file", type=click.Path(dir_okay=False, path_type=Path),
              help="Your own tensors: a safetensors file of the op's inputs by name.")  # fmt: skip
@settings_option
@device_option
@build_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], pattern: str | None, tags: tuple[str, ...],
    bitwise: bool, against: str | None, repeat: int, inputs_file: Path | None,
    settings: dict[str, str], device: str, build: bool, kernel_dirs: tuple[Path, ...],
    cache_dir: Path | None, form: str, output: Path | None,
) -> None:  # fmt: skip
    """Check kernels on a GPU: against float64, or bit for bit.

    Outputs are poisoned and guarded, rows that no index lists hold NaN, and the kernel runs before
    the reference. With --bitwise each variant is compared with the base that its spec names, with
    itself on new buffers, and its first row with the same row in other batches.

    \b
    sparsekit verify
    sparsekit verify sparse_prefill --tag smoke --repeat 5
    sparsekit verify --bitwise gated_pool
    sparsekit verify sparse_prefill:skip --bitwise --against sparse_prefill:noskip --case 'length_*'
    sparsekit verify gated_pool --inputs mine.safetensors --set out_dtype=bf16
    """
    if against and not bitwise:
        raise UsageError("--against goes with --bitwise")
    if inputs_file and (bitwise or pattern or tags):
        raise UsageError("--inputs are checked against float64: no --bitwise, --case or --tag")
    if settings and not inputs_file:
        raise UsageError("--set goes with --inputs: it gives the scalars of your call")
    session = open_session(cache_dir, kernel_dirs)
    choices = session.catalog.resolve(references)
    bases = session.catalog.resolve([against]) if against else ()
    broken = session.broken_beside(references)
    campaign = _Campaign(session, build, repeat, pattern, tags or ("smoke", "corner"))
    campaign.require(choices, bases, inputs_file, settings)
    campaign.device, gpu = gpu_of(device)
    digest: str | None = None
    if inputs_file is not None:
        steps, digest = campaign.on_file(choices, inputs_file, settings)
    elif bitwise:
        steps = campaign.bitwise(choices, bases)
    else:
        steps = campaign.against_float64(choices)
    results, stopped = _collected(steps)
    emit(verify_document(results, environment(gpu), digest), form, output)
    if stopped is not None:
        raise stopped
    code = _exit_code(results, named=bool(references))
    ctx.exit(code or max((b.exit_code for b in broken), default=0))


def _collected(steps: Iterator[VerifyResult]) -> tuple[list[VerifyResult], SparsekitError | None]:
    """The results; where something stopped the campaign, those before it, and what."""
    results: list[VerifyResult] = []
    try:
        for result in shown(steps, None, "verifying"):
            results.append(result)
    except SparsekitError as error:
        if not results:
            raise
        return results, error
    return results, None


def _exit_code(results: Sequence[VerifyResult], *, named: bool) -> int:
    """A failure is 1; nothing that ran, of all or of a kernel that was asked for by name, is 2."""
    if any(r.ok is False for r in results):
        return 1
    ran = {r.kernel for r in results if r.ok}
    idle = sorted({r.kernel for r in results} - ran)
    if ran and not (named and idle):
        return 0
    say(f"nothing of {', '.join(idle)} ran; see the reasons" if idle else "nothing ran")
    return UsageError.exit_code


class _Campaign:
    """The engine's calls with what the options say; torch is imported here, not before."""

    def __init__(
        self, session: Session, build: bool, repeat: int, pattern: str | None, tags: Sequence[str]
    ) -> None:
        from sparsekit.check import campaign

        self._engine, self._session, self._build = campaign, session, build
        self._repeat, self._pattern, self._tags = repeat, pattern, tags
        self.device: Any = None

    def require(
        self, choices: Sequence[Choice], bases: Sequence[Choice], file: Path | None,
        scalars: dict[str, str],
    ) -> None:  # fmt: skip
        """Raise UsageError for what is wrong whatever the machine has."""
        if bases and sum(len(c.variants) for c in bases) != 1:
            raise UsageError(
                "--against must name one variant, as in --against sparse_prefill:noskip"
            )
        ops = _by_op(choices)
        if file is None:
            for op, _ in ops:
                self._engine.chosen_cases(op, self._pattern, self._tags)
        elif len(ops) != 1:
            raise UsageError("--inputs holds the tensors of one op; name it")
        else:
            require_inputs(file, ops[0][0], scalars)

    def against_float64(self, choices: Sequence[Choice]) -> Iterator[VerifyResult]:
        for op, chosen in _by_op(choices):
            cases = self._engine.chosen_cases(op, self._pattern, self._tags)
            subjects = [s for c in chosen for s in self._subjects(c)]
            steps = self._engine.against_reference(op, subjects, cases, self.device, self._repeat)
            yield from self._guarded(op, subjects, steps)

    def bitwise(self, choices: Sequence[Choice], bases: Sequence[Choice]) -> Iterator[VerifyResult]:
        base_subjects = [s for c in bases for s in self._subjects(c)]
        for op, chosen in _by_op(choices):
            cases = self._engine.chosen_cases(op, self._pattern, self._tags)
            pairs = [p for c in chosen for p in self._pairs(c, base_subjects)]
            steps = self._engine.against_bits(
                op, pairs, cases, self.device, self._repeat,
                rows=self._pattern is None and "smoke" in self._tags,
            )  # fmt: skip
            yield from self._guarded(op, [p.subject for p in pairs], steps)

    def on_file(
        self, choices: Sequence[Choice], file: Path, scalars: dict[str, str]
    ) -> tuple[Iterator[VerifyResult], str]:
        from sparsekit.check.files import load_inputs

        ((op, chosen),) = _by_op(choices)
        inputs, digest = load_inputs(file, op, scalars, self.device)
        subjects = [s for c in chosen for s in self._subjects(c)]
        name = f"{file.name}:{digest[:12]}"
        return self._engine.on_inputs(op, subjects, inputs, name, self.device, self._repeat), digest

    def _guarded(
        self, op: Op, subjects: Sequence[Any], steps: Iterator[VerifyResult]
    ) -> Iterator[VerifyResult]:
        """The op's results; a reference.py that does not hold together fails its kernels only."""
        try:
            yield from steps
        except SpecError as error:
            for subject in subjects:
                yield VerifyResult(
                    op.name, subject.kernel, subject.variant, None, None, str(self.device),
                    "any case", "its reference", runs=0, ok=False, reason=str(error),
                )  # fmt: skip

    def _subjects(self, choice: Choice) -> list[Any]:
        return [self._subject(choice, name) for name in choice.variants]

    def _subject(self, choice: Choice, variant: str) -> Any:
        from sparsekit.check.subject import OperatorSubject
        from sparsekit.operators.operator import Operator

        only = replace(choice, variants=(variant,))
        operator = Operator(
            choice.op,
            [only],
            self._session.planner,
            self._session.store,
            build=self._build,
            note=say,
        )
        return OperatorSubject(choice.kernel.name, variant, operator)

    def _pairs(self, choice: Choice, bases: Sequence[Any]) -> list[Any]:
        """Each variant with its base, and with itself on new buffers."""
        pairs = []
        for name in choice.variants:
            subject = self._subject(choice, name)
            if bases:
                pairs.append(self._engine.Pair(subject, bases[0]))
                continue
            found = choice.kernel.variant(name)
            if found is not None and found.same_bits_as:
                base = self._subject(choice, found.same_bits_as)
                pairs.append(self._engine.Pair(subject, base))
            pairs.append(self._engine.Pair(subject, subject))
        return pairs


def _by_op(choices: Sequence[Choice]) -> list[tuple[Op, list[Choice]]]:
    groups: dict[str, tuple[Op, list[Choice]]] = {}
    for choice in choices:
        groups.setdefault(choice.op.name, (choice.op, []))[1].append(choice)
    return list(groups.values())
