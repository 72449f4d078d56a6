"""Results without the figures that a problem has made worthless."""

from __future__ import annotations

from dataclasses import replace

from sparsekit.model.bench import BenchResult, Timing


def sound(result: BenchResult) -> BenchResult:
    """The result without rates and ratios that say nothing: those of a candidate that has a
    problem, and ratios to a base that has one."""
    faulty = {t.label for t in result.timings if t.problem}
    if not faulty:
        return result
    timings = tuple(
        _without_rates(_without_ratio(t)) if t.problem
        else _without_ratio(t) if result.base in faulty
        else t
        for t in result.timings
    )  # fmt: skip
    return replace(result, timings=timings)


def _without_ratio(timing: Timing) -> Timing:
    return replace(timing, ratio=None, ratio_interval=None, verdict=None)


def _without_rates(timing: Timing) -> Timing:
    return replace(timing, tflops=None, gbps=None, matmul_share=None, copy_share=None)
