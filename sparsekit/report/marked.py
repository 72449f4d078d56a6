"""Tables in markdown files that are made from stored results, and can be made again.

    <!-- sparsekit report docs/results/bench.json --section times --case 'seed1_*' -->
    ...
    <!-- /sparsekit report -->

Paths are relative to the root of the files that are checked together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import UsageError
from sparsekit.report.document import Document
from sparsekit.report.markdown import render_markdown
from sparsekit.report.sections import parts_of
from sparsekit.report.stored import Wanted, read_stored

_OPEN = "<!-- sparsekit report "
_CLOSE = "<!-- /sparsekit report -->"
_BLOCK = re.compile(
    rf"^{re.escape(_OPEN)}(?P<order>.*?) -->\n(?P<body>.*?)^{re.escape(_CLOSE)}$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A marked table. line: of its marker; found: what stands there; derived: what should."""

    file: Path
    line: int
    order: str
    found: str
    derived: str

    @property
    def first_difference(self) -> str | None:
        """The first line that is not as derived; None when all are."""
        found, derived = self.found.splitlines(), self.derived.splitlines()
        for number, (has, wants) in enumerate(zip(found, derived, strict=False)):
            if has != wants:
                return (
                    f"{self.file}:{self.line + 1 + number}: {self.order} gives\n  {wants}\nand "
                    f"there stands\n  {has}"
                )
        if len(found) != len(derived):
            return (
                f"{self.file}:{self.line}: {self.order} gives {len(derived)} lines, and there "
                f"stand {len(found)}"
            )
        return None


def blocks_in(file: Path, root: Path) -> Iterator[Block]:
    """Every marked table of a file. Raises UsageError for a marker that does not read."""
    text = _read(file)
    matches = list(_BLOCK.finditer(text))
    if len(matches) != text.count(_OPEN) or text.count(_CLOSE) != len(matches):
        raise UsageError(f"{file}: a marker has no {_CLOSE} behind it, or the other way round")
    for match in matches:
        line = text.count("\n", 0, match.start()) + 1
        order = match["order"]
        yield Block(file, line, order, match["body"], derived(order, root, f"{file}:{line}"))


def updated(file: Path, root: Path) -> str:
    """The file's text with every marked table made again."""
    for _ in blocks_in(file, root):
        pass  # every marker reads
    return _BLOCK.sub(
        lambda m: f"{_OPEN}{m['order']} -->\n{derived(m['order'], root, str(file))}{_CLOSE}",
        _read(file),
    )


def derived(order: str, root: Path, where: str) -> str:
    """What the marker asks for, as markdown with a blank line on each side."""
    files, sections, wanted = _parsed(order, where)
    stored = [read_stored(root / name, name) for name in files]
    parts = parts_of(sections, stored, wanted)
    if not parts:
        raise UsageError(f"{where}: {order} gives nothing")
    return f"\n{render_markdown(Document({}, tuple(parts)))}\n\n"


def _parsed(order: str, where: str) -> tuple[list[str], list[str], Wanted]:
    """Files, sections, and what of them, from a marker's words."""
    options: dict[str, list[str]] = {
        "--section": [], "--op": [], "--case": [], "--candidate": [],
    }  # fmt: skip
    files: list[str] = []
    try:
        words = iter(shlex.split(order))
    except ValueError as error:
        raise UsageError(f"{where}: the marker {order!r} does not read: {error}") from error
    for word in words:
        if word in options:
            value = next(words, None)
            if value is None:
                raise UsageError(f"{where}: {word} has no value behind it")
            options[word].append(value)
        elif word.startswith("-"):
            raise UsageError(f"{where}: unknown option {word}; there are {', '.join(options)}")
        else:
            files.append(word)
    if not files or not options["--section"]:
        raise UsageError(f"{where}: a marker names result files and at least one --section")
    op = options["--op"][-1] if options["--op"] else None
    wanted = Wanted(op, tuple(options["--case"]), tuple(options["--candidate"]))
    return files, options["--section"], wanted


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
