"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sparsekit.cli.emit import require_writable
from sparsekit.errors import UsageError
from sparsekit.model.op import Op, check_scalars

F = TypeVar("F", bound=Callable[..., Any])


class _Folder(click.Path):
    """A folder's path; an empty one is an unset variable, never the working folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("expected a folder, found ''", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _Folder(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
_FORMS = ("text", "json", "markdown")


def output_options(command: F) -> F:
    """`--format` and `-o`."""
    return output_options_with()(command)


def output_options_with(*more: str) -> Callable[[F], F]:
    """`--format`, with forms that only this command has, and `-o`."""

    def decorate(command: F) -> F:
        return _output_options(command, (*_FORMS, *more))

    return decorate


def _output_options(command: F, forms: tuple[str, ...]) -> F:
    command = click.option(
        "-o", "--output", type=FILE, callback=_writable,
        help="Write the result to this file instead of standard output.",
    )(command)  # fmt: skip
    return click.option(
        "--format", "form", type=click.Choice(forms), default="text",
        show_default=True, help="The form of the result.",
    )(command)  # fmt: skip


def _writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The file, which can be written now; whoever works for hours must not learn it at the end."""
    if value is not None and not ctx.resilient_parsing:
        require_writable(value)
    return value


def place_options(command: F) -> F:
    """`--kernels` and `--cache-dir`."""
    return click.option(
        "--kernels",
        "kernel_dirs",
        type=FOLDER,
        multiple=True,
        help="A kernel folder, or a folder of them, beside the shipped ones; repeatable.",
    )(cache_dir_option(command))


def cache_dir_option(command: F) -> F:
    return click.option(
        "--cache-dir", type=FOLDER,
        help="The artifact store [default: $SPARSEKIT_CACHE_DIR, else the user's cache folder].",
    )(command)  # fmt: skip


def arch_option(command: F) -> F:
    return click.option(
        "--arch",
        metavar="LIST",
        help="native, all, or targets such as 9.0, sm_90a, '8.6+PTX;12.0' "
        "[default: native with a GPU, else all].",
    )(command)


def toolchain_option(command: F) -> F:
    """`--toolchain`, as a tuple of ids named `toolchains`."""
    return click.option(
        "--toolchain", "toolchains", metavar="ID,ID", callback=_listed,
        help="Compilers for the references that name none, such as triton-3.6.0,triton-3.8.0 "
        "[default: the installed one].",
    )(command)  # fmt: skip


def _listed(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = [name.strip() for name in (value or "").split(",")]
    if value is not None and not all(names):
        raise click.BadParameter(f"expected ids separated by commas, found {value!r}")
    return tuple(dict.fromkeys(filter(None, names)))


def say(text: str) -> None:
    """Talk to the user, beside the result."""
    click.echo(f"sparsekit: {text}", err=True)


def build_option(command: F) -> F:
    return click.option(
        "--no-build", "build", is_flag=True, default=True, flag_value=False,
        help="Build nothing: exit 4 with the command when something is missing.",
    )(command)  # fmt: skip


def batch_invariant_option(command: F) -> F:
    """`--no-batch-invariant`, as a bool named `batch_invariant`."""
    return click.option(
        "--no-batch-invariant", "batch_invariant", is_flag=True, default=True, flag_value=False,
        help="Of an op, choose the kernel by the batch too: faster, and the bits of a row may then "
        "depend on how many rows there are.",
    )(command)  # fmt: skip


def inputs_option(command: F) -> F:
    """`--inputs`, as a path named `inputs_file`."""
    return click.option(
        "--inputs", "inputs_file", type=FILE,
        help="Your own tensors: a safetensors file of the op's inputs by name.",
    )(command)  # fmt: skip


def require_inputs(file: Path, op: Op, scalars: Mapping[str, str]) -> None:
    """Raise UsageError where `--inputs` is no file, or a `--set` beside it gives no scalar."""
    if not file.is_file():
        raise UsageError(f"--inputs {file}: there is no such file")
    try:
        check_scalars(op, scalars)
    except ValueError as error:
        raise UsageError(str(error)) from error


def settings_option(command: F) -> F:
    """`--set NAME=VALUE`, as a dictionary named `settings`."""
    return click.option(
        "--set", "settings", metavar="NAME=VALUE", multiple=True, callback=_pairs,
        help="Change a dim, an option of the case, or a scalar of --inputs; repeatable.",
    )(command)  # fmt: skip


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {text!r}")
        found[name] = value
    return found
