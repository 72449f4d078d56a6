"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_STEP = 1024
NO_REASON = "no reason given"
ENDED_EARLY = "not whole: the run was ended before its last case"


def format_bytes(count: int | None) -> str:
    """`1.5 MiB`; a dash for what is not known."""
    if count is None:
        return "–"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < _STEP:
            break
        value, unit = value / _STEP, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def format_seconds(seconds: float | None) -> str:
    """`0.12 s`, `3.4 ms`, `2 min 5 s`; a dash for what was not measured."""
    if seconds is None:
        return "–"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {seconds % 60:.0f} s"
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"


def place_of(environment: Mapping[str, Any]) -> str:
    """Where something ran, as `environment()` tells it."""
    if environment.get("emulated"):
        return "the CPU, emulated"
    return str(environment.get("gpu") or "an unknown GPU")


def format_time(seconds: float) -> str:
    """A measured time with four digits: `2.441 us`, `18.32 us`, `3.017 ms`, `1.204 s`."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        value = seconds / size
        if value < 1000 or unit == "s":
            break
    digits = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{digits}f} {unit}"


def widths_text(loads: Mapping[str, Mapping[str, int]] | None) -> str | None:
    """`LDG 16x8 4x2, LDS 16x4`: bytes per thread, as WIDTHxCOUNT; None where they are not known."""
    if loads is None:
        return None
    parts = (
        f"{kind} " + " ".join(f"{width}x{count}" for width, count in widths.items())
        for kind, widths in loads.items()
    )
    return ", ".join(parts) or "none"


def first_line_of(reason: str | None) -> str:
    """A reason on one line; says so where none was given."""
    return next(iter((reason or "").splitlines()), "") or NO_REASON


def surroundings(environment: Mapping[str, Any]) -> list[str]:
    """What else ran on the GPU, and why its clocks and power could not be watched."""
    others, watch = environment.get("others"), environment.get("watch")
    told = [f"other processes on the GPU: {', '.join(others)}"] if others else []
    return [*told, *([str(watch)] if watch else [])]
