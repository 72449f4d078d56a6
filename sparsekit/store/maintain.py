"""Looking after the store: what is in it, whether it is whole, and making it smaller."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import StoreError, UsageError
from sparsekit.store.layout import ENTRIES
from sparsekit.store.local import Store, look

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Stored:
    """One entry by its folder: no file of it has been read."""

    key: str
    folder: Path
    bytes: int
    age_s: float


def entries(root: Path) -> Iterator[Stored]:
    """Every entry of the store, in the order of the keys."""
    for folder in sorted((root / ENTRIES).glob("??/*")):
        try:
            files = [file.lstat() for file in folder.iterdir()] if not folder.is_symlink() else []
            age_s = time.time() - folder.lstat().st_mtime
        except OSError:
            continue  # another process removed it
        yield Stored(folder.name, folder, sum(f.st_size for f in files), age_s)


def damaged(root: Path) -> Iterator[tuple[Stored, str]]:
    """Entries that do not hold what they say, with what is wrong."""
    for entry in entries(root):
        # Looked at twice: the first time it may have been replaced or removed under our eyes.
        if isinstance(look(entry.folder), str) and isinstance(found := look(entry.folder), str):
            yield entry, found


def prunable(root: Path, older_than_s: float | None, max_bytes: int | None) -> list[Stored]:
    """What must go: entries older than the limit, then the oldest until the rest fits."""
    by_age = sorted(entries(root), key=lambda e: e.age_s)
    gone = [e for e in by_age if older_than_s is not None and e.age_s > older_than_s]
    kept = [e for e in by_age if e not in gone]
    total = 0
    for entry in kept:  # the youngest first
        total += entry.bytes
        if max_bytes is not None and total > max_bytes:
            gone.append(entry)
    return gone


def remove_all(store: Store, chosen: list[Stored]) -> None:
    """Remove the entries. Raises StoreError when one cannot be removed."""
    for entry in chosen:
        try:
            store.remove(entry.key)
        except OSError as error:
            raise StoreError(f"cannot remove {entry.folder}: {error}") from error


def parse_age(text: str) -> float:
    """`30d`, `12h`, `90m` in seconds. Raises UsageError on anything else."""
    return _with_unit(text.lower(), _UNITS_S, "an age such as 30d, 12h or 90m")


def parse_size(text: str) -> int:
    """`500M`, `2GiB`, `1048576` in bytes. Raises UsageError on anything else."""
    plain = re.sub(r"i?B$", "", text.strip(), flags=re.IGNORECASE).upper()
    return int(_with_unit(plain, _UNITS_BYTES, "a size such as 500M or 2GiB"))


def _with_unit(text: str, units: dict[str, int], wanted: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]?)", text.strip())
    if not match or match[2] not in units:
        raise UsageError(f"expected {wanted}, found {text!r}")
    return float(match[1]) * units[match[2]]
