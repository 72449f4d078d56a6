"""Figures as SVG: the distribution of samples, and the roofline. Colours come from the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from sparsekit.model.bench import BenchResult, Ceilings
from sparsekit.report.roof import Axis, Point, Roof
from sparsekit.report.units import format_time

_WIDTH, _MARGIN_RIGHT, _ROW = 720, 20, 26
_CHARACTER, _GAP, _LABEL_ROW = 6.8, 8, 16  # the widest that 12 px text comes to, on average
_ROOF_HEIGHT, _ROOF_BOTTOM, _ROOF_TOP = 360, 40, 20
_SERIES = 6
_SPARE = 1.06  # of an axis beyond the outermost sample
_LEAST_REACH = 1e-3

COLORS_LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#4d5a66")
COLORS_DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#9aa5b1")
STYLE = """svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
.roof { fill: none; stroke: var(--text); stroke-width: 2; } .grid { stroke: var(--faint); }
circle { fill-opacity: .65; }
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


def distribution(result: BenchResult) -> str:
    """Every sample of each candidate around its own median, in percent; "" without any."""
    rows = []
    for timing in result.timings:
        samples = [s for own in timing.samples_s for s in own]
        middle = statistics.median(samples) if samples else 0.0
        if middle and timing.time_s is not None:
            off = [s / middle - 1 for s in samples]
            label = timing.label.removeprefix(f"{result.op}:")
            mark = ", problem" if timing.problem else ""
            rows.append((f"{label}, {format_time(timing.time_s)}{mark}", off))
    if not rows:
        return ""
    reach = max(abs(x) for _, off in rows for x in off) or _LEAST_REACH
    left = max(len(label) for label, _ in rows) * _CHARACTER + 2 * _GAP
    width = _WIDTH - left - _MARGIN_RIGHT

    def x(value: float) -> float:
        return left + (value / reach / _SPARE + 1) / 2 * width

    bottom = _ROW * len(rows)
    parts = [_opened(bottom + _ROW + 10, f"samples of {result.case}")]
    for value in (-reach, 0.0, reach):
        parts.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" '
                     f'y1="0" y2="{bottom}"/>')  # fmt: skip
        parts.append(
            _text(x(value), bottom + 18, f"{100 * value:+.2g}%" if value else "0%", "middle")
        )
    for number, (label, off) in enumerate(rows):
        y = _ROW * number + _ROW / 2
        color = f"series{number % _SERIES}"
        parts.append(_text(left - _GAP, y + 4, label, "end"))
        parts += [f'<circle class="{color}" cx="{x(v):.1f}" cy="{y:.1f}" r="2.5"/>' for v in off]
    return "".join([*parts, "</svg>"])


def roofline(points: Sequence[Point], ceilings: Ceilings) -> str:
    """The points under the roof of this run's copy and matmul, both axes logarithmic."""
    if not points:
        return ""
    roof = Roof(ceilings)
    x_axis, y_axis = roof.axes(points)
    left, right = 60.0, float(_WIDTH - _MARGIN_RIGHT)
    top, bottom = float(_ROOF_TOP), float(_ROOF_HEIGHT - _ROOF_BOTTOM)

    def x(value: float) -> float:
        return left + x_axis.share(value) * (right - left)

    def y(value: float) -> float:
        return bottom - y_axis.share(value) * (bottom - top)

    corners = (x_axis.low, roof.ridge, x_axis.high)
    path = " ".join(f"{x(a):.1f},{y(roof.height(a)):.1f}" for a in corners)
    matmul_tflops, copy_gbps = ceilings.matmul_tflops, ceilings.copy_gbps
    slope = Axis(x_axis.low, roof.ridge).value(0.5)
    parts = [
        _opened(_ROOF_HEIGHT, "roofline"),
        f'<polyline class="roof" points="{path}"/>',
        _text(right, y(matmul_tflops) - 6, f"matmul {matmul_tflops:.0f} TFLOP/s", "end"),
        _text(x(slope), y(roof.by_copy(slope)) - 8, f"copy {copy_gbps:.0f} GB/s", "end"),
        _text(left - 6, top - 6, "TFLOP/s", "start"),
        _text((left + right) / 2, _ROOF_HEIGHT - 6, "FLOP per byte", "middle"),
    ]
    for decade in x_axis.decades:
        parts.append(f'<line class="grid" x1="{x(decade):.1f}" x2="{x(decade):.1f}" '
                     f'y1="{top:.1f}" y2="{bottom:.1f}"/>')  # fmt: skip
        parts.append(_text(x(decade), bottom + 16, f"{decade:g}", "middle"))
    for decade in y_axis.decades:
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" '
                     f'y1="{y(decade):.1f}" y2="{y(decade):.1f}"/>')  # fmt: skip
        parts.append(_text(left - 6, y(decade) + 4, f"{decade:g}", "end"))
    names = list(dict.fromkeys(p.series for p in points if p.series))
    for number, name in enumerate(names):
        at = bottom - _LABEL_ROW * (len(names) - number) + _GAP
        parts.append(f'<circle class="series{number % _SERIES}" cx="{right - _GAP:.1f}" '
                     f'cy="{at - 4:.1f}" r="5"/>')  # fmt: skip
        parts.append(_text(right - 2 * _GAP - 2, at, name, "end"))
    for number, point in enumerate(points):
        number = names.index(point.series) if point.series else number
        title = f"{point.label}: {point.tflops:.3g} TFLOP/s at {point.flop_per_byte:.3g} FLOP/byte"
        parts.append(
            f'<circle class="series{number % _SERIES}" cx="{x(point.flop_per_byte):.1f}" '
            f'cy="{y(point.tflops):.1f}" r="5"><title>{escape(title)}</title></circle>'
        )
    return "".join([*parts, "</svg>"])


def _opened(height: float, what: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(what)}">'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
