"""What a timing run found, as data. Times in seconds; what was not measured is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["faster", "slower", "same", "can't tell"]


@dataclass(frozen=True)
class Interval:
    """A bootstrapped confidence interval."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Reading:
    """The GPU at one moment. reasons: why its clocks are held down, in NVML's words."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ceilings:
    """What the GPU reached in this run: a large bf16 matmul, and a large copy (read and write)."""

    matmul_tflops: float
    copy_gbps: float


@dataclass(frozen=True)
class Mode:
    """How a case was timed.

    method: one CUDA graph of `calls` calls per sample, or events around one call. l2: cold when
    every call finds its inputs flushed out of it. copies: sets of input buffers that the calls take
    in turn. note: why it is not what the duration would have chosen.
    """

    protocol: str
    method: Literal["graph", "events"]
    l2: Literal["cold", "warm"]
    calls: int
    copies: int
    rounds: int
    iterations: int
    note: str | None = None


@dataclass(frozen=True)
class Timing:
    """One candidate on one case.

    time_s: the protocol's figure over the samples; None when it failed, or is below the timer's
    resolution. samples_s: seconds per call, by round. ratio: time over the base's time.
    output_sha256: of each output before the timing. same_bits: as the base's outputs. problem: why
    there is no time, or what is wrong with the outputs.
    """

    label: str
    kernel: str
    variant: str
    toolchain: str | None = None
    arch: str | None = None
    key: str | None = None
    time_s: float | None = None
    interval_s: Interval | None = None
    samples_s: tuple[tuple[float, ...], ...] = ()
    below_resolution: bool = False
    ratio: float | None = None
    ratio_interval: Interval | None = None
    verdict: Verdict | None = None
    tflops: float | None = None
    gbps: float | None = None
    matmul_share: float | None = None
    copy_share: float | None = None
    output_sha256: Mapping[str, str] = field(default_factory=dict)
    same_bits: bool | None = None
    problem: str | None = None

    @property
    def untimed(self) -> str:
        """What to say where there is no time."""
        return "below resolution" if self.below_resolution else "failed"


@dataclass(frozen=True)
class BenchResult:
    """All candidates on one case.

    base: the label that ratios are to. control: the base against itself in the same run, as a ratio
    with its interval. discarded: rounds thrown away because the GPU was too hot or slowed down by
    hardware. flop, bytes: of one call. reason: why the case was skipped.
    """

    op: str
    case: str
    gpu: str
    base: str | None
    mode: Mode | None = None
    flop: int | None = None
    bytes: int | None = None
    timings: tuple[Timing, ...] = ()
    control: float | None = None
    control_interval: Interval | None = None
    readings: tuple[Reading, ...] = ()
    discarded: int = 0
    cautions: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def status(self) -> str:
        if self.reason:
            return "skipped"
        return "FAILED" if any(t.problem for t in self.timings) else "ok"

    def __str__(self) -> str:
        times = (
            f"{t.label} {t.time_s * 1e6:.2f} us" if t.time_s else f"{t.label} {t.untimed}"
            for t in self.timings
        )
        return f"{self.case}: {self.reason or ', '.join(times)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BenchResult:
        """The result from its JSON. Raises KeyError or TypeError on anything else."""
        fields = dict(data)
        fields["mode"] = Mode(**data["mode"]) if data["mode"] else None
        fields["timings"] = tuple(_timing(t) for t in data["timings"])
        fields["control_interval"] = _interval(data["control_interval"])
        fields["readings"] = tuple(
            Reading(**{**r, "reasons": tuple(r["reasons"])}) for r in data["readings"]
        )
        fields["cautions"] = tuple(data["cautions"])
        return cls(**fields)


def _interval(data: Mapping[str, float] | None) -> Interval | None:
    return Interval(**data) if data else None


def _timing(data: Mapping[str, Any]) -> Timing:
    fields = dict(data)
    fields["interval_s"] = _interval(data["interval_s"])
    fields["ratio_interval"] = _interval(data["ratio_interval"])
    fields["samples_s"] = tuple(tuple(r) for r in data["samples_s"])
    return Timing(**fields)
