"""`sparsekit cache`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sparsekit.cli.emit import emit
from sparsekit.cli.options import cache_dir_option, output_options, say
from sparsekit.errors import EXIT_OK, StoreError, UsageError
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.units import format_bytes
from sparsekit.settings import NOWHERE, load
from sparsekit.store import maintain
from sparsekit.store.layout import refuse_unsafe
from sparsekit.store.notes import Notes
from sparsekit.store.open import writable_store


@click.group()
def command() -> None:
    """Look after the artifact store.

    \b
    sparsekit cache dir
    sparsekit cache verify
    sparsekit cache prune --older-than 30d --max-size 2G
    """


def _root(cache_dir: Path | None) -> Path:
    root = load(cache_dir=cache_dir).cache_dir
    if root == NOWHERE:
        raise StoreError(
            "there is no store: HOME is not set and this user has no home folder, so that what is "
            "built lives as long as the command. Set SPARSEKIT_CACHE_DIR to a folder of yours"
        )
    return root


@command.command("dir")
@cache_dir_option
@output_options
def show_dir(cache_dir: Path | None, form: str, output: Path | None) -> None:
    """Print the store's folder."""
    root = str(_root(cache_dir))
    emit(Document({"schema": 1, "dir": root}, (Lines((root,)),)), form, output)


@command.command()
@cache_dir_option
@output_options
def info(cache_dir: Path | None, form: str, output: Path | None) -> None:
    """Entries, size and folder."""
    root = _root(cache_dir)
    if root.is_dir():
        refuse_unsafe(root)
    found = list(maintain.entries(root))
    size = sum(e.bytes for e in found)
    text = f"{root}: {len(found)} artifacts, {format_bytes(size)}"
    data = {"schema": 1, "dir": str(root), "artifacts": len(found), "bytes": size}
    emit(Document(data, (Lines((text,)),)), form, output)


@command.command()
@cache_dir_option
@output_options
@click.pass_context
def verify(ctx: click.Context, cache_dir: Path | None, form: str, output: Path | None) -> None:
    """Read every entry and check its digests; exit 7 when one is damaged."""
    root = _root(cache_dir)
    bad = [(entry.key, problem) for entry, problem in maintain.damaged(root)]
    count = sum(1 for _ in maintain.entries(root))
    parts: list[Table | Lines] = [Table("Damaged", ("key", "problem"), bad)] if bad else []
    advice = "; they are rebuilt when they are next used" if bad else ""
    parts.append(Lines((f"{count} artifacts, {len(bad)} damaged{advice}",)))
    data = {
        "schema": 1, "artifacts": count, "damaged": [{"key": k, "problem": p} for k, p in bad],
    }  # fmt: skip
    emit(Document(data, tuple(parts)), form, output)
    ctx.exit(StoreError.exit_code if bad else EXIT_OK)


@command.command()
@click.option("--older-than", metavar="AGE", help="Entries built longer ago: 30d, 12h.")
@click.option("--max-size", metavar="SIZE", help="The oldest entries, until the rest fits: 2G.")
@cache_dir_option
@output_options
def prune(
    older_than: str | None, max_size: str | None, cache_dir: Path | None, form: str,
    output: Path | None,
) -> None:  # fmt: skip
    """Remove old entries."""
    if older_than is None and max_size is None:
        raise click.UsageError("give --older-than, --max-size or both")
    root = _root(cache_dir)
    chosen = maintain.prunable(
        root,
        maintain.parse_age(older_than) if older_than is not None else None,
        maintain.parse_size(max_size) if max_size is not None else None,
    )
    removed = _removed(root, chosen)
    if older_than is not None and root.is_dir():
        Notes(root).clear(maintain.parse_age(older_than))
    emit(removed, form, output)


@command.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@cache_dir_option
@output_options
def clear(yes: bool, cache_dir: Path | None, form: str, output: Path | None) -> None:
    """Remove every entry."""
    root = _root(cache_dir)
    chosen = list(maintain.entries(root))
    if chosen and not yes:
        _confirm(f"Remove {len(chosen)} artifacts from {root}?")
    removed = _removed(root, chosen)
    if root.is_dir():
        Notes(root).clear()
    emit(removed, form, output)


def _confirm(question: str) -> None:
    """Go on when the answer is yes. Raises UsageError where nobody can answer."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C, or the end of the input
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise UsageError("nobody is there to say yes; give --yes to remove them") from None
    if not agreed:
        raise click.Abort


def _removed(root: Path, chosen: list[maintain.Stored]) -> Document:
    """Remove the entries, and tell what was removed."""
    if chosen:
        maintain.remove_all(writable_store(root, say), chosen)
    size = sum(e.bytes for e in chosen)
    text = f"{len(chosen)} artifacts removed, {format_bytes(size)}"
    data = {"schema": 1, "dir": str(root), "removed": [e.key for e in chosen], "bytes": size}
    return Document(data, (Lines((text,)),))
