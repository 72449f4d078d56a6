"""Notes: small JSON documents that were worked out from artifacts, kept beside them.

    <root>/notes/ab/ab12....json     {"sha256": of the value, "value": ...}

A note that is missing, damaged or cannot be written costs working it out again, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from sparsekit.digest import sha256_of
from sparsekit.errors import UsageError
from sparsekit.files import parse_json, replace_file
from sparsekit.model.artifact import canonical_json
from sparsekit.store.staging import discard, make_folder

NOTES = "notes"


class Notes:
    """Notes by key, in the store at `root`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / NOTES

    def get(self, key: str) -> Any:
        """The value, None when there is none that reads."""
        try:
            note = parse_json(self._file(key).read_bytes())
            value, digest = note["value"], note["sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return value if _digest(value) == digest else None

    def put(self, key: str, value: Any) -> None:
        file = self._file(key)
        text = json.dumps({"sha256": _digest(value), "value": value})
        with contextlib.suppress(OSError, UsageError):
            make_folder(file.parent)
            replace_file(file, lambda temporary: temporary.write_text(text))

    def clear(self, older_than_s: float = 0.0) -> None:
        """Remove the notes that were made longer ago."""
        if not older_than_s:
            discard(self._folder)
            return
        for file in self._folder.glob("??/*.json"):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > older_than_s:
                    file.unlink()

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def note_key(*parts: str) -> str:
    """The key of what is worked out from these digests by that version of that kind."""
    return sha256_of("\n".join(parts).encode())


def _digest(value: Any) -> str:
    return sha256_of(canonical_json(value))
