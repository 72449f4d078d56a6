"""`sparsekit inspect-sass`."""

from __future__ import annotations

from pathlib import Path

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.inspected import Inspected, Looker
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import (
    arch_option,
    build_option,
    output_options,
    place_options,
    toolchain_option,
)
from sparsekit.cli.session import open_session
from sparsekit.codegen.inspect import name_of
from sparsekit.codegen.ledger import Name
from sparsekit.codegen.listing import ptx_listing, sass_listing
from sparsekit.errors import ToolchainError
from sparsekit.report.inspect import inspect_document


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@toolchain_option
@click.option(
    "--dump", type=click.Choice(["sass", "ptx"]), help="The whole code of each entry too."
)
@click.option("--lineinfo", is_flag=True, help="Look at the artifacts with source lines.")
@build_option
@place_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, references: tuple[str, ...], arch: str | None, toolchains: tuple[str, ...],
    dump: str | None, lineinfo: bool, build: bool, kernel_dirs: tuple[Path, ...],
    cache_dir: Path | None, form: str, output: Path | None,
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
    looker = Looker(session, build=build)
    found = looker.look(references, toolchains, requested_archs(arch))
    listings = _listings(looker, found, dump) if dump else {}
    emit(inspect_document(found.ledgers, found.failed, listings), form, output)
    ctx.exit(found.exit_code())


def _listings(looker: Looker, found: Inspected, dump: str) -> dict[Name, list[str]]:
    """The code of every entry that was found."""
    listings: dict[Name, list[str]] = {}
    for artifact in found.built:
        for record in artifact.manifest.entries:
            if dump == "ptx":
                lines = ptx_listing(artifact.ptx(record.entry), record.entry)
            else:
                try:
                    code = looker.inspector.code(artifact.cubin(record.entry))
                    lines = sass_listing(code[record.entry])
                except ToolchainError as error:
                    lines = [f"not available: {error}"]
            listings[name_of(artifact, record)] = lines
    return listings
