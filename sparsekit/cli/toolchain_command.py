"""`sparsekit toolchain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.options import output_options, say
from sparsekit.model.arch import ALL_CAPABILITIES, Arch, format_capability
from sparsekit.model.toolchain import Toolchain
from sparsekit.report.document import Document, Lines, Table
from sparsekit.settings import load
from sparsekit.toolchain import install
from sparsekit.toolchain.find import Toolchains
from sparsekit.toolchain.tools import tool_release


@click.group()
def command() -> None:
    """Compilers beside the installed ones.

    \b
    sparsekit toolchain add triton==3.6.0 triton==3.8.0 nvrtc==13.5.37
    sparsekit toolchain list
    sparsekit toolchain remove triton-3.6.0
    """


@command.command()
@click.argument("releases", metavar="RELEASE...", nargs=-1, required=True)
def add(releases: tuple[str, ...]) -> None:
    """Install releases, each into a folder of its own; uv does it when present, else pip."""
    wanted = [install.parse_release(text) for text in releases]
    toolchains = Toolchains(load())
    for release in wanted:
        toolchain, new = install.add(release, toolchains, say)
        told = "added" if new else "is there already"
        click.echo(f"{toolchain.id} {told}: {toolchain.site}, {toolchain.fingerprint[:16]}")


@command.command("list")
@output_options
def show(form: str, output: Path | None) -> None:
    """Every toolchain, its targets, and the assembler that each of them uses."""
    toolchains = Toolchains(load())
    found = [t for lang in ("cuda", "triton") for t in toolchains.all(lang)]
    described = [_described(t, toolchains) for t in found]
    columns = ("toolchain", "targets", "assembler", "fingerprint", "place")
    rows = [
        (
            d["id"], " ".join(d["targets"]), _assemblers(d["assemblers"]),
            str(d["fingerprint"])[:16], d["site"],
        )
        for d in described
    ]  # fmt: skip
    parts: list[Table | Lines] = [Table("", columns, rows)]
    if not rows:
        parts = [Lines(("no toolchain; sparsekit toolchain add triton==3.8.0",))]
    emit(Document({"schema": 1, "toolchains": described}, tuple(parts)), form, output)


@command.command()
@click.argument("identifiers", metavar="ID...", nargs=-1, required=True)
def remove(identifiers: tuple[str, ...]) -> None:
    """Remove toolchains that were added."""
    toolchains = Toolchains(load())
    for release in [install.parse_release(text) for text in identifiers]:
        click.echo(f"{release.id} removed: {install.remove(release, toolchains)}")


def _described(toolchain: Toolchain, toolchains: Toolchains) -> dict[str, Any]:
    """assemblers: the ptxas release by target; empty for a compiler that holds its own."""
    archs = [a for c in ALL_CAPABILITIES if not toolchain.lacks(a := Arch(*c))]
    used = {a: tool for a in archs if (tool := toolchain.assembler(a))}
    releases = {tool: tool_release(tool) for tool in dict.fromkeys(used.values())}
    return {
        "id": toolchain.id,
        "lang": toolchain.lang,
        "targets": [format_capability(a.compute_capability) for a in archs],
        "assemblers": {
            format_capability(a.compute_capability): releases[tool] for a, tool in used.items()
        },
        "fingerprint": toolchain.fingerprint,
        "site": str(toolchain.site),
        "added": toolchain.site.is_relative_to(toolchains.folder),
    }


def _assemblers(by_target: dict[str, str]) -> str:
    """`ptxas 12.8.93 to 9.0, 12.9.86 from 10.0`."""
    releases = list(dict.fromkeys(by_target.values()))
    if not releases:
        return "its own"
    if len(releases) == 1:
        return f"ptxas {releases[0]}"
    last = max(t for t in by_target if by_target[t] == releases[0])
    first = next(t for t in by_target if by_target[t] == releases[-1])
    return f"ptxas {releases[0]} to {last}, {releases[-1]} from {first}"
