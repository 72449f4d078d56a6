"""`sparsekit bundle`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.native import requested_archs
from sparsekit.cli.options import (
    FILE,
    arch_option,
    cache_dir_option,
    output_options,
    place_options,
    say,
)
from sparsekit.cli.session import Session, open_session
from sparsekit.discover import Choice
from sparsekit.errors import MissingArtifactError
from sparsekit.model.arch import ArchRequest
from sparsekit.model.artifact import Artifact, CompileJob
from sparsekit.model.toolchain import Toolchain
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.units import format_bytes
from sparsekit.settings import load
from sparsekit.store.bundle import export_bundle, import_bundle
from sparsekit.store.open import writable_store
from sparsekit.toolchain.find import Toolchains

BUILD = "sparsekit build"


@click.group()
def command() -> None:
    """Build here, measure there: artifacts in one file.

    \b
    sparsekit bundle export out.tar.zst gated_pool@triton-3.8.0 --arch 9.0
    sparsekit bundle import out.tar.zst
    """


@command.command("export")
@click.argument("file", type=FILE)
@click.argument("references", metavar="[REF]...", nargs=-1)
@arch_option
@place_options
@output_options
def export(
    file: Path, references: tuple[str, ...], arch: str | None, kernel_dirs: tuple[Path, ...],
    cache_dir: Path | None, form: str, output: Path | None,
) -> None:  # fmt: skip
    """Write what is built of REF to FILE, for every toolchain at hand that REF leaves open.

    Without REF all that is built. Of a REF something must be; what is not built is told.

    \b
    sparsekit bundle export out.tar.zst
    sparsekit bundle export out.tar.zst triton/gated_pool@triton-3.8.0 --arch 9.0
    """
    session = open_session(cache_dir, kernel_dirs)
    requests = requested_archs(arch or "all")
    found: dict[str, tuple[Artifact, Toolchain]] = {}
    missing: dict[str, CompileJob] = {}
    for reference in references or (None,):
        chosen = session.catalog.resolve([reference] if reference else [])
        own, not_built = _built(session, chosen, requests)
        if not own:
            first = next(iter(not_built.values()), None) if reference else None
            command = first.build_command if first else BUILD
            raise MissingArtifactError(
                f"nothing {f'of {reference} ' if reference else ''}is built for these archs; "
                f"{command}"
            )
        found |= own
        # Kernels and toolchains of which nothing is built were not meant by what leaves them open.
        begun = {_of(artifact.manifest.identity) for artifact, _ in own.values()}
        missing |= {key: job for key, job in not_built.items() if _of(job.identity) in begun}
    artifacts = [artifact for artifact, _ in found.values()]
    toolchains = {t.id: t for _, t in found.values()}
    digest = export_bundle(file, artifacts, list(toolchains.values()))
    rows = [_row(artifact) for artifact in artifacts]
    told = (
        f"{file}: {len(artifacts)} artifacts of {', '.join(sorted(toolchains))}, "
        f"{format_bytes(file.stat().st_size)}, sha256 {digest}"
    )
    data = {
        "schema": 1, "kind": "bundle", "file": str(file), "sha256": digest,
        "artifacts": [a.manifest.key for a in artifacts], "toolchains": sorted(toolchains),
    }  # fmt: skip
    columns = ("kernel", "variant", "instance", "arch", "toolchain")
    parts: list[Table | Lines] = [Table("", columns, rows), Lines((told,))]
    if missing:
        data["not_built"] = [str(job) for job in missing.values()]
        parts.append(Lines(tuple(_left_out(missing.values())), "Not built, so not in it"))
    emit(Document(data, tuple(parts)), form, output)


def _built(
    session: Session, choices: Iterable[Choice], requests: Sequence[ArchRequest]
) -> tuple[dict[str, tuple[Artifact, Toolchain]], dict[str, CompileJob]]:
    """What is built of the choices, and what a build would bring beside that.

    Raises ToolchainError for a toolchain that is named and not at hand.
    """
    found: dict[str, tuple[Artifact, Toolchain]] = {}
    missing: dict[str, CompileJob] = {}
    for choice in choices:
        if choice.toolchain:
            session.planner.toolchain(choice)
        wanted = list(_with_toolchains(session, choice))
        for job in session.planner.plan(wanted, requests, every_instance=True).jobs:
            artifact = session.store.get(job.key)
            if artifact is not None:
                found[job.key] = (artifact, job.toolchain)
            elif job.instance.default:
                missing[job.key] = job
    return found, missing


def _of(identity: Mapping[str, Any]) -> tuple[str, str, str]:
    return identity["lang"], identity["kernel"], identity["toolchain"]["id"]


def _left_out(jobs: Iterable[CompileJob]) -> Iterator[str]:
    """A line for each kernel and toolchain."""
    archs: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        archs.setdefault((job.kernel.qualified_name, job.toolchain.id), []).append(str(job.arch))
    for (kernel, toolchain), own in archs.items():
        yield f"{kernel} {toolchain}: {len(own)} artifacts, of {', '.join(dict.fromkeys(own))}"


def _with_toolchains(session: Session, choice: Choice) -> Iterable[Choice]:
    """The choice under its toolchain, or under each at hand where it names none."""
    if choice.toolchain:
        return [choice]
    at_hand = Toolchains(session.settings).all(choice.kernel.lang)
    return [replace(choice, toolchain=t.id) for t in at_hand]


def _row(artifact: Artifact) -> tuple[str, ...]:
    identity = artifact.manifest.identity
    names = (str(identity[n]) for n in ("kernel", "variant", "instance"))
    return (*names, artifact.manifest.arch, artifact.manifest.toolchain)


@command.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@cache_dir_option
@output_options
def import_(file: Path, cache_dir: Path | None, form: str, output: Path | None) -> None:
    """Bring the artifacts of FILE into the store, checked by sha256.

    Their toolchains can then be named here (@triton-3.8.0), to run what was brought; they compile
    nothing.

    \b
    sparsekit bundle import out.tar.zst
    """
    settings = load(cache_dir=cache_dir)
    result = import_bundle(file, writable_store(settings.cache_dir, say))
    for toolchain in result.toolchains:
        own = next(t for t in Toolchains(settings).all(toolchain.lang) if t.id == toolchain.id)
        if own.fingerprint != toolchain.fingerprint:
            say(
                f"{toolchain.id} is installed here with other files; @{toolchain.id} means that "
                "one, and what was brought is not used"
            )
    names = ", ".join(t.id for t in result.toolchains) or "none"
    told = f"{len(result.new)} artifacts new, {len(result.known)} known; toolchains {names}"
    data = {
        "schema": 1, "kind": "import", "new": list(result.new), "known": list(result.known),
        "toolchains": [t.id for t in result.toolchains],
    }  # fmt: skip
    emit(Document(data, (Lines((told,)),)), form, output)
