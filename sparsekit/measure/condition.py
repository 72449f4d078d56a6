"""`--fail-if`: a condition on every timing, such as `ratio>1.02`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from sparsekit.errors import UsageError
from sparsekit.model.bench import Timing

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_FIGURES: dict[str, Callable[[Timing], float | None]] = {
    "ratio": lambda t: t.ratio,
    "ratio_low": lambda t: t.ratio_interval.low if t.ratio_interval else None,
    "ratio_high": lambda t: t.ratio_interval.high if t.ratio_interval else None,
    "time_us": lambda t: None if t.time_s is None else t.time_s * 1e6,
    "tflops": lambda t: t.tflops,
    "gbps": lambda t: t.gbps,
}
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([\d.eE+-]+)\s*")


@dataclass(frozen=True)
class Condition:
    """A figure, a comparison and a number."""

    figure: str
    comparison: str
    number: float

    def holds(self, timing: Timing) -> bool:
        """Whether it holds; never for a figure that was not measured."""
        value = _FIGURES[self.figure](timing)
        return value is not None and _COMPARISONS[self.comparison](value, self.number)

    def __str__(self) -> str:
        return f"{self.figure}{self.comparison}{self.number:g}"


def parse_condition(text: str) -> Condition:
    """The condition that the text says. Raises UsageError with the figures that there are."""
    match = _CONDITION.fullmatch(text)
    if match and match[1] in _FIGURES:
        try:
            return Condition(match[1], match[2], float(match[3]))
        except ValueError:
            pass
    raise UsageError(
        f"--fail-if {text!r}: expected FIGURE>NUMBER or FIGURE<NUMBER with FIGURE one of "
        f"{', '.join(_FIGURES)}, as in 'ratio>1.02'"
    )
