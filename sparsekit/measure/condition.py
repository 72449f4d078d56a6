"""`--fail-if`: a condition on every timing, such as `ratio>1.02`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sparsekit.errors import UsageError
from sparsekit.model.bench import BenchResult, Timing

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
_OF_RATIO = "ratio"  # such figures begin so, and the base has none
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<)\s*([\d.eE+-]+)\s*")


@dataclass(frozen=True)
class Condition:
    """A figure, a comparison and a number."""

    figure: str
    comparison: str
    number: float

    def against(self, result: BenchResult) -> Iterator[str]:
        """What speaks against the result: where the condition holds, and where nobody can tell."""
        if result.reason:
            yield f"{self} cannot be checked on {result.case}: {result.reason}"
            return
        judged = [t for t in result.timings if not self._spares(t, result)]
        if not judged:
            yield f"{self} cannot be checked on {result.case}: nothing was timed beside the base"
        for timing in judged:
            value = _FIGURES[self.figure](timing)
            if value is None:
                why = timing.problem or ("" if result.base else "the case has no base")
                told = f"{self} cannot be checked for {timing.label} on {result.case}"
                yield f"{told}: no {self.figure} was measured" + (f", {why}" if why else "")
            elif _COMPARISONS[self.comparison](value, self.number):
                yield f"{self} holds for {timing.label} on {result.case}: {value:.4g}"

    def _spares(self, timing: Timing, result: BenchResult) -> bool:
        return self.figure.startswith(_OF_RATIO) and timing.label == result.base

    def __str__(self) -> str:
        return f"{self.figure}{self.comparison}{self.number:g}"


def objections(results: Sequence[BenchResult], conditions: Sequence[Condition]) -> list[str]:
    """A line for each timing that meets a condition, or that has nothing to hold it against."""
    return [line for c in conditions for result in results for line in c.against(result)]


def parse_condition(text: str) -> Condition:
    """The condition that the text says. Raises UsageError with the figures that there are."""
    match = _CONDITION.fullmatch(text)
    if match and match[1] in _FIGURES:
        number = _number(match[3])
        if number is not None:
            return Condition(match[1], match[2], number)
    raise UsageError(
        f"--fail-if {text!r}: expected FIGURE>NUMBER or FIGURE<NUMBER with FIGURE one of "
        f"{', '.join(_FIGURES)}, as in 'ratio>1.02'"
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
