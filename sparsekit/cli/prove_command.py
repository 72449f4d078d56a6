"""`sparsekit prove`: other commands, one after another, each in a process of its own."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click

from sparsekit.cli.device import cuda_index, gpu_option
from sparsekit.cli.emit import emit
from sparsekit.cli.options import FOLDER, output_options, place_options, say
from sparsekit.cli.selection import by_op
from sparsekit.cli.session import open_session
from sparsekit.discover import Catalog, Choice
from sparsekit.errors import EXIT_OK, GpuError, UsageError
from sparsekit.model.arch import Capability, format_capability
from sparsekit.model.op import Op
from sparsekit.report.document import Document, Lines, Table

_LIMIT_MIN = 30


@dataclass(frozen=True)
class Step:
    """A command whose result goes to a file. code: how it ended, None where it had to be ended."""

    arguments: tuple[str, ...]
    file: Path
    code: int | None = None

    @property
    def log(self) -> Path:
        """What it said, which is there even where it had to be ended."""
        return self.file.with_suffix(".log")

    @property
    def command(self) -> str:
        return shlex.join(["sparsekit", *self.arguments])

    @property
    def told(self) -> str:
        if self.code is None:
            return "ended after the limit"
        return "good" if self.code == EXIT_OK else f"exit code {self.code}"


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@click.option("--folder", type=FOLDER, default=Path("proof"), show_default=True,
              help="Where the results and the page go.")  # fmt: skip
@click.option("--limit", "limit_min", type=click.IntRange(min=1), default=_LIMIT_MIN,
              show_default=True, metavar="MINUTES",
              help="A step that takes longer is ended: a kernel may hang.")  # fmt: skip
@click.option("-n", "--dry-run", is_flag=True, help="Show the commands; run nothing.")
@gpu_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], folder: Path, limit_min: int, dry_run: bool,
    device: str, kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Prove or refute kernels on a GPU where they have not run: verify, bench and report.

    Every variant against float64, bit for bit against its base, and timed beside the kernel that
    would stand in; then one page of it all. Without REF: the kernels that have not run on such a
    GPU. Each step is a command in a process of its own, so that a kernel may crash or hang.

    \b
    sparsekit prove
    sparsekit prove cu/sparse_prefill_sm100 --folder b200
    sparsekit prove -n cu/sparse_prefill_sm100
    """
    session = open_session(cache_dir, kernel_dirs)
    choices = session.catalog.resolve(references)
    if not (dry_run and references):
        choices = _for_device(choices, _capability(device), named=bool(references))
    options = [o for d in kernel_dirs for o in ("--kernels", str(d))]
    options += [] if cache_dir is None else ["--cache-dir", str(cache_dir)]
    groups = [_Proof(op, of_op, session.catalog, folder) for op, of_op in by_op(choices)]
    steps = [s for g in groups for s in g.steps(["--device", device, *options])]
    page = folder / "page.md"
    if dry_run:
        steps.append(_reported([str(step.file) for step in steps], page))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for step in steps:  # from before, they are no result of this run
            step.file.unlink(missing_ok=True)
        page.unlink(missing_ok=True)
        with _told_when_stopped(steps):
            steps = [_ended(step, limit_min) for step in steps]
            if there := _there(steps):
                steps.append(_ended(_reported(there, page), limit_min))
    emit(_document(steps, dry_run), form, output)
    if not dry_run:
        ctx.exit(max(_severity(step) for step in steps))


class _Proof:
    """The kernels of one op, and the one beside which they are timed."""

    def __init__(self, op: Op, choices: Sequence[Choice], catalog: Catalog, folder: Path) -> None:
        self._op, self._folder = op, folder
        self._names = [name for choice in choices for name in _references(choice)]
        proven = {c.kernel.name for c in choices}
        last = catalog.resolve([op.name])[-1].kernel
        self._against = [] if last.name in proven else ["--against", last.qualified_name]

    def steps(self, options: Sequence[str]) -> list[Step]:
        return [
            self._step("verify", "verify", *options),
            self._step("bitwise", "verify", "--bitwise", *options),
            self._step("bench", "bench", *self._against, *options),
        ]

    def _step(self, name: str, command: str, *options: str) -> Step:
        file = self._folder / f"{name}-{self._op.name}.json"
        form = ("--format", "json", "-o", str(file))
        return Step((command, *self._names, *options, *form), file)


def _reported(files: Sequence[str], page: Path) -> Step:
    return Step(("report", *files, "-o", str(page)), page)


def _references(choice: Choice) -> list[str]:
    """What means the choice and no other."""
    kernel = choice.kernel
    name = kernel.address.name if kernel.address else kernel.qualified_name
    at = f"@{choice.toolchain}" if choice.toolchain else ""
    if len(choice.variants) == len(kernel.variants):
        return [name + at]
    return [f"{name}:{variant}{at}" for variant in choice.variants]


def _capability(device: str) -> Capability:
    from sparsekit.runtime.probe import probe_devices

    probe = probe_devices()
    index = cuda_index(device, or_cpu=False)
    if index >= len(probe.devices):
        raise GpuError(
            f"--device {device}: {probe.problem or 'the driver shows no such GPU'}; see sparsekit "
            "doctor, or look at the commands with -n"
        )
    return probe.devices[index].compute_capability


def _for_device(
    choices: Sequence[Choice], capability: Capability, *, named: bool
) -> tuple[Choice, ...]:
    """Those that have code for the device; where none was named, those that have not run there."""
    found = format_capability(capability)
    fit = [c for c in choices if c.kernel.targets_for(capability)]
    if named:
        for choice in choices:
            if choice not in fit:
                name, archs = choice.kernel.qualified_name, ", ".join(map(str, choice.kernel.archs))
                raise UsageError(f"{name} has no code for {found}; it is for {archs}")
        return tuple(fit)
    unproven = tuple(c for c in fit if not c.kernel.is_proven_on(capability))
    if not unproven:
        raise UsageError(f"nothing is unproven on {found}; name what to prove")
    return unproven


def _there(steps: Sequence[Step]) -> list[str]:
    return [str(s.file) for s in steps if s.file.is_file()]


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def _told_when_stopped(steps: Sequence[Step]) -> Iterator[None]:
    """Ended by a signal, too, this ends the step that runs, which has a session of its own."""
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    except KeyboardInterrupt:
        there = _there(steps)
        say(f"stopped; there are {', '.join(there)}" if there else "stopped before any result")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(step: Step, limit_min: int) -> Step:
    from sparsekit.operators.own_process import run_again

    say(step.command)
    ended = run_again(step.arguments, limit_min * 60, log=step.log)
    return Step(step.arguments, step.file, ended.code)


def _severity(step: Step) -> int:
    """The exit code that says most: what had to be ended or crashed counts as a GPU's failure."""
    return GpuError.exit_code if step.code is None or step.code < 0 else step.code


def _document(steps: Sequence[Step], dry_run: bool) -> Document:
    data = {
        "schema": 1, "kind": "prove",
        "steps": [
            {"command": s.command, "file": str(s.file), "log": str(s.log),
             "exit_code": None if dry_run else s.code,
             "ended": not dry_run and s.code is None}
            for s in steps
        ],
    }  # fmt: skip
    if dry_run:
        return Document(data, (Lines(tuple(s.command for s in steps), code=True),))
    rows = [
        (s.told, s.command, str(s.file) if s.file.is_file() else f"none; see {s.log}")
        for s in steps
    ]  # fmt: skip
    return Document(data, (Table("", ("", "command", "result"), rows),))
