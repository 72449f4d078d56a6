"""The command line. The group names its commands and imports one only when it runs."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "build": "Compile kernels ahead of time into the store.",
    "list": "Kernels, ops, variants, archs, and what is built.",
    "run": "Run one kernel on a case or on your own tensors.",
    "verify": "Check kernels against float64, or bit for bit.",
    "emulate": "Run any PTX on the CPU, with every check.",
    "bench": "Time kernels against one another, with intervals and verdicts.",
    "prove": "Verify, bench and report kernels on a GPU where they have not run.",
    "profile": "Count one launch with ncu: pipes, bytes, loads, stalls.",
    "report": "One page from results, and tables that are held against them.",
    "inspect-sass": "Registers, spills, shared bytes and load widths of generated code.",
    "lock": "Record the facts of generated code that must not get worse.",
    "toolchain": "Compilers beside the installed ones.",
    "doctor": "GPUs, driver, compilers, tools, store, and what is missing.",
    "cache": "Look after the artifact store.",
    "bundle": "Artifacts in one file, to build here and run there.",
    "completion": "Print the shell's completion script.",
}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"sparsekit.cli.{name.replace('-', '_')}_command")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from sparsekit.cli.version import version_text

    click.echo(version_text())
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and the compilers at hand.",
)  # fmt: skip
def cli() -> None:
    """Build, verify, run and inspect sparse-attention GPU kernels, ahead of time.

    \b
    sparsekit build                              every kernel, for this GPU or for every arch
    sparsekit verify --bitwise                   each variant against its base, bit for bit
    sparsekit bench sparse_prefill               times, ratios and verdicts
    sparsekit inspect-sass gated_pool            load widths, registers, spills
    sparsekit run sparse_prefill --case v32_64   one case, with its launch and its digests
    """
