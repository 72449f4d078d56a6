"""`sparsekit bench`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsekit.check.cases import cases_of_ops
from sparsekit.cli.contenders import Comparison, comparisons_of
from sparsekit.cli.device import gpu_of, gpu_option
from sparsekit.cli.emit import emit
from sparsekit.cli.options import (
    batch_invariant_option,
    build_option,
    inputs_option,
    output_options,
    place_options,
    say,
    settings_option,
)
from sparsekit.cli.progress import shown
from sparsekit.cli.selection import changed_case
from sparsekit.cli.session import open_session
from sparsekit.errors import EXIT_CHECK_FAILED, EXIT_OK, ContextLostError, GpuError, UsageError
from sparsekit.model.bench import BenchResult
from sparsekit.model.call import Device
from sparsekit.model.op import TAGS, Case, Op
from sparsekit.report.bench import bench_document
from sparsekit.report.document import Document
from sparsekit.runtime.environment import environment
from sparsekit.runtime.nvml import Watch

if TYPE_CHECKING:
    from sparsekit.check.workload import Workload
    from sparsekit.measure.bench import Setup
    from sparsekit.measure.condition import Condition
    from sparsekit.measure.contender import Contender

_PROTOCOLS = ("sparsekit", "seed1", "seed2")


def _a_number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("it is no number")
    return value


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@click.option("--against", metavar="REF", multiple=True,
              help="What ratios are to; repeatable, the first is the base.")  # fmt: skip
@click.option("--case", "patterns", metavar="GLOB", multiple=True,
              help="Cases by name, whatever their tags; repeatable.")  # fmt: skip
@click.option("--tag", "tags", type=click.Choice(TAGS), multiple=True,
              help="Cases by tag; repeatable [default: perf].")  # fmt: skip
@inputs_option
@settings_option
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds, each with every candidate.")
@click.option("--l2", type=click.Choice(["cold", "warm"]),
              help="Flush inputs out of L2 before each sample, or leave it as it is "
              "[default: cold].")  # fmt: skip
@click.option("--protocol", "protocol_name", type=click.Choice(_PROTOCOLS), default="sparsekit",
              show_default=True, help="How samples become a time.")  # fmt: skip
@click.option("--margin", type=click.FloatRange(min=0, max=1), default=0.01, show_default=True,
              callback=_a_number, help="Differences within it count as the same.")  # fmt: skip
@click.option("--fail-if", "conditions", metavar="CONDITION", multiple=True,
              help="Exit 1 when a timing meets it, as in 'ratio>1.02', or nobody can tell; "
              "repeatable.")  # fmt: skip
@gpu_option
@batch_invariant_option
@build_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], against: tuple[str, ...],
    patterns: tuple[str, ...], tags: tuple[str, ...], inputs_file: Path | None,
    settings: dict[str, str], rounds: int | None, l2: str | None, protocol_name: str,
    margin: float, conditions: tuple[str, ...], device: str,
    batch_invariant: bool, build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None,
    form: str, output: Path | None,
) -> None:  # fmt: skip
    """Time kernels on a GPU, against one another in one run.

    All candidates take the same buffers in interleaved rounds. A verdict hangs on the 99 % interval
    of a ratio: same (within --margin), faster, slower, or can't tell. With -o the result is written
    after each case. REF may be NAME@git:REV, or py:package.module:function with the op's signature.

    \b
    sparsekit bench --format json -o bench.json
    sparsekit bench sparse_prefill:skip --against sparse_prefill:noskip --case 'seed1_*'
    sparsekit bench gated_pool:plain@triton-3.6.0 gated_pool:plain@triton-3.8.0 --protocol seed2
    sparsekit bench sparse_prefill --against py:flash_mla:flash_mla_sparse_fwd --l2 warm
    sparsekit bench sparse_prefill --against sparse_prefill@git:main --fail-if 'ratio>1.02'
    sparsekit bench sparse_attn_paged --no-batch-invariant --case 'decode_*'
    """
    session = open_session(cache_dir, kernel_dirs)
    compared = comparisons_of(
        session, references, against, build=build, batch_invariant=batch_invariant
    )
    for option, given in (("--rounds", rounds), ("--l2", l2)):
        if given is not None and protocol_name != "sparsekit":
            raise UsageError(
                f"{option} does not go with --protocol {protocol_name}, which has its own"
            )
    from sparsekit.measure.condition import parse_condition

    wanted = [parse_condition(text) for text in conditions]
    cases = {}
    if inputs_file is None:
        cases = _chosen(compared, patterns, tags or ("perf",), settings)
    elif patterns or tags or len(compared) != 1:
        raise UsageError("--inputs holds the tensors of one op: name it, and no --case or --tag")
    torch_device, gpu = gpu_of(device, or_cpu=False)
    groups = [(c.op, c.contenders()) for c in compared if inputs_file or c.op.name in cases]
    workload = (
        _workload_of(groups[0][0], inputs_file, settings, torch_device) if inputs_file else None
    )
    watch = Watch(gpu.pci_bus_id)
    if watch.problem:
        say(watch.problem)
    setup = _setup(torch_device, watch, protocol_name, rounds, l2 or "cold", margin)
    setup = replace(setup, base_is_named=bool(against))
    run = _Run(torch_device, gpu, watch, setup, output, form)
    if workload is not None:
        steps, total = run.on_workload(workload, groups[0][1]), 1
    else:
        chosen = [(op, contenders, cases[op.name]) for op, contenders in groups]
        steps, total = run.on_cases(chosen), sum(map(len, cases.values()))
    lost = run.collect(shown(steps, total, "timing"))
    run.finish(partial=lost is not None)
    if lost is not None:
        raise lost
    ctx.exit(_exit_code(run.results, wanted))


def _exit_code(results: Sequence[BenchResult], conditions: Sequence[Condition]) -> int:
    timings = [t for r in results for t in r.timings]
    if any(t.problem and not t.samples_s for t in timings):
        say("a candidate failed; see its problem in the result")
        return GpuError.exit_code
    if not timings:
        say("nothing was timed")
        return UsageError.exit_code

    from sparsekit.measure.condition import objections

    told = objections(results, conditions)
    for line in told:
        say(line)
    return EXIT_CHECK_FAILED if told or any(t.problem for t in timings) else EXIT_OK


def _chosen(
    compared: Sequence[Comparison], patterns: tuple[str, ...], tags: Sequence[str],
    settings: dict[str, str],
) -> dict[str, list[Case]]:  # fmt: skip
    """By op, of those that have such, the cases with `--set` applied."""
    return {
        op.name: [changed_case(op, case, settings) for case in cases]
        for op, cases in cases_of_ops([c.op for c in compared], patterns, tags)
    }


def _workload_of(op: Op, file: Path, scalars: dict[str, str], device: Any) -> Workload:
    from sparsekit.check.files import load_inputs
    from sparsekit.check.workload import user_workload

    inputs, digest = load_inputs(file, op, scalars, device)
    return user_workload(op, inputs, f"{file.name}:{digest[:12]}", device)


def _setup(
    device: Any, watch: Watch, protocol_name: str, rounds: int | None, l2: str, margin: float
) -> Setup:
    """What the options say for every case, with the ceilings of this GPU as it is now."""
    from sparsekit.measure.bench import Setup
    from sparsekit.measure.ceilings import measure_ceilings
    from sparsekit.measure.protocol import PROTOCOLS
    from sparsekit.measure.timer import CudaTimer

    protocol = PROTOCOLS[protocol_name]
    if rounds is not None:
        protocol = replace(protocol, rounds=rounds)
    timer = CudaTimer(device)
    return Setup(timer, watch.read, protocol, l2, margin, measure_ceilings(timer, device))


class _Run:
    """One run of the engine, and what came of it so far; torch is imported here, not before."""

    def __init__(
        self, device: Any, gpu: Device, watch: Watch, setup: Setup, output: Path | None, form: str
    ) -> None:
        from sparsekit.measure import bench

        self._engine, self._device, self._gpu, self._watch = bench, device, gpu, watch
        self._setup, self._output, self._form = setup, output, form
        self._environment = environment(gpu)
        self.results: list[BenchResult] = []

    def on_cases(
        self, chosen: Sequence[tuple[Op, Sequence[Contender], Sequence[Case]]]
    ) -> Iterator[BenchResult]:
        for op, contenders, cases in chosen:
            yield from self._engine.bench_cases(
                op, contenders, cases, self._device, self._gpu.name, self._setup
            )

    def on_workload(
        self, workload: Workload, contenders: Sequence[Contender]
    ) -> Iterator[BenchResult]:
        yield self._engine.bench_workload(workload, contenders, self._gpu.name, self._setup)

    def collect(self, steps: Iterator[BenchResult]) -> ContextLostError | KeyboardInterrupt | None:
        """Take the results, writing after each; what ended the run before its end."""
        try:
            for result in steps:
                self.results.append(result)
                if self._output is not None:
                    emit(self._document(partial=True), self._form, self._output)
        except (ContextLostError, KeyboardInterrupt) as error:
            return error
        return None

    def finish(self, *, partial: bool) -> None:
        """Tell all results; nothing is written over where there is none."""
        if self.results or not partial:
            emit(self._document(partial=partial), self._form, self._output)

    def _document(self, *, partial: bool) -> Document:
        setup = self._setup
        told = {
            **self._environment, "others": list(self._watch.others()), "watch": self._watch.problem
        }  # fmt: skip
        return bench_document(
            self.results, told, protocol=setup.protocol.name, said=setup.protocol.said,
            margin=setup.margin, ceilings=setup.ceilings, partial=partial,
        )  # fmt: skip
