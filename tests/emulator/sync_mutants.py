"""Mutants of a kernel's PTX: each synchronisation instruction that runs, taken away in turn.

`bar.warp.sync` is none of them: lanes of one warp are not looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from own_kernel import OwnKernel

from sparsekit.emulator import Report
from sparsekit.model import Case

Why = Callable[[int, str, str], str | None]
LEAST_REPORTED = 0.9  # of those that run
_GONE = (
    r"bar(?:rier)?\.(?:cta\.)?(?:sync|arrive)\b", r"barrier\.cluster\.", r"fence\.", r"membar\.",
    r"mbarrier\.(?:init|arrive|expect_tx)\b", r"cp\.async\.(?:bulk\.)?(?:commit|wait)_",
    r"cp\.async\.mbarrier\.", r"wgmma\.(?:fence|commit_group|wait_group)\b",
    r"tcgen05\.(?:commit|wait|fence|relinquish|dealloc)\b",
)  # fmt: skip
_REMOVED = re.compile(rf"(?:@!?%?\w+\s+)?(?:{'|'.join(_GONE)})[^;]*;")
_WAITS = re.compile(r"mbarrier\.(?:try|test)_wait[^;]*?\s(%?\w+), [^;]*;")
_ENTRY = re.compile(r"\.entry\s+(\w+)")


def mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, instruction, text without it); a wait for an mbarrier succeeds at once instead."""
    for match in _REMOVED.finditer(text):
        yield _line(text, match), match[0], text[: match.start()] + text[match.end() :]
    for match in _WAITS.finditer(text):
        success = f"setp.eq.u32 {match[1]}, 0, 0;"
        yield _line(text, match), match[0], text[: match.start()] + success + text[match.end() :]


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def executed(text: str, line: int, reports: Sequence[Report]) -> bool:
    """Whether a launch of the entry that the line stands in reached it."""
    entries = [m[1] for m in _ENTRY.finditer("\n".join(text.splitlines()[:line]))]
    return any(
        report.entry == entries[-1]
        and not any(u.line <= line <= u.last_line for u in report.uncovered)
        for report in reports
    )


@dataclass(frozen=True)
class Survey:
    """What came of taking away every synchronisation that runs. silent: by line and instruction,
    why nothing misses it; None where no reason is known."""

    executed: int
    silent: dict[str, str | None]

    @property
    def reported(self) -> int:
        return self.executed - len(self.silent)

    def __add__(self, other: Survey) -> Survey:
        return Survey(self.executed + other.executed, {**self.silent, **other.silent})

    def check(self, least_executed: int, least_reported: float = LEAST_REPORTED) -> None:
        print(f"{self.reported} of {self.executed} reported", *self.silent.items(), sep="\n  ")
        assert [place for place, why in self.silent.items() if why is None] == []
        assert self.reported >= least_reported * self.executed
        assert self.executed >= least_executed


def survey(
    text: str, reports: Sequence[Report], is_missed: Callable[[str], bool],
    why_redundant: Why,
) -> Survey:  # fmt: skip
    """reports: of the launches of the text as it is. is_missed: whether a mutant's text is found
    out. why_redundant(line, instruction, text): a reason, where there is one."""
    count, silent = 0, {}
    for line, instruction, mutant in mutants(text):
        if executed(text, line, reports):
            count += 1
            if not is_missed(mutant):
                named = f"{line}: {' '.join(instruction.split())}"
                silent[named] = why_redundant(line, instruction, text)
    return Survey(count, silent)


def survey_kernel(
    kernel: OwnKernel, cases: Sequence[Case], why_redundant: Why, checks: Sequence[str] | None
) -> Survey:
    """Of every text that the first case runs; what it does not miss, the others may."""
    reports, total = kernel.run(cases[0], checks=checks).reports, Survey(0, {})
    for text in kernel.texts(cases[0]):

        def is_missed(mutant: str, text: str = text) -> bool:
            edit = lambda t: mutant if t == text else t  # noqa: E731
            runs = (kernel.run(case, checks=checks, edit=edit) for case in cases)
            return any(run.faults or run.wrong for run in runs)

        total += survey(text, reports, is_missed, why_redundant)
    return total


def all_needed(line: int, instruction: str, text: str) -> None:
    """`why_redundant` of a kernel that has no synchronisation too many."""
