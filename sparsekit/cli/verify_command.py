"""`sparsekit verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sparsekit.check.golden import read_golden, write_golden
from sparsekit.cli.device import CPU, cuda_index, device_option, emulation_options, gpu_of
from sparsekit.cli.emit import emit, require_writable
from sparsekit.cli.options import (
    FILE,
    build_option,
    inputs_option,
    output_options,
    place_options,
    say,
    settings_option,
    toolchain_option,
)
from sparsekit.cli.progress import shown
from sparsekit.cli.session import open_session
from sparsekit.cli.verification import Request, on_cpu, on_gpu
from sparsekit.discover import Choice
from sparsekit.errors import EXIT_CHECK_FAILED, EXIT_OK, SparsekitError, UsageError
from sparsekit.model.op import TAGS
from sparsekit.model.results import VerifyResult
from sparsekit.report.document import Document, Lines
from sparsekit.report.units import ENDED_EARLY
from sparsekit.report.verify import verify_document
from sparsekit.runtime.environment import environment
from sparsekit.runtime.probe import probe_devices


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@click.option("--case", "patterns", metavar="GLOB", multiple=True,
              help="Cases by name, whatever their tags; repeatable.")  # fmt: skip
@click.option(
    "--tag", "tags", type=click.Choice(TAGS), multiple=True,
    help="Cases by tag; repeatable [default: smoke, corner; on the CPU: smoke].",
)  # fmt: skip
@click.option(
    "--bitwise",
    is_flag=True,
    help="Bit for bit against the base, itself, and row by row (smoke cases, or those of --case).",
)
@click.option("--against", metavar="REF", help="With --bitwise: the base, instead of the spec's.")
@click.option(
    "--across-toolchains",
    "across",
    is_flag=True,
    help="With --bitwise: under every toolchain at hand, against the default one.",
)
@click.option(
    "--golden",
    "golden_file",
    type=FILE,
    help="Check outputs against the digests in this file; make it when it is not there.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True,
              help="Launches of each case, all with the same bytes.")  # fmt: skip
@inputs_option
@settings_option
@device_option(None, "cuda; cpu where there is no GPU")
@click.option("--arch", metavar="LIST",
              help="With --device cpu: whose PTX [default: every arch that is built].")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=0), default=0, metavar="N",
              help="Emulated: so many random schedules beside lazy and eager.")  # fmt: skip
@emulation_options
@click.option("-j", "--jobs", type=click.IntRange(min=1),
              help="Emulating processes [default: cores].")  # fmt: skip
@toolchain_option
@build_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], patterns: tuple[str, ...],
    tags: tuple[str, ...], bitwise: bool, against: str | None, across: bool,
    golden_file: Path | None, repeat: int, inputs_file: Path | None, settings: dict[str, str],
    device: str | None, arch: str | None, seeds: int, strict: bool, without: tuple[str, ...],
    lineinfo: bool, jobs: int | None,
    toolchains: tuple[str, ...], build: bool,
    kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str, output: Path | None,
) -> None:  # fmt: skip
    """Check kernels against float64, or bit for bit, on a GPU or on the CPU.

    Outputs are poisoned and guarded, rows that no index lists hold NaN, and the kernel runs before
    the reference. With --bitwise each variant is compared with the base that its spec names, with
    itself on new buffers and on several streams at once, its first row with the same row in other
    batches, its middle and last row alone with the whole. Rows and streams are of smoke cases, or
    of those that --case names; on the CPU only row 0 is, and across toolchains none. The result
    says what was left out.

    With --device cpu, and without a GPU, the PTX of each arch is emulated: memory, races, barriers
    and more are checked at every instruction, under several schedules, and the report says which
    blocks of code ran. docs/emulator.md has what this can see, and what it cannot.

    \b
    sparsekit verify
    sparsekit verify sparse_prefill --tag smoke --repeat 5
    sparsekit verify sparse_prefill --device cpu --arch sm_80,sm_120 --seeds 2
    sparsekit verify cu/sparse_prefill_sm100:skip_pair --tag corner --set h_q=90 --device cpu
    sparsekit verify --bitwise gated_pool
    sparsekit verify sparse_prefill:skip --bitwise --against sparse_prefill:noskip --case 'length_*'
    sparsekit verify --bitwise --across-toolchains --tag seed
    sparsekit verify --tag seed --golden outputs.json
    sparsekit verify gated_pool --inputs mine.safetensors --set out_dtype=bf16
    """
    if (against or across) and not bitwise:
        raise UsageError("--against and --across-toolchains go with --bitwise")
    if against and across:
        raise UsageError("--against and --across-toolchains name two bases; give one")
    if inputs_file and (bitwise or patterns or tags):
        raise UsageError("--inputs are checked against float64: no --bitwise, --case or --tag")
    if device not in (None, CPU):
        cuda_index(device)  # a mistake is told before anything else is looked at
    golden = read_golden(golden_file) if golden_file else None
    session = open_session(cache_dir, kernel_dirs, jobs, lineinfo=lineinfo)
    choices = session.catalog.resolve(references, toolchains)
    bases = session.catalog.resolve([against], toolchains[:1]) if against else ()
    broken = session.broken_beside(references)
    request = Request(
        session, choices, bases, build, repeat, patterns, tags, bitwise, across, settings
    )
    request.require(inputs_file)
    if golden_file and not golden:
        _require_golden(golden_file, choices)
    probe = None if device == CPU else probe_devices()
    emulated = device == CPU or (device is None and probe is not None and not probe.devices)
    if emulated:
        steps = on_cpu(
            request, inputs_file, arch, seeds=seeds, strict=strict, without=without,
            lineinfo=lineinfo,
        )  # fmt: skip
        facts = environment(None)
    else:
        if arch or seeds or strict or without or lineinfo:
            raise UsageError(
                "--arch, --seeds, --strict, --without and --lineinfo go with --device cpu"
            )
        torch_device, gpu = gpu_of(device or "cuda", probe)
        steps = on_gpu(request, inputs_file, torch_device)
        facts = environment(gpu)
    results, stopped = _collected(steps.results)
    checked = None if golden is None else list(golden.check(results))
    told = [*results, *(checked or ())]
    if emulated:
        told.sort(key=lambda r: (r.op, r.kernel, r.variant, r.arch or "", r.against))
    document = verify_document(told, facts, steps.inputs_sha256)
    emit(_told(document, steps.left_out, partial=stopped is not None), form, output)
    if golden_file is not None and golden is None:
        _make_golden(golden_file, results, facts, whole=stopped is None)
    if stopped is not None:
        raise stopped
    code = _exit_code(results, checked, named=bool(references))
    ctx.exit(code or max((b.exit_code for b in broken), default=EXIT_OK))


def _require_golden(file: Path, choices: Sequence[Choice]) -> None:
    """Raise UsageError where a golden file cannot be made, before what goes into it is computed."""
    require_writable(file)
    times = Counter((c.kernel.name, variant) for c in choices for variant in c.variants)
    twice = sorted(f"{kernel}:{variant}" for (kernel, variant), n in times.items() if n > 1)
    if twice:
        raise UsageError(
            f"{file} is to be made, from one toolchain and folder of each kernel variant; several "
            f"are named of {', '.join(twice)}"
        )


def _make_golden(
    file: Path, results: Sequence[VerifyResult], facts: Mapping[str, Any], *, whole: bool
) -> None:
    if not whole:
        say(f"{file} was not made: the run was ended before its last case")
    elif count := write_golden(file, results, facts):
        say(f"{file}: the digests of {count} of {len(results)} results")
    else:
        say(f"{file} was not made: no result is right")


def _told(document: Document, left_out: tuple[str, ...], *, partial: bool) -> Document:
    """The document, with what was left out. partial: the run was ended before its last case."""
    data, parts = dict(document.data), list(document.parts)
    if left_out:
        data["left_out"] = list(left_out)
        parts.append(Lines(left_out, "Left out"))
    if partial:
        data["partial"] = True
        parts.append(Lines((ENDED_EARLY,)))
    return Document(data, tuple(parts))


def _collected(
    steps: Iterator[VerifyResult],
) -> tuple[list[VerifyResult], SparsekitError | KeyboardInterrupt | None]:
    """The results; where something ended the campaign, those before it, and what."""
    results: list[VerifyResult] = []
    try:
        for result in shown(steps, None, "verifying"):
            results.append(result)
    except (SparsekitError, KeyboardInterrupt) as error:
        if not results:
            raise
        return results, error
    return results, None


def _exit_code(
    results: Sequence[VerifyResult], checked: Sequence[VerifyResult] | None = None, *, named: bool
) -> int:
    """A failure is 1; nothing that ran, of all or of a kernel that was asked for by name, is 2.

    checked: the same results against a golden file, which must have had something of them too.
    """
    if any(r.ok is False for r in (*results, *(checked or ()))):
        return EXIT_CHECK_FAILED
    for part, done in ((results, "ran"), (checked, "was checked against the golden file")):
        if part is None:  # no golden file
            continue
        right = {r.kernel for r in part if r.ok}
        idle = sorted({r.kernel for r in results} - right)
        if not right or (named and idle):
            say(f"nothing of {', '.join(idle)} {done}; see the reasons" if idle else "nothing ran")
            return UsageError.exit_code
    return EXIT_OK
