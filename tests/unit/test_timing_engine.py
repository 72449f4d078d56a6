"""The timing engine, its statistics and its verdicts, against a fake clock."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sparsekit.errors import UsageError
from sparsekit.measure.condition import objections, parse_condition
from sparsekit.measure.engine import cautions, take_samples
from sparsekit.measure.protocol import PROTOCOLS, best_median, median, median_of_medians
from sparsekit.measure.schedule import balanced_orders
from sparsekit.measure.statistics import (
    interval_of,
    noise_floor,
    ratio_interval_of,
    verdict_of,
)
from sparsekit.measure.summary import summarise
from sparsekit.model.bench import BenchResult, Ceilings, Interval, Mode, Reading, Timing
from sparsekit.model.op import Work

OURS = PROTOCOLS["sparsekit"]
COOL = Reading(sm_clock_mhz=1980, power_w=300.0, temperature_c=50)
RESOLUTION_S = 5e-7


class FakeGpu:
    """A clock with noise, and a state that drifts from sample to sample.

    first: how much the first sample of a round costs more; drift: growth per sample.
    """

    def __init__(self, times_s, seed=0, noise=0.01, drift=0.0, first=0.0):
        self.times_s, self.noise, self.drift, self.first = times_s, noise, drift, first
        self.random, self.taken = random.Random(seed), 0

    def __call__(self, candidate):
        place = self.taken % len(self.times_s)
        self.taken += 1
        slow = 1 + self.drift * self.taken + (self.first if place == 0 else 0)
        return self.times_s[candidate] * slow * (1 + self.random.gauss(0, self.noise))


def measured(times_s, seed=0, protocol=OURS, margin=0.01, watch=lambda: COOL, **gpu):
    """The summary of candidates with the base first and its control last."""
    samples = take_samples(
        len(times_s) + 1, protocol, FakeGpu([*times_s, times_s[0]], seed, **gpu), watch, seed
    )
    timings = [Timing(f"t{i}", "k", f"v{i}") for i in range(len(times_s))]
    return samples, summarise(
        timings, samples, protocol, base=0, control=len(times_s), margin=margin,
        resolution_s=RESOLUTION_S, work=Work(10**9, 10**6), ceilings=Ceilings(700.0, 4000.0),
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_every_candidate_stands_equally_often_at_every_place_and_behind_every_other(count):
    design = count if count % 2 == 0 else 2 * count
    orders = balanced_orders(count, 3 * design, seed=1)
    for place in range(count):
        assert set(Counter(o[place] for o in orders).values()) == {3 * design // count}
    pairs = Counter(pair for o in orders for pair in pairwise(o))
    if count > 1:
        assert len(pairs) == count * (count - 1)
        assert len(set(pairs.values())) == 1


def test_orders_are_shuffled_by_the_seed_and_repeat_with_it():
    assert balanced_orders(4, 40, 1) == balanced_orders(4, 40, 1)
    assert balanced_orders(4, 40, 1) != balanced_orders(4, 40, 2)


@pytest.mark.parametrize(
    ("name", "noise", "gpu"),
    [
        ("quiet", 0.002, {}),
        ("noisy", 0.03, {}),
        ("clocks that fall", 0.005, {"drift": 1e-3}),
        ("first in a round pays", 0.005, {"first": 0.1}),
    ],
)
def test_the_same_kernel_twice_is_hardly_ever_called_different(name, noise, gpu):
    called = Counter(
        measured([1e-3, 1e-3], seed, noise=noise, **gpu)[1].timings[1].verdict for seed in range(40)
    )
    assert called["faster"] + called["slower"] <= 2, (name, called)


def test_three_percent_are_always_found():
    verdicts = {
        measured([1e-3, 1.03e-3], seed, noise=0.005)[1].timings[1].verdict for seed in range(20)
    }
    assert verdicts == {"slower"}
    assert measured([1e-3, 0.97e-3], noise=0.005)[1].timings[1].verdict == "faster"


def test_quiet_equal_kernels_are_the_same_and_noisy_ones_cannot_be_told():
    assert measured([1e-3, 1e-3], noise=0.002)[1].timings[1].verdict == "same"
    assert measured([1e-3, 1.004e-3], noise=0.1)[1].timings[1].verdict == "can't tell"


def test_a_fixed_order_would_have_blamed_the_first():
    """The fake's cost of being first is real: without balance it is a difference."""
    gpu = FakeGpu([1.0, 1.0], first=0.1)
    samples = np.array([gpu(i) for _ in range(40) for i in (0, 1)])
    first, second = samples[::2, None], samples[1::2, None]
    assert verdict_of(ratio_interval_of(second, first, median), 0.01, 0.0) == "faster"


def test_the_interval_of_a_median_holds_it_as_often_as_it_says():
    held = 0
    for seed in range(200):
        samples = np.random.default_rng(seed).exponential(1.0, (40, 1))
        held += interval_of(samples, median, seed).holds(np.log(2))
    assert held >= 192  # 99 % of 200, less what chance takes


def test_too_few_samples_have_no_interval_and_no_verdict():
    few = np.ones((5, 1))
    assert interval_of(few, median) is None
    assert verdict_of(ratio_interval_of(few, few, median), 0.01, 0.0) == "can't tell"


def test_a_biased_control_raises_the_bar():
    assert noise_floor(None) == noise_floor(Interval(0.99, 1.01)) == 0
    floor = noise_floor(Interval(1.01, 1.04))
    assert floor == pytest.approx(0.04)
    assert verdict_of(Interval(1.02, 1.03), 0.01, floor) == "can't tell"
    assert verdict_of(Interval(0.999, 1.001), 0.01, floor) == "can't tell"
    assert verdict_of(Interval(1.05, 1.06), 0.01, floor) == "slower"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.991, 1.009, "same"), (0.995, 0.998, "same"), (0.985, 0.999, "faster"),
        (1.001, 1.02, "slower"), (0.98, 1.005, "can't tell"),
    ],
)  # fmt: skip
def test_verdicts(low, high, verdict):
    assert verdict_of(Interval(low, high), 0.01, 0.0) == verdict


def test_a_slowdown_discards_its_round_and_a_power_cap_is_told():
    readings = iter(
        [replace(COOL, reasons=("software thermal slowdown",))] * 2
        + [replace(COOL, reasons=("software power cap",))] * 3
        + [replace(COOL, sm_clock_mhz=1500)] * 100
    )
    samples, summary = measured([1e-3], watch=lambda: next(readings))
    assert samples.discarded == 2
    assert len(samples.readings) == len(samples.seconds[0]) == OURS.rounds
    told = "; ".join(cautions(samples))
    assert "2 rounds discarded" in told
    assert "power capped in 3 of 40 rounds" in told
    assert "between 1500 and 1980 MHz" in told
    assert summary.timings[0].time_s == pytest.approx(1e-3, rel=0.02)


def test_a_gpu_that_stays_hot_gives_no_time():
    hot = replace(COOL, reasons=("hardware slowdown",))
    samples, summary = measured([1e-3, 2e-3], watch=lambda: hot)
    assert samples.discarded > OURS.rounds
    assert summary.timings[0].time_s is None
    assert "slowed down" in (summary.timings[0].problem or "")
    assert summary.timings[1].ratio is None


@pytest.mark.parametrize("time_s", [-1e-7, 0.0, 4e-7])
def test_a_time_at_the_resolution_is_not_told(time_s):
    _, summary = measured([1e-3, time_s], noise=0)
    timing = summary.timings[1]
    assert timing.below_resolution
    assert (timing.time_s, timing.ratio, timing.verdict, timing.tflops) == (None,) * 4


def test_no_ratio_to_a_base_below_the_resolution():
    _, summary = measured([1e-7, 1e-3], noise=0)
    assert summary.timings[0].below_resolution
    assert summary.timings[1].time_s == pytest.approx(1e-3)
    assert summary.timings[1].ratio is None


def test_what_the_timer_cannot_resolve_is_not_called_the_same():
    """20 us in steps of half a microsecond: 2.5 % may hide behind equal figures."""
    _, summary = measured([20e-6, 20e-6], noise=0)
    assert summary.timings[1].ratio == 1
    assert summary.timings[1].verdict == "can't tell"
    assert measured([20e-6, 20.4e-6], noise=0)[1].timings[1].verdict == "can't tell"
    assert measured([20e-6, 21e-6], noise=0)[1].timings[1].verdict == "slower"
    assert measured([200e-6, 200e-6], noise=0)[1].timings[1].verdict == "same"


def test_rates_and_shares():
    timing = measured([1e-3], noise=0)[1].timings[0]
    assert timing.tflops == pytest.approx(1.0)
    assert timing.gbps == pytest.approx(1.0)
    assert timing.matmul_share == pytest.approx(1 / 700)
    assert timing.copy_share == pytest.approx(1 / 4000)


def test_the_seeds_figures():
    samples = np.array([[3.0, 1.0, 2.0], [9.0, 7.0, 8.0], [5.0, 4.0, 6.0]])
    assert median_of_medians(samples) == 5.0
    assert best_median(samples) == 2.0
    assert median(samples) == 5.0
    for name, rounds, iterations in (("seed1", 3, 100), ("seed2", 2, 10)):
        taken, summary = measured([1e-3, 1.05e-3], protocol=PROTOCOLS[name])
        assert np.array(taken.seconds[0]).shape == (rounds, iterations)
        assert summary.timings[1].verdict == "slower"


@pytest.mark.parametrize(
    ("text", "told"),
    [("ratio>1.02", "holds for a on c: 1.05"), ("ratio>1.1", None),
     ("time_us <= 1000", "holds for a on c: 1000"), ("ratio_low>1", "holds for a on c: 1.04"),
     ("tflops<1e-9", None), ("gbps>0", "cannot be checked for a on c: no gbps was measured")],
)  # fmt: skip
def test_conditions(text, told):
    timing = Timing(
        "a", "k", "v", time_s=1e-3, ratio=1.05, ratio_interval=Interval(1.04, 1.06), tflops=1.0
    )
    base = Timing("base", "k", "v", time_s=2e-3, tflops=1.0, gbps=1.0)
    result = BenchResult("op", "c", "GPU", "base", timings=(base, timing))
    found = [line for line in parse_condition(text).against(result) if " base on" not in line]
    assert [told in line for line in found] == [True] if told else found == []


def test_a_case_that_was_skipped_meets_no_condition_and_passes_none():
    skipped = BenchResult("op", "c", "GPU", None, reason="it does not fit")
    assert objections([skipped], [parse_condition("ratio>2")]) == [
        "ratio>2 cannot be checked on c: it does not fit"
    ]


@pytest.mark.parametrize("text", ["", "ratio", "ratio=1", "speed>1", "ratio>fast", "ratio>1e"])
def test_conditions_that_are_none(text):
    with pytest.raises(UsageError, match=r"ratio>1\.02"):
        parse_condition(text)


def test_results_survive_json():
    timing = Timing(
        "a", "k", "v", time_s=1.0, interval_s=Interval(0.9, 1.1), samples_s=((1.0,), (1.1,)),
        ratio_interval=Interval(1, 2), verdict="slower",
    )  # fmt: skip
    mode = Mode("sparsekit", "graph", "cold", 10, 10, 40, 1)
    result = BenchResult(
        "op", "case", "GPU", "a", mode, 1, 2, (timing,), 1.0, Interval(0.99, 1.01), (COOL,),
        cautions=("hot",),
    )  # fmt: skip
    assert BenchResult.from_json(result.to_json()) == result
