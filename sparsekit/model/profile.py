"""What a profiler counted on one launch, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Source = Literal["measured", "static"]


@dataclass(frozen=True)
class Count:
    """One figure. measured: counted on the hardware; static: it follows from the code alone."""

    value: float
    source: Source


@dataclass(frozen=True)
class ProfileResult:
    """One candidate on one case.

    counts: by the names of `measure.metrics`. stalls: percent of the cycles of active warps, by
    reason. dropped: metrics that this profiler or chip does not have. report: the profiler's own
    file. problem: why nothing was counted on the hardware.
    """

    op: str
    case: str
    gpu: str
    label: str
    kernel: str
    entries: tuple[str, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    stalls: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    report: str | None = None
    problem: str | None = None
    flop: int | None = None
    bytes: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProfileResult:
        """The result from its JSON. Raises KeyError or TypeError on anything else."""
        fields = dict(data)
        fields["counts"] = {name: Count(**c) for name, c in data["counts"].items()}
        fields["entries"], fields["dropped"] = tuple(data["entries"]), tuple(data["dropped"])
        return cls(**fields)
