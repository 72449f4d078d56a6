"""What was found out, as data. What was not measured is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FLOAT64 = "float64"  # what a result of the check by the reference is against


@dataclass(frozen=True)
class OutputCheck:
    """One output against what it should be.

    sha256: of all its bytes. max_abs, max_rel, max_ulp: the largest differences over the elements
    that are finite on both sides. worst_index: where the check fails worst, or comes nearest to it.
    ulp_histogram: elements by units in the last place, `0`, `1`, `2`, `3-4`, `5-8` and so on, and
    `special` where one side is not finite and the bits differ; only where bits were compared.
    """

    ok: bool
    sha256: str
    max_abs: float | None = None
    max_rel: float | None = None
    max_ulp: int | None = None
    worst_index: tuple[int, ...] | None = None
    problem: str | None = None
    ulp_histogram: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Finding:
    """A fault that the emulator found. check: what was broken: a check's name, deadlock, trap, ...

    block, thread: one that did it, None where no single one did. ptx_line is 0 where there is no
    single instruction; source is "file:line:column", empty without line info. schedules: under
    which of them it showed.
    """

    check: str
    message: str
    entry: str
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    ptx_line: int
    instruction: str
    source: str
    schedules: tuple[str, ...]


@dataclass(frozen=True)
class CodeBlock:
    """A basic block of PTX. line, last_line: its own; source: as of Finding."""

    function: str
    line: int
    last_line: int
    source: str


@dataclass(frozen=True)
class Coverage:
    """Which basic blocks of an entry some thread has executed. key: of the artifact."""

    key: str
    instance: str
    entry: str
    blocks: int
    uncovered: tuple[CodeBlock, ...]

    def joined(self, other: Coverage) -> Coverage:
        """What two runs of the entry have executed together."""
        left = frozenset(other.uncovered)
        return replace(other, uncovered=tuple(b for b in self.uncovered if b in left))


@dataclass(frozen=True)
class VerifyResult:
    """One kernel variant on one case. against: `float64`, a variant, or the kernel itself again.

    runs: launches whose outputs were compared. reason: why it was skipped, or what failed. key: of
    the artifact that ran.
    Of an emulated run: its findings and coverage; schedules: under which it ran; reused: how many
    of its launches were known from the same code on the same data, of another arch for instance.
    """

    op: str
    kernel: str
    variant: str
    arch: str | None
    toolchain: str | None
    device: str
    case: str
    against: str
    runs: int
    outputs: Mapping[str, OutputCheck] = field(default_factory=dict)
    ok: bool | None = None
    skipped: bool = False
    reason: str | None = None
    key: str | None = None
    findings: tuple[Finding, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    schedules: tuple[str, ...] = ()
    launches: int = 0
    reused: int = 0

    @property
    def status(self) -> str:
        if self.skipped:
            return "skipped"
        return "ok" if self.ok else "FAILED"

    def __str__(self) -> str:
        place = f" {self.arch}" if self.schedules and self.arch else ""
        return f"{self.kernel}:{self.variant}{place} {self.case} against {self.against}"
