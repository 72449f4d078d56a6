"""What ptxas says with `-v`: spills and remarks, per entry. No line of it is anchored, since NVRTC
prefixes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '([^']+)'|Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REMARK = re.compile(r"\((C7\d+)\)[^\n]*|warning\s*:[^\n]*", re.IGNORECASE)


@dataclass(frozen=True)
class Spills:
    store_bytes: int
    load_bytes: int


def spills(log: str) -> dict[str, Spills]:
    """Spill bytes by entry; an entry that the log does not speak of is absent."""
    found: dict[str, Spills] = {}
    entry = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1] or match[2]
        if (match := _SPILLS.search(line)) and entry:
            found[entry] = Spills(int(match[2]), int(match[3]))
    return found


def remarks(log: str) -> tuple[str, ...]:
    """Warnings of the compiler and performance remarks of ptxas (codes C7xxx)."""
    return tuple(dict.fromkeys(m[0].strip() for m in _REMARK.finditer(log)))
