"""`sparsekit build`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from sparsekit.aot.execute import Outcome
from sparsekit.aot.plan import Plan
from sparsekit.cli.emit import emit
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import (
    arch_option,
    output_options,
    place_options,
    say,
    toolchain_option,
)
from sparsekit.cli.session import open_session
from sparsekit.errors import EXIT_OK, CompileError, ToolchainError, UsageError
from sparsekit.kernel_folders import Broken
from sparsekit.report.build import build_document, plan_document


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@toolchain_option
@click.option(
    "--instances", type=click.Choice(["default", "all"]), default="default", show_default=True,
    help="Those that models use, or every one that the specs list.",
)  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Worker processes [default: cores].")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be built; build nothing.")
@click.option("--lineinfo", is_flag=True, help="With source lines; an artifact of its own.")
@click.option("--force", is_flag=True, help="Build again what is in the store.")
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], arch: str | None,
    toolchains: tuple[str, ...], instances: str, jobs: int | None, dry_run: bool, lineinfo: bool,
    force: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Compile kernels ahead of time into the store.

    REF is NAME[:VARIANT][@TOOLCHAIN][@git:REV]; NAME an op, a kernel, cu/KERNEL, triton/KERNEL or a
    folder's path. Without one, every kernel. What is in the store is not compiled again.

    \b
    sparsekit build                                   every kernel, for this GPU or for every arch
    sparsekit build sparse_prefill --arch 'sm_90;12.0'
    sparsekit build gated_pool:unroll2 --arch all -j 8 --format json -o build.json
    sparsekit build ./mykernel --arch native --lineinfo
    """
    session = open_session(cache_dir, kernel_dirs, jobs, lineinfo=lineinfo)
    plan, broken = session.planned(
        references, requested_archs(arch), toolchains, every_instance=instances == "all"
    )
    for caution in plan.cautions:
        say(caution)
    if dry_run:
        stored = [session.store.has(job.key) for job in plan.jobs]
        emit(plan_document(plan.jobs, stored, plan.refused, broken), form, output)
        ctx.exit(_exit_code(plan, (), broken))
    outcomes = session.built(plan, build=True, force=force)
    emit(build_document(outcomes, plan.refused, broken), form, output)
    ctx.exit(_exit_code(plan, outcomes, broken))


def _exit_code(plan: Plan, outcomes: Sequence[Outcome], broken: Sequence[Broken]) -> int:
    codes = {o.error.exit_code for o in outcomes if o.error is not None}
    if codes:
        return CompileError.exit_code if CompileError.exit_code in codes else max(codes)
    return _refusal_code(plan) or max((b.exit_code for b in broken), default=EXIT_OK)


def _refusal_code(plan: Plan) -> int:
    """A named target that was refused is a failure; so is a plan of nothing."""
    if any(r.named for r in plan.refused) or (plan.refused and not plan.jobs):
        return ToolchainError.exit_code
    return EXIT_OK if plan.jobs or plan.unplanned else UsageError.exit_code
