"""`sparsekit emulate`."""

from __future__ import annotations

from pathlib import Path

import click

from sparsekit.cli.device import check_options
from sparsekit.cli.emit import emit
from sparsekit.cli.options import FILE, output_options
from sparsekit.errors import EXIT_CHECK_FAILED, EXIT_OK


@click.command()
@click.argument("ptx", metavar="FILE.ptx", type=FILE)
@click.option("--args", "script", metavar="ARGS.py", type=FILE, required=True,
              help="Your Python file with run(device): memory, launches, check.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=0), default=2, show_default=True, metavar="N",
              help="So many random schedules beside lazy and eager.")  # fmt: skip
@check_options
@output_options
@click.pass_context
def command(
    ctx: click.Context, ptx: Path, script: Path, seeds: int, strict: bool,
    without: tuple[str, ...], form: str, output: Path | None,
) -> None:  # fmt: skip
    """Run any PTX on the CPU, with every check, under several schedules.

    ARGS.py defines run(device), which allocates memory, launches kernels of the file, asserts what
    must hold, and may return arrays by name, which then must not depend on the schedule. It is
    your code and runs as such. docs/emulator.md has a worked example.

    \b
    sparsekit emulate saxpy.ptx --args saxpy_args.py
    sparsekit emulate saxpy.ptx --args saxpy_args.py --strict --seeds 5 --format json
    sparsekit emulate saxpy.ptx --args saxpy_args.py --without race,uninitialised
    """
    from sparsekit.check.emulated import schedules_of
    from sparsekit.check.foreign import emulate_file
    from sparsekit.emulator import chosen_checks
    from sparsekit.report.emulate import emulate_document

    checks = chosen_checks(strict=strict, without=without)
    result = emulate_file(ptx, script, schedules_of(seeds), checks)
    emit(emulate_document(result), form, output)
    ctx.exit(EXIT_OK if result.ok else EXIT_CHECK_FAILED)
