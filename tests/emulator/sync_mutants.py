"""Mutants of a kernel's PTX: each synchronisation instruction that runs, taken away in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparsekit.emulator import Report

_GONE = (
    r"bar(?:rier)?\.(?:cta\.)?(?:sync|arrive)\b", r"barrier\.cluster\.", r"fence\.", r"membar\.",
    r"mbarrier\.(?:init|arrive|expect_tx)\b", r"cp\.async\.(?:bulk\.)?(?:commit|wait)_",
    r"cp\.async\.mbarrier\.", r"wgmma\.(?:fence|commit_group|wait_group)\b",
    r"tcgen05\.(?:commit|wait|fence|relinquish|dealloc)\b",
)  # fmt: skip
_REMOVED = re.compile(rf"(?:@!?%?\w+\s+)?(?:{'|'.join(_GONE)})[^;]*;")
_WAITS = re.compile(r"mbarrier\.(?:try|test)_wait[^;]*?\s(%?\w+), [^;]*;")


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, instruction, text without it); a wait for an mbarrier succeeds at once instead."""
    for match in _REMOVED.finditer(text):
        yield _line(text, match), match[0], text[: match.start()] + text[match.end() :]
    for match in _WAITS.finditer(text):
        success = f"setp.eq.u32 {match[1]}, 0, 0;"
        yield _line(text, match), match[0], text[: match.start()] + success + text[match.end() :]


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def executed(line: int, report: Report) -> bool:
    return not any(u.line <= line <= u.last_line for u in report.uncovered)
