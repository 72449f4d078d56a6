"""Writing a document out: to standard output, or to a file that is whole or not there."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click

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
