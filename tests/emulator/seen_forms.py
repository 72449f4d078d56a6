"""A plugin of pytest that notes which forms of the instruction table its tests' code matches.

`pytest -p seen_forms`, with the file to write in $SPARSEKIT_SEEN_FORMS: [[chapter, place, group,
modifier], ...]; of a form itself the group and the modifier are empty.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from sparsekit.emulator.isa import CHAPTERS
from sparsekit.emulator.table import Form, Matched, Table

FILE = "SPARSEKIT_SEEN_FORMS"
Seen = tuple[str, int, str, str]


def places() -> dict[int, tuple[str, int]]:
    """By the id of a form its chapter and place there."""
    return {
        id(form): (module.__name__.rpartition(".")[2], place)
        for module in CHAPTERS
        for place, form in enumerate(module.CHAPTER.forms)
    }


class Recorder:
    def __init__(self) -> None:
        self._places = places()
        self._match = Table.match
        self.seen: set[Seen] = set()

    def match(self, table: Table, *args: object) -> Matched:
        found = self._match(table, *args)  # type: ignore[arg-type]
        place = self._places.get(id(found.form))
        if place is not None:
            self.seen.add((*place, "", ""))
            self.seen.update((*place, name, modifier) for name, modifier in found.parts.items())
        return found


def wanted() -> dict[Seen, Form]:
    """All forms, and each modifier that may stand in each of their groups, but for hints."""
    result: dict[Seen, Form] = {}
    for module in CHAPTERS:
        name = module.__name__.rpartition(".")[2]
        for place, form in enumerate(module.CHAPTER.forms):
            result[name, place, "", ""] = form
            for group in form.groups:
                if not group.name.startswith("$"):
                    for choice in group.choices:
                        result[name, place, group.name, choice] = form
    return result


def pytest_configure() -> None:
    global recorder  # one run of pytest has one
    recorder = Recorder()
    Table.match = lambda table, *args: recorder.match(table, *args)  # type: ignore[method-assign]


def pytest_unconfigure() -> None:
    Path(os.environ[FILE]).write_text(json.dumps(sorted(recorder.seen)))
