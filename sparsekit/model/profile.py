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

    counts: by the names of `measure.metrics`. stalls: percent of a warp's cycles per instruction,
    by reason. dropped: metrics that this profiler or chip does not have. report: the profiler's own
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

    @property
    def roofline_point(self) -> tuple[str, float, float] | None:
        """Label, FLOP per byte of DRAM (of the case's own bytes where it was not counted), TFLOP/s;
        None where the FLOP or the time are not known."""
        duration = self.counts.get("duration_s")
        read, written = (self.counts.get(f"dram_{n}_bytes") for n in ("read", "write"))
        moved = read.value + written.value if read and written else self.bytes
        if duration is None or duration.value <= 0 or not self.flop or not moved:
            return None
        return self.label, self.flop / moved, self.flop / duration.value / 1e12

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProfileResult:
        """The result from its JSON. Raises KeyError or TypeError on anything else."""
        fields = dict(data)
        fields["counts"] = {name: Count(**c) for name, c in data["counts"].items()}
        fields["entries"], fields["dropped"] = tuple(data["entries"]), tuple(data["dropped"])
        return cls(**fields)
