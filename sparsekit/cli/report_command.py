"""`sparsekit report`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from sparsekit.cli.options import FILE
from sparsekit.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError
from sparsekit.files import replace_file
from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.html import render_html
from sparsekit.report.markdown import render_markdown
from sparsekit.report.marked import blocks_in, updated
from sparsekit.report.sections import PAGE, SECTIONS, parts_of, shortened
from sparsekit.report.stored import (
    Stored,
    Wanted,
    bench_results,
    ceilings_of,
    profile_results,
    read_stored,
)

GITHUB_CHARACTERS = 65_000  # GitHub takes 65,536 in a comment or a pull request's text
_MARKED = ("README.md", "docs/**/*.md", "kernels_*/*/README.md")


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["markdown", "html"]), default="markdown",
              show_default=True, help="One page for a pull request, or one HTML file.")  # fmt: skip
@click.option("--section", "sections", type=click.Choice(list(SECTIONS)), multiple=True,
              help="Only these, in this order; repeatable.")  # fmt: skip
@click.option("--op", metavar="GLOB", help="Only results of this op.")
@click.option("--case", "cases", metavar="GLOB", multiple=True, help="Only these; repeatable.")
@click.option("--candidate", "candidates", metavar="GLOB", multiple=True,
              help="Only these of what bench timed, by label; repeatable.")  # fmt: skip
@click.option("--title", default="Results", show_default=True, help="The page's title in HTML.")
@click.option("--check", is_flag=True, help="Make the marked tables again; exit 1 on a difference.")
@click.option("--update", is_flag=True, help="Write the marked tables again.")
@click.option("-o", "--output", type=FILE,
              help="Write the page to this file instead of standard output.")  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context, files: tuple[Path, ...], form: str, sections: tuple[str, ...],
    op: str | None, cases: tuple[str, ...], candidates: tuple[str, ...], title: str, check: bool,
    update: bool, output: Path | None,
) -> None:  # fmt: skip
    """One page from result files, for a pull request.

    FILE is a JSON result of bench, verify, inspect-sass, profile or the scripts of tests/gpu;
    results of several GPUs make one table. With --check or --update FILE is a markdown file,
    README.md and docs/ when none is given: tables between
    `<!-- sparsekit report RESULT... --section NAME -->` and `<!-- /sparsekit report -->` are made
    again from their results.

    \b
    sparsekit report bench.json verify.json inspect.json
    sparsekit report h200.json b200.json --format html -o page.html
    sparsekit report --check
    """
    if check or update:
        _only_marked(ctx)
        wanted_files = files or tuple(_marked_files())
        ctx.exit(_check(wanted_files) if check else _update(wanted_files))
    if not files:
        raise UsageError("name at least one result file, or give --check")
    stored = [read_stored(file) for file in files]
    wanted = Wanted(op, cases, candidates)
    text = (
        _html(title, sections or PAGE, stored, wanted)
        if form == "html"
        else _markdown(sections or PAGE, stored, wanted)
    )
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)


def _only_marked(ctx: click.Context) -> None:
    """Refuse, beside --check and --update, what a marker says itself: it would go unheard."""
    given = [
        max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option) and parameter.name
        and ctx.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]  # fmt: skip
    if len(given) > 1:
        raise UsageError(
            f"{' and '.join(given)} do not go together: --check and --update stand alone, and each "
            "marker in a file says which sections, ops, cases and candidates it wants"
        )


def _markdown(names: Sequence[str], stored: Sequence[Stored], wanted: Wanted) -> str:
    """The page, without the sections that it can spare where it would be too long for GitHub."""
    left_out: list[str] = []
    while True:
        parts = _parts(names, stored, wanted)
        if left_out:
            told = f"Left out, to stay within GitHub's length: {', '.join(left_out)}."
            parts.append(Lines((told,)))
        text = render_markdown(Document({}, tuple(parts))) + "\n"
        if len(text) < GITHUB_CHARACTERS:
            return text
        fewer = shortened(names)
        if fewer is None:
            raise UsageError(
                f"the page has {len(text)} characters and GitHub takes {GITHUB_CHARACTERS}; "
                "narrow it with --section, --op, --case or --candidate"
            )
        left_out += [n for n in names if n not in fewer]
        names = fewer


def _parts(names: Sequence[str], stored: Sequence[Stored], wanted: Wanted) -> list[Table | Lines]:
    if parts := parts_of(names, stored, wanted):
        return parts
    raise UsageError("these files hold nothing of what was asked for")


def _html(title: str, names: Sequence[str], stored: Sequence[Stored], wanted: Wanted) -> str:
    parts = _parts(names, stored, wanted)
    return render_html(
        title, parts, bench_results(stored, wanted), profile_results(stored, wanted),
        ceilings_of(stored),
    )  # fmt: skip


def _marked_files() -> Iterable[Path]:
    return (file for pattern in _MARKED for file in sorted(Path().glob(pattern)))


def _looked_in(files: Sequence[Path]) -> str:
    """The files that were read or, where there was none to read, what was looked for and where."""
    if files:
        return ", ".join(map(str, files))
    return (
        f"{Path.cwd()}: no file is called {', '.join(_MARKED)} there; run it in the folder that "
        "holds them, or name files"
    )


def _check(files: Sequence[Path]) -> int:
    blocks = [block for file in files for block in blocks_in(file, Path())]
    different = [text for block in blocks if (text := block.first_difference)]
    for text in different:
        click.echo(text)
    if not blocks:
        raise UsageError(f"no marked table in {_looked_in(files)}")
    click.echo(f"{len(blocks)} marked tables, {len(different)} differ from their results")
    return EXIT_CHECK_FAILED if different else EXIT_OK


def _update(files: Sequence[Path]) -> int:
    if not files:
        raise UsageError(f"no marked table in {_looked_in(files)}")
    changed = 0
    for file in files:
        text = updated(file, Path())
        if text != file.read_text(encoding="utf-8"):
            changed += 1
            _write(file, text)
    click.echo(f"{changed} files changed")
    return EXIT_OK


def _write(file: Path, text: str) -> None:
    replace_file(file, lambda path: path.write_text(text, encoding="utf-8"))
