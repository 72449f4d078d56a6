"""`sparsekit profile`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sparsekit.cli.contenders import comparisons_of
from sparsekit.cli.device import gpu_of, gpu_option
from sparsekit.cli.emit import emit
from sparsekit.cli.options import (
    FILE,
    batch_invariant_option,
    build_option,
    output_options,
    place_options,
    say,
    settings_option,
)
from sparsekit.cli.selection import case_of
from sparsekit.cli.session import open_session
from sparsekit.errors import NoKernelError, UsageError
from sparsekit.files import replace_file
from sparsekit.report.plots import roofline, standalone
from sparsekit.report.profile import profile_document, roofline_points
from sparsekit.runtime.environment import environment
from sparsekit.toolchain.tools import find_ncu

if TYPE_CHECKING:
    from sparsekit.model.bench import Ceilings
    from sparsekit.model.profile import ProfileResult

_NO_NCU = (
    "ncu is not here: what is below is from events and from the code. It comes with the CUDA "
    "toolkit or NVIDIA's package nsight-compute; put it on PATH or set CUDA_HOME"
)


@click.command()
@click.argument("reference", metavar="REF")
@click.option("--against", metavar="REF", multiple=True, help="What ratios are to; repeatable.")
@click.option("--case", "case_name", metavar="NAME", required=True, help="The case to launch.")
@settings_option
@click.option("--reports", type=click.Path(file_okay=False, path_type=Path), default=Path("."),
              show_default=True, help="Where ncu's own .ncu-rep files go.")  # fmt: skip
@click.option("--roofline", "figure", type=FILE,
              help="Draw the roofline into this SVG file.")  # fmt: skip
@click.option("--launch", "launched", metavar="LABEL", hidden=True)
@gpu_option
@batch_invariant_option
@build_option
@place_options
@output_options
def command(
    reference: str, against: tuple[str, ...], case_name: str, settings: dict[str, str],
    reports: Path, figure: Path | None, launched: str | None, device: str,
    batch_invariant: bool, build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None,
    form: str, output: Path | None,
) -> None:  # fmt: skip
    """Count one launch with ncu, for A and B with their ratio.

    Duration, tensor pipe, DRAM and L2 bytes, loads, bank conflicts, occupancy and stalls, after 5
    warm-ups, with clocks as they are. Without ncu, or without the right to its counters, what
    events and the code tell; each row says which.

    \b
    sparsekit profile sparse_prefill:skip --against sparse_prefill:noskip --case seed1_ramp
    sparsekit profile gated_pool:unroll2 --case b8_r8_d512 --reports reports --format json
    """
    session = open_session(cache_dir, kernel_dirs)
    compared = comparisons_of(
        session, [reference], against, build=build, batch_invariant=batch_invariant
    )
    if len(compared) != 1:
        raise UsageError(f"{reference!r} means several ops; name one")
    op = compared[0].op
    case = case_of(op, case_name, settings)
    torch_device, gpu = gpu_of(device, or_cpu=False)
    contenders = compared[0].contenders()

    from sparsekit.check.reference import load_reference
    from sparsekit.check.workload import make_workload
    from sparsekit.measure import profile
    from sparsekit.measure.ceilings import measure_ceilings
    from sparsekit.measure.ncu import Ncu
    from sparsekit.measure.timer import CudaTimer

    workload = make_workload(op, load_reference(op), case, op.probes[0], torch_device)
    if launched is not None:
        profile.launch_once(_labelled(contenders, launched), workload)
        return
    timer = CudaTimer(torch_device)
    path = find_ncu(session.settings)
    if path is None:
        say(_NO_NCU)
    else:
        reports.mkdir(parents=True, exist_ok=True)

    results: list[ProfileResult] = []
    for contender in contenders:
        try:
            result = profile.without_counters(
                contender, workload, timer, gpu.name, session.store.get
            )
        except NoKernelError as error:
            say(f"{contender.label} does not take the call: {str(error).splitlines()[-1]}")
            continue
        if path is not None:
            report = reports / f"{_file_name(contender.label)}-{_file_name(case.name)}.ncu-rep"
            program = [sys.executable, "-m", "sparsekit", *sys.argv[1:], "--launch",
                       contender.label]  # fmt: skip
            result = profile.with_counters(
                result, Ncu(path), program, gpu.compute_capability, report
            )
        results.append(result)
    if not results:
        raise UsageError(f"nothing takes the case {case.name}")
    ceilings = measure_ceilings(timer, torch_device)
    if figure is not None:
        _draw(figure, results, ceilings)
    emit(profile_document(results, environment(gpu), ceilings), form, output)


def _labelled(contenders: Sequence[Any], label: str) -> Any:
    found = next((c for c in contenders if c.label == label), None)
    if found is None:
        raise UsageError(f"--launch {label!r}: there are {', '.join(c.label for c in contenders)}")
    return found


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]+", "_", text)


def _draw(file: Path, results: Sequence[ProfileResult], ceilings: Ceilings) -> None:
    points = roofline_points(results)
    if not points:
        raise UsageError("--roofline needs a case whose FLOP are known")
    svg = standalone(roofline(points, ceilings))
    replace_file(file, lambda path: path.write_text(svg, encoding="utf-8"))
