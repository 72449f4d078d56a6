"""Timing cases on the CPU: real ops and buffers, a timer that is told how long things take."""

from __future__ import annotations

import importlib
import json
import subprocess
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from fake_timer import FakeTimer

from sparsekit.check.reference import load_reference
from sparsekit.check.workload import make_workload
from sparsekit.discover import Catalog
from sparsekit.errors import (
    OF_ONE_KERNEL,
    ContextLostError,
    GpuError,
    NoKernelError,
    UsageError,
)
from sparsekit.measure.bench import Setup, bench_cases, bench_workload
from sparsekit.measure.buffers import bytes_of, copy_of
from sparsekit.measure.contender import callable_contender
from sparsekit.measure.mode import MOST_CALLS, MOST_COPIES, choose_mode
from sparsekit.measure.protocol import PROTOCOLS
from sparsekit.model.bench import BenchResult, Ceilings, Reading, Timing
from sparsekit.report.bench import bench_document
from sparsekit.report.markdown import render_markdown

CPU = torch.device("cpu")
OPS = Catalog().ops
OP = OPS["gated_pool"]
CASE = OP.case("r8_d128")
QUICK = replace(PROTOCOLS["sparsekit"], rounds=10)


@dataclass
class FakeKernel:
    """Computes the op from its reference; a call of it takes time_s on the fake timer."""

    label: str
    timer: FakeTimer
    time_s: float = 300e-6
    error: Exception | None = None
    changes_after: int | None = None
    fault: float = 0.0
    fails_after: int | None = None
    inputs_seen: list[int] = field(default_factory=list)
    computed: int = 0

    def compute(self, inputs, outputs):
        if self.error:
            raise self.error
        self.computed += 1
        right = importlib.import_module("sparsekit.ops.gated_pool.reference").reference(inputs)
        outputs["out"].copy_(right["out"])
        outputs["out"][0, 0, 0] += self.fault
        if self.changes_after is not None and self.computed > self.changes_after:
            outputs["out"].zero_()
        return Timing(self.label, "fake", self.label, "none-0", "sm_00", "key")

    def caller(self, inputs, outputs):
        def call():
            if self.fails_after is not None and len(self.inputs_seen) >= self.fails_after:
                raise GpuError("launch refused")
            self.inputs_seen.append(inputs["kv"].data_ptr())
            self.timer.clock_s += self.time_s

        return call


def bench(*kernels, timer, l2="cold", protocol=QUICK, watch=Reading):
    setup = Setup(timer, watch, protocol, l2, 0.01, Ceilings(700.0, 4000.0))
    workload = make_workload(OP, load_reference(OP), CASE, "random", CPU)
    return bench_workload(workload, kernels, "Fake GPU", setup)


def test_times_ratios_and_verdicts():
    timer = FakeTimer()
    result = bench(
        FakeKernel("a", timer), FakeKernel("b", timer, 360e-6), FakeKernel("c", timer, 300.1e-6),
        timer=timer,
    )  # fmt: skip
    a, b, c = result.timings
    assert (result.base, result.status) == ("a", "ok")
    assert a.time_s == pytest.approx(300e-6)
    assert (a.ratio, a.verdict) == (None, None)
    assert (b.ratio, b.verdict) == (pytest.approx(1.2), "slower")
    assert c.verdict == "same"
    assert result.control == pytest.approx(1.0)
    assert b.same_bits
    assert len(b.output_sha256["out"]) == 64
    assert len(b.samples_s) == QUICK.rounds


def test_long_calls_are_timed_by_events_over_two_sets_of_inputs_flushed_before_each():
    timer = FakeTimer()
    kernel = FakeKernel("a", timer)
    result = bench(kernel, timer=timer)
    assert (result.mode.method, result.mode.calls, result.mode.copies) == ("events", 1, 2)
    assert timer.log == ["flush"] * 2 * (QUICK.rounds + QUICK.warm_rounds)
    assert len(set(kernel.inputs_seen)) == 2


def test_short_calls_are_timed_in_a_graph_with_a_set_of_inputs_for_each_call():
    timer = FakeTimer()
    kernel = FakeKernel("a", timer, 20e-6)
    result = bench(kernel, timer=timer)
    assert (result.mode.method, result.mode.calls, result.mode.copies) == ("graph", 50, 50)
    assert timer.log[:2] == ["graph of 50"] * 2
    assert set(timer.log[2:]) == {"flush"}
    assert len(set(kernel.inputs_seen)) == 50
    assert result.timings[0].time_s == pytest.approx(20e-6)


def test_warm_flushes_nothing_and_takes_the_same_inputs():
    timer = FakeTimer()
    kernel = FakeKernel("a", timer, 20e-6)
    result = bench(kernel, timer=timer, l2="warm")
    assert result.mode.l2 == "warm"
    assert "flush" not in timer.log
    assert len(set(kernel.inputs_seen)) == 1


@pytest.mark.parametrize(
    ("estimates", "l2", "calls", "copies"),
    [([1e-9], "warm", MOST_CALLS, 1), ([1e-6, 1.5e-4], "warm", 67, 1), ([1e-6], "cold", 20, 20)],
)
def test_a_graph_is_bounded_by_calls_by_the_longest_and_by_memory(estimates, l2, calls, copies):
    mode = choose_mode(QUICK, l2, estimates, input_bytes=100, budget_bytes=2000)
    assert (mode.method, mode.calls, mode.copies) == ("graph", calls, copies)
    assert choose_mode(QUICK, "cold", [1e-9], 1, 1 << 40).copies == MOST_COPIES


def test_what_cannot_be_captured_moves_the_case_to_events_and_says_so():
    timer = FakeTimer()
    result = bench(
        FakeKernel("a", timer, 20e-6), FakeKernel("uncapturable", timer, 20e-6), timer=timer
    )
    assert result.mode.method == "events"
    assert "uncapturable cannot be captured" in result.mode.note
    assert all(t.time_s for t in result.timings)


@pytest.mark.parametrize("name", ["seed1", "seed2"])
def test_the_protocols_of_the_seeds(name):
    timer = FakeTimer()
    result = bench(
        FakeKernel("a", timer, 20e-6), FakeKernel("b", timer, 22e-6), timer=timer,
        protocol=PROTOCOLS[name],
    )  # fmt: skip
    assert result.mode.method == {"seed1": "events", "seed2": "graph"}[name]
    assert result.mode.l2 == "warm"
    assert result.timings[1].ratio == pytest.approx(1.1)
    assert result.timings[1].verdict == "slower"


@pytest.mark.parametrize("kind", OF_ONE_KERNEL)
def test_a_launch_that_fails_is_a_problem_and_the_others_are_timed(kind):
    timer = FakeTimer()
    result = bench(
        FakeKernel("a", timer), FakeKernel("b", timer, error=kind("launch refused")), timer=timer
    )
    assert result.status == "FAILED"
    assert result.timings[0].time_s
    assert (result.timings[1].time_s, result.timings[1].problem) == (None, "launch refused")


def test_a_launch_that_fails_in_the_middle_fails_the_case_and_keeps_the_run():
    timer = FakeTimer()
    result = bench(FakeKernel("a", timer), FakeKernel("b", timer, fails_after=9), timer=timer)
    assert result.status == "FAILED"
    assert [t.problem for t in result.timings] == ["while timing: launch refused"] * 2
    assert [t.time_s for t in result.timings] == [None, None]


def test_a_call_that_is_not_taken_is_told_and_no_failure():
    timer = FakeTimer()
    refusing = FakeKernel("b", timer, error=NoKernelError("at most 32 heads"))
    result = bench(FakeKernel("a", timer), refusing, timer=timer)
    assert result.status == "ok"
    assert result.cautions == ("b does not take the call: at most 32 heads",)
    assert bench(refusing, timer=timer).status == "skipped"


def test_a_lost_context_ends_the_run():
    timer = FakeTimer()
    with pytest.raises(ContextLostError):
        bench(FakeKernel("a", timer, error=ContextLostError("faulted")), timer=timer)


def test_outputs_that_change_are_a_problem():
    timer = FakeTimer()
    result = bench(FakeKernel("a", timer, changes_after=1), timer=timer)
    assert "out differ after the timing" in result.timings[0].problem


def test_outputs_that_are_not_the_bases_are_told():
    timer = FakeTimer()
    result = bench(FakeKernel("a", timer), FakeKernel("b", timer, fault=1.0), timer=timer)
    assert result.timings[1].same_bits is False


def test_times_at_the_resolution_are_not_told():
    timer = FakeTimer(resolution_s=1e-3)
    result = bench(FakeKernel("a", timer), timer=timer)
    assert result.timings[0].below_resolution
    assert result.status == "ok"


def test_cases_that_do_not_fit_are_skipped_and_the_rest_is_timed(monkeypatch):
    timer = FakeTimer()
    module = load_reference(OP)
    big, small = OP.case("r8_d512"), CASE

    def make_inputs(case, probe):
        if case is big:
            raise torch.OutOfMemoryError("no room\nmore")
        return module.make_inputs(case, probe)

    patched = SimpleNamespace(make_inputs=make_inputs)
    monkeypatch.setattr("sparsekit.measure.bench.load_reference", lambda op: patched)
    setup = Setup(timer, Reading, QUICK)
    results = list(bench_cases(OP, [FakeKernel("a", timer)], [big, small], CPU, "GPU", setup))
    assert [r.status for r in results] == ["skipped", "ok"]


def test_copies_keep_strides_alignment_and_aliases():
    memory = torch.arange(1000.0)
    view = memory.as_strided((4, 8), (11, 1), 3)
    copied = copy_of({"a": view, "b": view, "n": 3, "none": None})
    assert copied["a"] is copied["b"]
    assert copied["a"].stride() == view.stride()
    assert copied["a"].data_ptr() % 256 % 64 == view.data_ptr() % 256 % 64
    assert torch.equal(copied["a"], view)
    assert copied["a"].data_ptr() != view.data_ptr()
    assert bytes_of({"a": view, "b": view}) == 4 * 8 * 4


def test_a_python_callable_takes_the_arguments_by_name():
    contender = callable_contender("py:fake_peer:pool", OP)
    workload = make_workload(OP, load_reference(OP), CASE, "random", CPU)
    outputs = {n: g.view for n, g in workload.outputs().items()}
    assert contender.compute(workload.inputs, outputs).kernel == "py:fake_peer:pool"
    right = load_reference(OP).reference(workload.inputs)["out"]
    assert torch.equal(outputs["out"], right.to(torch.bfloat16))


@pytest.fixture(autouse=True)
def fake_peer(tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text(
        "from sparsekit.ops.gated_pool.reference import reference\n"
        "import torch\n"
        "def pool(kv, score, out_dtype):\n"
        "    assert out_dtype is torch.bfloat16\n"
        "    return reference({'kv': kv, 'score': score})['out'].to(out_dtype)\n"
        "def broken(**kwargs):\n    raise ValueError('no such shape')\n"
        "def empty(**kwargs):\n    return ()\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "told"),
    [("py:fake_peer", "expected py:"), ("py:nothing_such:f", "nothing_such"),
     ("py:fake_peer:g", "has no attribute 'g'"), ("py:fake_peer:number", "not a function")],
)  # fmt: skip
def test_callables_that_are_none(text, told):
    with pytest.raises(UsageError, match=told):
        callable_contender(text, OP)


def test_a_callable_that_raises_or_returns_too_little_is_a_failure():
    timer = FakeTimer()
    for name, told in (("broken", "raised ValueError: no such shape"), ("empty", "returned 0")):
        result = bench(callable_contender(f"py:fake_peer:{name}", OP), timer=timer)
        assert told in result.timings[0].problem


def test_the_document():
    timer = FakeTimer()
    kernels = (FakeKernel("a", timer), FakeKernel("b", timer, 360e-6))
    capped = Reading(1500, 690.0, 70, ("software power cap",))
    result = bench(*kernels, timer=timer, watch=lambda: capped)
    told = {"gpu": "Fake GPU", "others": ["prog (7)"]}
    document = bench_document(
        [result], told, protocol="sparsekit", said="medians", margin=0.01,
        ceilings=Ceilings(700.0, 4000.0),
    )  # fmt: skip
    text = render_markdown(document)
    for part in ("300.0 us", "360.0 us", "1.200 [1.200, 1.200] slower", "power capped in 10 of 10",
                 "prog (7)", "700 TFLOP/s", "events", "1500", "690"):  # fmt: skip
        assert part in text, part
    data = json.loads(json.dumps(document.data))
    assert data["kind"] == "bench"
    assert [BenchResult.from_json(r) for r in data["results"]] == [result]


def _git(folder, *arguments):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def test_a_revision_is_laid_out_with_its_headers_and_resolved(tmp_path):
    kernels = tmp_path / "repository" / "kernels"
    folder = kernels / "scale"
    (kernels / "include" / "sparsekit").mkdir(parents=True)
    (kernels / "include" / "sparsekit" / "h.cuh").write_text("// old header\n")
    source = importlib.resources.files("sparsekit").joinpath("..", "tests", "fixtures", "kernels")
    folder.mkdir()
    for file in source.joinpath("scale_cu").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    _git(tmp_path / "repository", "init", "-q", "-b", "main")
    _git(tmp_path / "repository", "add", ".")
    _git(tmp_path / "repository", "commit", "-qm", "one")
    (folder / "kernel.cu").write_text("today")
    catalog = Catalog([kernels], revisions=tmp_path / "revisions")
    (choice,) = catalog.resolve([f"{folder}@git:main"])
    assert choice.kernel.folder != folder
    assert len(choice.revision) == 40
    assert "today" not in (choice.kernel.folder / choice.kernel.source).read_text()
    assert (choice.kernel.folder.parent / "include" / "sparsekit" / "h.cuh").is_file()
    with pytest.raises(UsageError, match="nowhere"):
        catalog.resolve([f"{folder}@git:nowhere"])
    with pytest.raises(UsageError, match="no folder to lay out"):
        Catalog([kernels]).resolve([f"{folder}@git:main"])
