"""sha256 in hexadecimal: of bytes, of a file, and of files that were digested before."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from sparsekit.errors import UsageError
from sparsekit.files import parse_json, replace_file


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class KnownDigests:
    """Digests of large files, remembered in a JSON file by path, size and time of change.

    A memory that is missing, does not read or cannot be written costs digesting again.
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._known: dict[str, list[object]] | None = None
        self._changed = False

    def of(self, file: Path) -> str | None:
        """The file's sha256; None when it is not there."""
        if self._known is None:
            self._known = dict(_read(self._memory))
        try:
            found = file.stat()
            facts = [found.st_size, found.st_mtime_ns]
            *before, digest = self._known.get(str(file), [None])
            if before == facts:
                return str(digest)
            measured = file_sha256(file)
        except OSError:
            return None
        self._known[str(file)] = [*facts, measured]
        self._changed = True
        return measured

    def keep(self) -> None:
        """Write down what is new, where there is a folder for it."""
        if not self._changed or not self._memory.parent.is_dir():
            return
        known = {**_read(self._memory), **(self._known or {})}
        with contextlib.suppress(UsageError):
            replace_file(self._memory, lambda file: file.write_text(json.dumps(known)))
        self._changed = False


def _read(memory: Path) -> Mapping[str, list[object]]:
    try:
        known = parse_json(memory.read_bytes())
        return {str(name): list(facts) for name, facts in known.items() if facts}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
