"""Progress on standard error: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Protocol, TypeVar

import click


class Step(Protocol):
    """Something that was done; its text says what, its status how it went."""

    @property
    def status(self) -> str: ...


S = TypeVar("S", bound=Step)


def shown(steps: Iterable[S], total: int | None, what: str, *, lines: bool = True) -> Iterator[S]:
    """The steps, shown as they come; total is None where it is not known before the end.

    lines: whether each is worth a line where there is no bar.
    """
    if total == 0:
        return iter(())
    if sys.stderr.isatty() and find_spec("rich") is not None:
        return _bar(steps, total, what)
    return _lines(steps, total) if lines else iter(steps)


def _lines(steps: Iterable[S], total: int | None) -> Iterator[S]:
    """A line per step; what came from the store is counted, not listed."""
    for count, step in enumerate(steps, 1):
        if step.status != "cached":
            of = f"/{total}" if total else ""
            click.echo(f"[{count}{of}] {step.status:7} {step}", err=True)
        yield step


def _bar(steps: Iterable[S], total: int | None, what: str) -> Iterator[S]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[last]}"),
    )
    counts: dict[str, int] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, counts="", last="")
        for step in steps:
            counts[step.status] = counts.get(step.status, 0) + 1
            text = ", ".join(f"{n} {status}" for status, n in counts.items())
            progress.update(task, advance=1, counts=text, last=str(step))
            yield step
