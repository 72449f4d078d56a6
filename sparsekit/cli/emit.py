"""Writing a document out: to standard output, or to a file that is whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from sparsekit.errors import UsageError
from sparsekit.files import replace_file
from sparsekit.report.document import Document
from sparsekit.report.markdown import render_markdown


def emit(document: Document, form: str, output: Path | None) -> None:
    """Print the document, or write it to `output` at one stroke."""
    to_terminal = output is None and sys.stdout.isatty()
    emit_text(_rendered(document, form, to_terminal=to_terminal), output)


def emit_text(text: str, output: Path | None) -> None:
    """Print the text, or write it to `output` at one stroke."""
    if output is None:
        click.echo(text)
    else:
        replace_file(output, lambda file: file.write_text(text + "\n", encoding="utf-8"))


def require_writable(file: Path) -> None:
    """Raise UsageError where `replace_file` could not put a file, before what goes into it is made.

    Nothing is left there, and what is there stays.
    """
    problem: str | None = None
    try:
        if not file.exists() or file.is_file():
            with tempfile.TemporaryFile(dir=Path(os.path.realpath(file)).parent):
                pass
        elif not os.access(file, os.W_OK):  # opening a fifo would wait for its reader
            problem = "Permission denied"
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    if problem:
        raise UsageError(f"cannot write {file}: {problem}")


def _rendered(document: Document, form: str, *, to_terminal: bool) -> str:
    if form == "json":
        return json.dumps(document.data, indent=2, allow_nan=False)
    if form == "markdown":
        return render_markdown(document)
    try:
        from sparsekit.report.text import render_text
    except ModuleNotFoundError:  # doctor must work where rich is what is missing
        return render_markdown(document)
    columns = shutil.get_terminal_size().columns if to_terminal else None
    return render_text(document, terminal_columns=columns)
