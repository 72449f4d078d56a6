"""Options that several commands share, and the settings and catalog they lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from sparsekit import settings as settings_module
from sparsekit.discover import Catalog
from sparsekit.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(path_type=Path)


def output_options(command: F) -> F:
    """`--format` and `-o`."""
    command = click.option(
        "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
        help="Write the result to this file instead of standard output.",
    )(command)  # fmt: skip
    return click.option(
        "--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text",
        show_default=True, help="The form of the result.",
    )(command)  # fmt: skip


def place_options(command: F) -> F:
    """`--kernels` and `--cache-dir`."""
    command = click.option(
        "--cache-dir", type=FOLDER,
        help="The artifact store [default: $SPARSEKIT_CACHE_DIR, else the user's cache folder].",
    )(command)  # fmt: skip
    return click.option(
        "--kernels", "kernel_dirs", type=FOLDER, multiple=True,
        help="A kernel folder, or a folder of them, beside the shipped ones; repeatable.",
    )(command)


def arch_option(command: F) -> F:
    return click.option(
        "--arch", metavar="LIST",
        help="native, all, or targets such as 9.0, sm_90a, '8.6+PTX;12.0' "
        "[default: native with a GPU, else all].",
    )(command)


def toolchain_note() -> str:
    return "REF is NAME[:VARIANT][@TOOLCHAIN]; NAME an op, a kernel, cu/KERNEL or a folder's path."


def settings_of(
    cache_dir: Path | None, kernel_dirs: Sequence[Path] = (), jobs: int | None = None
) -> Settings:
    return settings_module.load(cache_dir=cache_dir, kernel_dirs=tuple(kernel_dirs), jobs=jobs)


def catalog_of(settings: Settings) -> Catalog:
    return Catalog(settings.kernel_dirs)


def say(text: str) -> None:
    """Talk to the user, beside the result."""
    click.echo(f"sparsekit: {text}", err=True)
