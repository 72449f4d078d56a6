"""`sparsekit inspect-sass`."""

from __future__ import annotations

from pathlib import Path

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import (
    arch_option,
    build_option,
    output_options,
    place_options,
    say,
)
from sparsekit.cli.session import open_session
from sparsekit.codegen.inspect import inspect_all
from sparsekit.errors import CompileError, ToolchainError, UsageError
from sparsekit.report.inspect import inspect_document
from sparsekit.toolchain.tools import find_nvdisasm


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@click.option(
    "--dump", type=click.Choice(["sass", "ptx"]), help="The whole code of each entry too."
)
@click.option("--lineinfo", is_flag=True, help="Look at the artifacts with source lines.")
@build_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], arch: str | None, dump: str | None,
    lineinfo: bool, build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Registers, spills, shared bytes and load widths of generated code.

    Widths are bytes per thread of ld.global and cp.async in PTX, and of LDG, LDGSTS, LDS, LDSM,
    LDL, STG and STL in SASS. No GPU is needed. What is not built yet is built first.

    \b
    sparsekit inspect-sass gated_pool --arch sm_90
    sparsekit inspect-sass sparse_attn_paged:hint16@triton-3.8.0 --arch all --format markdown
    sparsekit inspect-sass cu/sparse_prefill --arch 9.0 --dump sass
    """
    session = open_session(cache_dir, kernel_dirs, lineinfo=lineinfo)
    plan, broken = session.planned(references, requested_archs(arch))
    for refusal in plan.refused:
        say(refusal.reason)
    outcomes = session.built(plan, build=build)
    nvdisasm: Path | None = None
    try:
        nvdisasm = find_nvdisasm(session.settings)
    except ToolchainError as error:
        say(str(error))
    artifacts = [o.artifact for o in outcomes if o.artifact is not None]
    entries = list(inspect_all(artifacts, nvdisasm, session.settings.jobs))
    failed = [o for o in outcomes if o.error is not None]
    emit(inspect_document(entries, failed, dump), form, output)
    if failed:
        ctx.exit(CompileError.exit_code)
    if any(e.problem for e in entries) or any(r.named for r in plan.refused):
        ctx.exit(ToolchainError.exit_code)
    if broken:
        ctx.exit(max(b.exit_code for b in broken))
    ctx.exit(0 if entries else UsageError.exit_code)
