"""The roofline drawn with characters, for a terminal and for a page without pictures."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from sparsekit.report.roof import Axis, Point, Roof

_COLUMNS, _ROWS = 64, 14
_ROOF, _BEYOND = "·", "+"  # of the roof; of points beyond the alphabet
_SHARED = "*"  # where several points fall on one character


def drawn(points: Sequence[Point], roof: Roof) -> tuple[str, ...]:
    """The figure, a letter a point, and what each letter is; () without points."""
    if not points:
        return ()
    x, y = roof.axes(points)
    canvas = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for column in range(_COLUMNS):
        at = x.value(column / (_COLUMNS - 1))
        canvas[_row(y, roof.height(at))][column] = _ROOF
    taken: set[tuple[int, int]] = set()
    for number, point in enumerate(points):
        cell = _row(y, point.tflops), round(x.share(point.flop_per_byte) * (_COLUMNS - 1))
        row, column = cell
        canvas[row][column] = _SHARED if cell in taken else _letter(number)
        taken.add(cell)
    ceilings = roof.ceilings
    named = {_row(y, value): f"{value:g}" for value in y.decades}
    named[_row(y, ceilings.matmul_tflops)] = f"{ceilings.matmul_tflops:.0f}"
    width = max(len("TFLOP/s"), *(len(name) for name in named.values()))
    lines = ["TFLOP/s".rjust(width)]
    for row, cells in enumerate(canvas):
        name = named.get(row, "")
        lines.append(f"{name.rjust(width)} {'┤' if name else '│'}{''.join(cells)}".rstrip())
    ticks, names = ["─"] * _COLUMNS, [" "] * (_COLUMNS + width)
    for value in x.decades:
        column = round(x.share(value) * (_COLUMNS - 1))
        ticks[column] = "┬"
        names[column : column + len(f"{value:g}")] = f"{value:g}"
    lines.append(f"{' ' * width} └{''.join(ticks)}")
    lines.append(f"{' ' * width}  {''.join(names).rstrip()}  FLOP per byte")
    lines += [f"{_letter(number)} {_told(point, roof)}" for number, point in enumerate(points)]
    return tuple(lines)


def _row(y: Axis, value: float) -> int:
    return _ROWS - 1 - round(y.share(value) * (_ROWS - 1))


def _letter(number: int) -> str:
    return ascii_uppercase[number] if number < len(ascii_uppercase) else _BEYOND


def _told(point: Point, roof: Roof) -> str:
    height = roof.height(point.flop_per_byte)
    what = "copy" if height < roof.ceilings.matmul_tflops else "matmul"
    return (
        f"{point.label}: {point.flop_per_byte:.3g} FLOP per byte, {point.tflops:.3g} TFLOP/s, "
        f"{point.tflops / height:.0%} of the roof of {height:.3g} TFLOP/s ({what})"
    )
