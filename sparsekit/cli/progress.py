"""Progress on standard error: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

import click


class Step(Protocol):
    """Something that was done: what to call it and how it went."""

    @property
    def status(self) -> str: ...
    @property
    def seconds(self) -> float: ...


S = TypeVar("S", bound=Step)


def shown(steps: Iterable[S], total: int, what: str) -> Iterator[S]:
    """The steps, shown as they come. Steps that came from the store are counted, not listed."""
    if total == 0:
        return iter(())
    return _bar(steps, total, what) if sys.stderr.isatty() else _lines(steps, total)


def _lines(steps: Iterable[S], total: int) -> Iterator[S]:
    for count, step in enumerate(steps, 1):
        if step.status != "cached":
            click.echo(f"[{count}/{total}] {step.status:6} {step.seconds:6.2f} s  {step}", err=True)
        yield step


def _bar(steps: Iterable[S], total: int, what: str) -> Iterator[S]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
