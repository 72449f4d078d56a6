"""`sparsekit inspect-sass`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sparsekit.cli import checks, origins
from sparsekit.cli.emit import emit, emit_text
from sparsekit.cli.inspected import Inspected, Looker
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import (
    FILE,
    arch_option,
    build_option,
    output_options_with,
    place_options,
    toolchain_option,
)
from sparsekit.cli.session import open_session
from sparsekit.codegen.inspect import name_of
from sparsekit.codegen.ledger import Name
from sparsekit.codegen.listing import ptx_listing
from sparsekit.codegen.lock import FILE_NAME, read_lock
from sparsekit.codegen.regression import are_side_by_side
from sparsekit.codegen.requirements import parse_requirement
from sparsekit.codegen.verdict import compare_all
from sparsekit.errors import EXIT_CHECK_FAILED, EXIT_OK, ToolchainError, UsageError
from sparsekit.report.document import Document, joined
from sparsekit.report.findings import sarif
from sparsekit.report.inspect import failures_document, inspect_document, listings_document


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@toolchain_option
@click.option("--against", metavar="REF", help="Compare with this one: verdicts, what got worse.")
@click.option(
    "--require", "required", metavar="FACT>=N", multiple=True,
    help="Exit 1 with the entries that do not meet it, such as 'gather.min_bytes>=16'; repeatable.",
)  # fmt: skip
@click.option("--locked", is_flag=True, help="Exit 1 with what is worse than the lock records.")
@click.option("--accept", metavar="REASON", help="With --locked: record what got worse, and why.")
@click.option("--lock-file", type=FILE, default=FILE_NAME, show_default=True, help="The lock.")
@click.option("--github", is_flag=True, help="Annotations for GitHub, on standard error.")
@click.option(
    "--audit", is_flag=True,
    help="Of Triton kernels: each argument aligned, not aligned, 1; what gets bad, and the fix.",
)  # fmt: skip
@click.option(
    "--blame", is_flag=True,
    help="With --against another Triton: is it the front end, ptxas or its options?",
)  # fmt: skip
@click.option("--numerics", is_flag=True, help="With --against: what changes rounding.")
@click.option(
    "--dump", type=click.Choice(["sass", "ptx"]), help="The whole code of each entry, loads marked."
)
@click.option("--lineinfo", is_flag=True, help="Look at the artifacts with source lines.")
@build_option
@place_options
@output_options_with("sarif")
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], arch: str | None, toolchains: tuple[str, ...],
    against: str | None, required: tuple[str, ...], locked: bool, accept: str | None,
    lock_file: Path, github: bool, audit: bool, blame: bool, numerics: bool, dump: str | None,
    lineinfo: bool, build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Registers, spills, shared bytes and load widths of generated code.

    REF is a reference, or a path with code that others built: .cubin, .ptx, .fatbin, .so, .o, a
    wheel's folder, a Triton cache. Widths are bytes per thread; a gather is a load whose address
    depends on an earlier load. With several toolchains, a matrix with the worst cell marked and the
    first bad release. No GPU is needed. What is not built yet is built first.

    \b
    sparsekit inspect-sass gated_pool --arch sm_90
    sparsekit inspect-sass sparse_attn_paged:plain --toolchain triton-3.6.0,triton-3.8.0 --arch all
    sparsekit inspect-sass cu/sparse_prefill:skip --against cu/sparse_prefill:noskip --arch 9.0
    sparsekit inspect-sass sparse_attn_paged:hint16 --require 'gather.min_bytes>=16' --github
    sparsekit inspect-sass ~/.triton/cache --arch 9.0 --require 'spills==0'
    sparsekit inspect-sass --locked
    """
    if accept is not None and not locked:
        raise UsageError("--accept goes with --locked")
    if (blame or numerics) and against is None:
        raise UsageError(f"--{'blame' if blame else 'numerics'} goes with --against REF")
    requirements = [parse_requirement(text) for text in required]
    session = open_session(cache_dir, kernel_dirs, lineinfo=lineinfo)
    if locked:
        lock = read_lock(lock_file)
        every_kernel = not references
        references, arch = references or lock.references, arch or lock.arch
        toolchains = toolchains or lock.toolchains
    looker = Looker(session, build=build)
    found = looker.look(references, toolchains, arch)
    results = checks.Results()
    if audit:
        origins.audit(results, looker, references, toolchains, arch)
    if are_side_by_side(found.ledgers) and not (found.images or locked or against):
        checks.matrix(results, found.ledgers)
    if against is not None:
        bases = looker.look([against], toolchains, arch)
        comparisons = compare_all(found.ledgers, bases.ledgers)
        checks.compared(results, comparisons)
        if blame:
            origins.blamed(results, looker, comparisons, [*found.built, *bases.built])
        if numerics:
            checks.rounding(results, comparisons)
    if requirements:
        checks.required(results, requirements, found.ledgers)
    if locked:
        checks.locked(
            results, found.ledgers, requested_archs(arch), lock_file, accept,
            every_kernel=every_kernel,
        )  # fmt: skip
    document = joined(
        Document({"schema": 1, "kind": "inspect"}),
        inspect_document(found.ledgers, shown=not results.documents),
        *results.documents,
        failures_document(found.failed),
        listings_document(_listings(looker, found, dump) if dump else {}),
        results.all_findings(),
    )
    if form == "sarif":
        emit_text(json.dumps(sarif(results.findings, Path.cwd()), indent=2), output)
    else:
        emit(document, form, output)
    if github:
        results.annotate()
    ctx.exit(found.exit_code() or (EXIT_CHECK_FAILED if results.failed else EXIT_OK))


def _listings(looker: Looker, found: Inspected, dump: str) -> dict[Name, list[str]]:
    """The code of every entry that was found; of foreign code the SASS."""
    images = dict(found.images)
    listings: dict[Name, list[str]] = {}
    for artifact, _ in found.built:
        for record in artifact.manifest.entries:
            name = name_of(artifact, record)
            images[name] = artifact.cubin(record.entry)
            if dump == "ptx":
                listings[name] = ptx_listing(artifact.ptx(record.entry), record.entry)
    for name, image in images.items():
        if name not in listings:
            try:
                listings[name] = looker.inspector.listing(image, name.entry)
            except ToolchainError as error:
                listings[name] = [f"not available: {error}"]
    return listings
