"""`sparsekit verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sparsekit.check.golden import read_golden, write_golden
from sparsekit.cli.device import device_option, gpu_of
from sparsekit.cli.emit import emit
from sparsekit.cli.options import build_option, output_options, place_options, say, settings_option
from sparsekit.cli.progress import shown
from sparsekit.cli.selection import by_op, only, operator_of
from sparsekit.cli.session import Session, open_session
from sparsekit.discover import Choice
from sparsekit.errors import ContextLostError, UsageError
from sparsekit.model.op import TAGS
from sparsekit.model.results import VerifyResult
from sparsekit.report.verify import verify_document
from sparsekit.runtime.environment import environment
from sparsekit.toolchain.find import Toolchains


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
@click.option(
    "--toolchains",
    is_flag=True,
    help="With --bitwise: under every toolchain at hand, against the default one.",
)
@click.option(
    "--golden",
    "golden_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check outputs against the digests in this file; make it when it is not there.",
)
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
    bitwise: bool, against: str | None, toolchains: bool, golden_file: Path | None, repeat: int,
    inputs_file: Path | None, settings: dict[str, str], device: str, build: bool,
    kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str, output: Path | None,
) -> None:  # fmt: skip
    """Check kernels on a GPU: against float64, or bit for bit.

    Outputs are poisoned and guarded, rows that no index lists hold NaN, and the kernel runs before
    the reference. With --bitwise each variant is compared with the base that its spec names, with
    itself on new buffers and on several streams at once, and its first row with the same row in
    other batches.

    \b
    sparsekit verify
    sparsekit verify sparse_prefill --tag smoke --repeat 5
    sparsekit verify --bitwise gated_pool
    sparsekit verify sparse_prefill:skip --bitwise --against sparse_prefill:noskip --case 'length_*'
    sparsekit verify --bitwise --toolchains --tag seed
    sparsekit verify --tag seed --golden outputs.json
    sparsekit verify gated_pool --inputs mine.safetensors --set out_dtype=bf16
    """
    if (against or toolchains) and not bitwise:
        raise UsageError("--against and --toolchains go with --bitwise")
    if against and toolchains:
        raise UsageError("--against and --toolchains name two bases; give one")
    if inputs_file and (bitwise or pattern or tags):
        raise UsageError("--inputs are checked against float64: no --bitwise, --case or --tag")
    if settings and not inputs_file:
        raise UsageError("--set goes with --inputs: it gives the scalars of your call")
    golden = read_golden(golden_file) if golden_file else None
    session = open_session(cache_dir, kernel_dirs)
    choices = session.catalog.resolve(references)
    bases = session.catalog.resolve([against]) if against else ()
    torch_device, gpu = gpu_of(device)
    campaign = _Campaign(session, build, torch_device, repeat, pattern, tags or ("smoke", "corner"))
    digest: str | None = None
    if inputs_file is not None:
        steps, digest = campaign.on_file(choices, inputs_file, settings)
    elif toolchains:
        steps = campaign.across_toolchains(choices)
    elif bitwise:
        steps = campaign.bitwise(choices, bases)
    else:
        steps = campaign.against_float64(choices)
    results, lost = _collected(steps)
    if golden is not None:
        results += golden.check(list(results))
    elif golden_file is not None:
        count = write_golden(golden_file, results, environment(gpu))
        say(f"{golden_file}: the digests of {count} results")
    emit(verify_document(results, environment(gpu), digest), form, output)
    if lost is not None:
        raise lost
    ctx.exit(_exit_code(results, named=bool(references)))


def _collected(steps: Iterator[VerifyResult]) -> tuple[list[VerifyResult], ContextLostError | None]:
    """The results; where a kernel faulted, those before it and the fault."""
    results: list[VerifyResult] = []
    try:
        for result in shown(steps, None, "verifying"):
            results.append(result)
    except ContextLostError as error:
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
        self, session: Session, build: bool, device: Any, repeat: int, pattern: str | None,
        tags: Sequence[str],
    ) -> None:  # fmt: skip
        from sparsekit.check import campaign

        self._engine, self._session, self._build = campaign, session, build
        self._device, self._repeat, self._pattern, self._tags = device, repeat, pattern, tags

    def against_float64(self, choices: Sequence[Choice]) -> Iterator[VerifyResult]:
        for op, chosen in by_op(choices):
            cases = self._engine.chosen_cases(op, self._pattern, self._tags)
            subjects = [s for c in chosen for s in self._subjects(c)]
            yield from self._engine.against_reference(
                op, subjects, cases, self._device, self._repeat
            )

    def bitwise(self, choices: Sequence[Choice], bases: Sequence[Choice]) -> Iterator[VerifyResult]:
        base_subjects = [s for c in bases for s in self._subjects(c)]
        if bases and len(base_subjects) != 1:
            raise UsageError(
                "--against must name one variant, as in --against sparse_prefill:noskip"
            )
        for op, chosen in by_op(choices):
            cases = self._engine.chosen_cases(op, self._pattern, self._tags)
            pairs = [p for c in chosen for p in self._pairs(c, base_subjects)]
            yield from self._engine.against_bits(
                op, pairs, cases, self._device, self._repeat,
                rows=self._pattern is None and "smoke" in self._tags,
            )  # fmt: skip

    def across_toolchains(self, choices: Sequence[Choice]) -> Iterator[VerifyResult]:
        """Each variant under every other toolchain against itself under the one it would use."""
        for op, chosen in by_op(choices):
            cases = self._engine.chosen_cases(op, self._pattern, self._tags)
            pairs = [
                self._engine.Pair(self._subject(replace(c, toolchain=t), name), base)
                for c in chosen
                for name in c.variants
                for base in [self._subject(c, name)]
                for t in self._others(c)
            ]
            if not pairs:
                say(f"{op.name}: no other toolchain is at hand; see sparsekit doctor")
            yield from self._engine.against_bits(
                op, pairs, cases, self._device, self._repeat, rows=False
            )

    def _others(self, choice: Choice) -> list[str]:
        own = self._session.planner.toolchain(choice).id
        at_hand = Toolchains(self._session.settings).all(choice.kernel.lang)
        return [t.id for t in at_hand if t.id != own]

    def on_file(
        self, choices: Sequence[Choice], file: Path, scalars: dict[str, str]
    ) -> tuple[Iterator[VerifyResult], str]:
        from sparsekit.check.files import load_inputs

        ops = by_op(choices)
        if len(ops) != 1:
            raise UsageError("--inputs holds the tensors of one op; name it")
        op, chosen = ops[0]
        inputs, digest = load_inputs(file, op, scalars, self._device)
        subjects = [s for c in chosen for s in self._subjects(c)]
        name = f"{file.name}:{digest[:12]}"
        return self._engine.on_inputs(
            op, subjects, inputs, name, self._device, self._repeat
        ), digest

    def _subjects(self, choice: Choice) -> list[Any]:
        return [self._subject(choice, name) for name in choice.variants]

    def _subject(self, choice: Choice, variant: str) -> Any:
        from sparsekit.check.subject import OperatorSubject

        operator = operator_of(self._session, [only(choice, variant)], build=self._build)
        named = f"{variant}@{choice.toolchain}" if choice.toolchain else variant
        return OperatorSubject(choice.kernel.name, named, operator)

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
