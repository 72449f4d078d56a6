"""What was found out, as data. What was not measured is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
class VerifyResult:
    """One kernel variant on one case. against: `float64`, a variant, or the kernel itself again.

    runs: launches whose outputs were compared. reason: why it was skipped, or what failed. key: of
    the artifact that ran.
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

    @property
    def status(self) -> str:
        if self.skipped:
            return "skipped"
        return "ok" if self.ok else "FAILED"

    def __str__(self) -> str:
        return f"{self.kernel}:{self.variant} {self.case} against {self.against}"
