"""`sparsekit run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsekit.cli.device import CPU, device_option, emulation_options, gpu_of
from sparsekit.cli.emit import emit
from sparsekit.cli.options import (
    FILE,
    batch_invariant_option,
    build_option,
    inputs_option,
    output_options,
    place_options,
    require_inputs,
    say,
    settings_option,
    toolchain_option,
)
from sparsekit.cli.selection import case_of, operator_of, require_choice
from sparsekit.cli.session import open_session
from sparsekit.discover import Choice, only_op
from sparsekit.errors import UsageError


@click.command()
@click.argument("reference", metavar="REF")
@click.option("--case", "case_name", metavar="NAME", help="The case whose inputs are made.")
@settings_option
@inputs_option
@click.option("--save", type=FILE, help="Write the outputs to this safetensors file.")
@click.option("--explain", is_flag=True, help="Print every selection decision.")
@device_option("cuda", "cuda")
@click.option("--arch", metavar="ARCH",
              help="With --device cpu: whose PTX [default: the first the kernel has].")  # fmt: skip
@emulation_options
@toolchain_option
@batch_invariant_option
@build_option
@place_options
@output_options
def command(
    reference: str, case_name: str | None, settings: dict[str, str], inputs_file: Path | None,
    save: Path | None, explain: bool, device: str, arch: str | None, strict: bool,
    without: tuple[str, ...], lineinfo: bool, toolchains: tuple[str, ...],
    batch_invariant: bool, build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None,
    form: str, output: Path | None,
) -> None:  # fmt: skip
    """Run one kernel on a case, or on your own tensors.

    Prints the launch, its time, a summary of every output and the sha256 of its bytes. REF may be
    an op, and the kernel is chosen; --explain says why. Without --no-batch-invariant the choice
    never looks at the batch, so that the bits of a row do not depend on it.

    \b
    sparsekit run sparse_prefill --case v32_64
    sparsekit run sparse_prefill:noskip --case seed1_ramp --set s_q=1024 --explain
    sparsekit run gated_pool --inputs mine.safetensors --set out_dtype=fp32 --save out.safetensors
    sparsekit run sparse_prefill --case small_512 --device cpu --arch sm_90
    sparsekit run sparse_attn_paged --case decode_r4_b64 --no-batch-invariant --explain
    """
    session = open_session(cache_dir, kernel_dirs, lineinfo=lineinfo)
    if len(toolchains) > 1:
        raise UsageError(f"run takes one --toolchain, found {', '.join(toolchains)}")
    choices = session.catalog.resolve([reference], toolchains)
    op = only_op(choices, reference)
    require_choice(choices, batch_invariant)
    if (case_name is None) == (inputs_file is None):
        names = ", ".join(c.name for c in op.cases)
        raise UsageError(f"give --case NAME or --inputs FILE; the cases of {op.name} are {names}")
    case = None if case_name is None else case_of(op, case_name, settings)
    if inputs_file is not None:
        require_inputs(inputs_file, op, settings)
    driver = None
    if device == CPU:
        torch_device, gpu, driver = _cpu(choices, arch, strict, without)
    elif arch or strict or without or lineinfo:
        raise UsageError("--arch, --strict, --without and --lineinfo go with --device cpu")
    else:
        torch_device, gpu = gpu_of(device)

    from sparsekit.check import runs
    from sparsekit.check.files import load_inputs, save_tensors
    from sparsekit.check.reference import load_reference
    from sparsekit.check.workload import make_workload, user_workload
    from sparsekit.report.run import run_document
    from sparsekit.runtime.environment import environment

    operator = operator_of(
        session, choices, build=build, driver=driver, batch_invariant=batch_invariant
    )
    digest: str | None = None
    if case is None:
        assert inputs_file is not None
        inputs, digest = load_inputs(inputs_file, op, settings, torch_device)
        workload = user_workload(op, inputs, inputs_file.name, torch_device)
    else:
        workload = make_workload(op, load_reference(op), case, op.probes[0], torch_device)
    result = runs.run_once(operator, workload)
    if save is not None:
        note = {"op": op.name, "case": workload.name, "kernel": str(result.candidate)}
        save_tensors(save, result.outputs, note)
        say(f"outputs written to {save}")
    emit(run_document(result, environment(gpu), digest, explain=explain), form, output)


def _cpu(
    choices: tuple[Choice, ...], arch: str | None, strict: bool, without: tuple[str, ...]
) -> tuple[Any, None, Any]:
    """The CPU as torch's device, no GPU, and the driver that emulates."""
    from sparsekit.check.emulated_campaign import CPU as TORCH_CPU
    from sparsekit.operators.load import emulated_driver

    return TORCH_CPU, None, emulated_driver(choices, arch, strict, without)
