"""`sparsekit lock`."""

from __future__ import annotations

from pathlib import Path

import click

from sparsekit.cli.inspected import Looker
from sparsekit.cli.options import (
    FILE,
    arch_option,
    build_option,
    place_options,
    toolchain_option,
)
from sparsekit.cli.session import open_session
from sparsekit.codegen.lock import FILE_NAME, Lock, read_lock, recorded, write_lock
from sparsekit.errors import CompileError, ToolchainError


@click.command()
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@toolchain_option
@click.option("-o", "--output", type=FILE, default=FILE_NAME, show_default=True, help="The lock.")
@build_option
@place_options
def command(
    references: tuple[str, ...], arch: str | None, toolchains: tuple[str, ...], output: Path,
    build: bool, kernel_dirs: tuple[Path, ...], cache_dir: Path | None,
) -> None:  # fmt: skip
    """Record the facts of generated code that must not get worse.

    `inspect-sass --locked` compares with them. Without --arch all archs are recorded; the file
    keeps what was accepted before.

    \b
    sparsekit lock
    sparsekit lock gated_pool --toolchain triton-3.6.0,triton-3.8.0 --arch '8.0;9.0'
    """
    arch = arch or "all"
    looker = Looker(open_session(cache_dir, kernel_dirs), build=build)
    found = looker.look(references, toolchains, arch)
    if found.failed:
        raise CompileError(f"nothing is recorded: {found.failed[0].job} failed; build it first")
    problem = next((e.problem for e in found.ledgers if e.problem), None)
    if problem is not None:
        raise ToolchainError(f"nothing is recorded: {problem}")
    accepted = read_lock(output).accepted if output.is_file() else ()
    entries = {str(e.name): recorded(e) for e in found.ledgers}
    write_lock(Lock(references, arch, toolchains, entries, accepted), output)
    click.echo(f"{output}: {len(entries)} entries")
