"""Figures as SVG: the distribution of samples, and the roofline. Colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from sparsekit.model.bench import BenchResult, Ceilings
from sparsekit.report.units import format_time

_WIDTH, _MARGIN_LEFT, _MARGIN_RIGHT, _ROW = 720, 220, 20, 26
_ROOF_HEIGHT, _ROOF_BOTTOM, _ROOF_TOP = 360, 40, 20
_SERIES = 6

COLORS_LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#4d5a66")
COLORS_DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#9aa5b1")
STYLE = """svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
.roof { fill: none; stroke: var(--text); stroke-width: 2; } .grid { stroke: var(--faint); }
.median { stroke: var(--text); stroke-width: 2; } circle { fill-opacity: .65; }
""" + "".join(f".series{n} {{ fill: var(--c{n}); }}\n" for n in range(_SERIES))


def colors(light: bool) -> str:
    """The figures' own colours as CSS variables."""
    chosen = COLORS_LIGHT if light else COLORS_DARK
    return " ".join(f"--c{n}: {color};" for n, color in enumerate(chosen))


def standalone(svg: str) -> str:
    """A figure as a file of its own, on white."""
    style = (
        f"svg {{ background: #fff; --text: #1b1f24; --faint: #d8dee4; {colors(True)} }}\n{STYLE}"
    )
    opened, rest = svg.split(">", 1)
    return f"{opened}><style>{style}</style>{rest}\n"


@dataclass(frozen=True)
class Point:
    """One measured call: FLOP per byte moved, and TFLOP/s reached."""

    label: str
    flop_per_byte: float
    tflops: float


def distribution(result: BenchResult) -> str:
    """Every sample of each candidate on one axis of time, its median as a line; "" without any."""
    rows = [(t.label, [s for r in t.samples_s for s in r], t.time_s) for t in result.timings]
    rows = [(label, samples, time_s) for label, samples, time_s in rows if samples]
    if not rows:
        return ""
    everything = [s for _, samples, _ in rows for s in samples]
    low, high = min(everything), max(everything)
    span = (high - low) or high or 1.0
    low, high = low - 0.03 * span, high + 0.03 * span

    def x(value: float) -> float:
        width = _WIDTH - _MARGIN_LEFT - _MARGIN_RIGHT
        return _MARGIN_LEFT + (value - low) / (high - low) * width

    height = _ROW * (len(rows) + 1) + 10
    parts = [_opened(height, f"samples of {result.case}")]
    for number, (label, samples, time_s) in enumerate(rows):
        y = _ROW * number + _ROW / 2
        color = f"series{number % _SERIES}"
        parts.append(_text(_MARGIN_LEFT - 8, y + 4, label, "end"))
        parts += [
            f'<circle class="{color}" cx="{x(s):.1f}" cy="{y:.1f}" r="2.5"/>' for s in samples
        ]
        if time_s is not None:
            at = x(time_s)
            parts.append(
                f'<line class="median" x1="{at:.1f}" x2="{at:.1f}" y1="{y - 9:.1f}" '
                f'y2="{y + 9:.1f}"/>'
            )
    bottom = _ROW * len(rows) + 4
    for share in (0.0, 0.5, 1.0):
        value = low + share * (high - low)
        anchor = ("start", "middle", "end")[round(2 * share)]
        parts.append(_text(x(value), bottom + 16, format_time(max(value, 0.0)), anchor))
    return "".join([*parts, "</svg>"])


def roofline(points: Sequence[Point], ceilings: Ceilings) -> str:
    """The points under the roof of this run's copy and matmul, both axes logarithmic."""
    if not points:
        return ""
    matmul_tflops, copy_gbps = ceilings.matmul_tflops, ceilings.copy_gbps
    ridge = matmul_tflops * 1e3 / copy_gbps
    x_low = min([p.flop_per_byte for p in points] + [ridge]) / 2
    x_high = max([p.flop_per_byte for p in points] + [ridge]) * 2
    y_high = matmul_tflops * 1.6
    y_low = min([p.tflops for p in points] + [copy_gbps * x_low / 1e3]) / 2
    left, right = 60.0, float(_WIDTH - _MARGIN_RIGHT)
    top, bottom = float(_ROOF_TOP), float(_ROOF_HEIGHT - _ROOF_BOTTOM)

    def x(value: float) -> float:
        return left + _share(value, x_low, x_high) * (right - left)

    def y(value: float) -> float:
        return bottom - _share(value, y_low, y_high) * (bottom - top)

    roof = [(x_low, copy_gbps * x_low / 1e3), (ridge, matmul_tflops), (x_high, matmul_tflops)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in roof)
    parts = [
        _opened(_ROOF_HEIGHT, "roofline"),
        f'<polyline class="roof" points="{path}"/>',
        _text(right, y(matmul_tflops) - 6, f"matmul {matmul_tflops:.0f} TFLOP/s", "end"),
        _text(left + 6, top + 12, f"copy {copy_gbps:.0f} GB/s", "start"),
        _text((left + right) / 2, _ROOF_HEIGHT - 6, "FLOP per byte", "middle"),
        _text(left - 6, y(matmul_tflops) + 4, f"{matmul_tflops:.0f}", "end"),
    ]
    for decade in _decades(x_low, x_high):
        parts.append(f'<line class="grid" x1="{x(decade):.1f}" x2="{x(decade):.1f}" '
                     f'y1="{top:.1f}" y2="{bottom:.1f}"/>')  # fmt: skip
        parts.append(_text(x(decade), bottom + 16, f"{decade:g}", "middle"))
    for decade in _decades(y_low, y_high):
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" '
                     f'y1="{y(decade):.1f}" y2="{y(decade):.1f}"/>')  # fmt: skip
        parts.append(_text(left - 6, y(decade) + 4, f"{decade:g}", "end"))
    for number, point in enumerate(points):
        title = f"{point.label}: {point.tflops:.3g} TFLOP/s at {point.flop_per_byte:.3g} FLOP/byte"
        parts.append(
            f'<circle class="series{number % _SERIES}" cx="{x(point.flop_per_byte):.1f}" '
            f'cy="{y(point.tflops):.1f}" r="5"><title>{escape(title)}</title></circle>'
        )
    return "".join([*parts, "</svg>"])


def _share(value: float, low: float, high: float) -> float:
    return (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def _opened(height: float, what: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(what)}">'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
