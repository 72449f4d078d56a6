"""`bench` from its options to its files and exit codes, with a device that is told how it behaves.

The kernels refuse tensors that are on no GPU; Python callables take their place.
"""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from fake_timer import FakeTimer

from sparsekit.cli.bench_command import command
from sparsekit.errors import NoKernelError, UsageError
from sparsekit.model.bench import Ceilings
from sparsekit.model.call import Device
from sparsekit.runtime.nvml import Watch

PEER = """
from sparsekit.ops.gated_pool.reference import reference
import torch

timer = None

def pool(kv, score, out_dtype, time_s=300e-6):
    timer.clock_s += time_s
    return reference({"kv": kv, "score": score})["out"].to(out_dtype)

def slow(kv, score, out_dtype):
    return pool(kv, score, out_dtype, 330e-6)

def interrupted(kv, score, out_dtype):
    if kv.shape[2] == 512:
        raise KeyboardInterrupt
    return pool(kv, score, out_dtype)

def broken(kv, score, out_dtype):
    raise RuntimeError("no")

def exits(kv, score, out_dtype):
    raise SystemExit(3)

def instant(kv, score, out_dtype):
    return pool(kv, score, out_dtype, 0.0)
"""


def refuse(self, inputs, outputs):
    raise NoKernelError("no kernel takes this call\n  there is no GPU")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    timer = FakeTimer()
    (tmp_path / "told_peer.py").write_text(PEER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "told_peer", raising=False)
    import told_peer

    told_peer.timer = timer
    gpu = Device((9, 0), 132, 232448, 0, "Told GPU", "0000:00:00.0")
    monkeypatch.setattr(
        "sparsekit.cli.bench_command.gpu_of", lambda text, or_cpu: (torch.device("cpu"), gpu)
    )
    monkeypatch.setattr("sparsekit.cli.bench_command.Watch", lambda bus: Watch(bus, object()))
    monkeypatch.setattr("sparsekit.measure.timer.CudaTimer", lambda device: timer)
    monkeypatch.setattr(
        "sparsekit.measure.ceilings.measure_ceilings", lambda timer, device: Ceilings(700.0, 4000.0)
    )

    monkeypatch.setattr("sparsekit.measure.contender.KernelContender.compute", refuse)

    def run(*arguments: str):
        store = ["--cache-dir", str(tmp_path / "store"), "--rounds", "10"]
        return CliRunner().invoke(command, [*arguments, *store])

    return run


FIRST = ("py:told_peer:pool", "py:told_peer:slow", "triton/gated_pool:plain")


def test_a_run_in_every_form(invoke, tmp_path):
    done = invoke(*FIRST, "--case", "r8_d128", "--format", "json")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    (result,) = data["results"]
    assert data["environment"]["gpu"] == "Told GPU"
    assert [t["verdict"] for t in result["timings"]] == [None, "slower"]
    assert "gated_pool:plain does not take the call" in result["cautions"][0]
    assert "no clocks, power or throttle reasons" in done.stderr
    text = invoke(*FIRST, "--case", "r8_d128").stdout
    assert "py:told_peer:slow / py:told_peer:pool" in text
    assert "1.100 [1.100, 1.100] slower" in text
    assert "no clocks, power or throttle reasons" in text


@pytest.mark.parametrize(("options", "invariant"), [((), True), (("--no-batch-invariant",), False)])
def test_an_op_is_chosen_for_by_the_batch_when_that_is_asked(
    invoke, monkeypatch, options, invariant
):
    asked = []

    def operator_of(session, choices, *, build, batch_invariant=True):
        asked.append((len({c.kernel.name for c in choices}), batch_invariant))

    monkeypatch.setattr("sparsekit.cli.contenders.operator_of", operator_of)
    references = ("gated_pool", "gated_pool:plain", "py:told_peer:pool")
    assert invoke(*references, "--case", "r8_d128", *options).exit_code == 0
    assert asked == [(2, invariant), (1, True)]


def test_conditions_decide_the_exit_code(invoke):
    cases = ("--case", "r8_d128")
    assert invoke(*FIRST, *cases, "--fail-if", "ratio>1.2").exit_code == 0
    done = invoke(*FIRST, *cases, "--fail-if", "ratio>1.02")
    assert done.exit_code == 1
    assert "ratio>1.02 holds for py:told_peer:slow on r8_d128: 1.1" in done.stderr


@pytest.mark.parametrize(
    ("references", "condition", "told"),
    [
        (FIRST[:1], "ratio>1.02", "nothing was timed beside the base"),
        (("py:told_peer:pool", "py:told_peer:instant"), "time_us>5",
         "cannot be checked for py:told_peer:instant on r8_d128: no time_us"),
        (("py:told_peer:instant", "py:told_peer:pool"), "ratio>1.02", "no ratio was measured"),
    ],
)  # fmt: skip
def test_a_condition_that_nobody_can_check_is_no_success(invoke, references, condition, told):
    done = invoke(*references, FIRST[2], "--case", "r8_d128", "--fail-if", condition)
    assert done.exit_code == 1, done.output
    assert told in done.stderr


@pytest.mark.parametrize("condition", ["ratio>1e999", "ratio>.", "ratio", "speed>1", "ratio==1"])
def test_conditions_that_say_nothing(invoke, condition):
    done = invoke(*FIRST, "--case", "r8_d128", "--fail-if", condition)
    assert isinstance(done.exception, UsageError)


def test_a_named_base_that_does_not_run_is_not_exchanged(invoke):
    done = invoke(*FIRST[:2], "--against", FIRST[2], "--case", "r8_d128", "--format", "json",
                  "--fail-if", "ratio>1.02")  # fmt: skip
    assert done.exit_code == 1
    (result,) = json.loads(done.stdout)["results"]
    assert result["base"] is None
    assert [t["ratio"] for t in result["timings"]] == [None, None]
    assert [t["verdict"] for t in result["timings"]] == [None, None]
    assert "no ratios: gated_pool:plain, which they are to, did not run" in result["cautions"]
    assert "the case has no base" in done.stderr


def test_a_base_below_the_resolution(invoke):
    references = ("py:told_peer:instant", *FIRST[::2])
    done = invoke(*references, "--case", "r8_d128", "--format", "json")
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert [t["below_resolution"] for t in result["timings"]] == [True, False]
    assert result["control"] is None
    assert result["timings"][1]["ratio"] is None


def test_dims_are_changed(invoke):
    done = invoke(*FIRST, "--case", "r8_d*", "--set", "R=16", "--format", "json")
    assert done.exit_code == 0, done.output
    cases = [r["case"] for r in json.loads(done.stdout)["results"]]
    assert cases
    assert all("[R=16]" in case for case in cases)
    done = invoke(*FIRST, "--case", "r8_d128", "--set", "nonsense=16")
    assert isinstance(done.exception, UsageError)


@pytest.mark.parametrize(
    "options",
    [
        ("--protocol", "seed2", "--l2", "cold"), ("--margin", "nan", "--case", "r8_d128"),
        ("--inputs", "mine.safetensors", "--case", "r8_d128"), ("--case", "no_such"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_told_before_anything_runs(invoke, options):
    done = invoke(*FIRST, *options)
    assert isinstance(done.exception, UsageError | SystemExit)
    assert not done.stdout


@pytest.mark.parametrize("reference", ["py:..x:y", "py:raising_peer:pool", "py:told_peer:none"])
def test_callables_that_cannot_be_had(invoke, tmp_path, reference):
    (tmp_path / "raising_peer.py").write_text("raise SystemExit(3)")
    done = invoke(reference, "triton/gated_pool:plain", "--case", "r8_d128")
    assert isinstance(done.exception, UsageError)
    assert "must be installed for this Python" in str(done.exception)


def test_a_callable_that_exits_is_a_failed_candidate(invoke):
    done = invoke(*FIRST, "py:told_peer:exits", "--case", "r8_d128", "--format", "json")
    assert done.exit_code == 6
    problems = [t["problem"] for t in json.loads(done.stdout)["results"][0]["timings"]]
    assert "py:told_peer:exits raised SystemExit: 3" in problems[-1]


def test_a_failure_is_exit_6_and_the_others_are_told(invoke):
    done = invoke(*FIRST, "py:told_peer:broken", "--case", "r8_d128", "--format", "json")
    assert done.exit_code == 6
    timings = json.loads(done.stdout)["results"][0]["timings"]
    assert [bool(t["time_s"]) for t in timings] == [True, True, False]


def test_an_interrupted_run_has_written_the_cases_before(invoke, tmp_path):
    out = tmp_path / "out.json"
    done = invoke("py:told_peer:interrupted", "triton/gated_pool", "--case", "r8_d*",
                  "--format", "json", "-o", str(out))  # fmt: skip
    assert done.exit_code != 0
    written = json.loads(out.read_text())
    assert [r["case"] for r in written["results"]] == ["r8_d128"]
    assert written["partial"]


def test_an_interrupted_run_without_a_file_prints_what_it_has(invoke):
    done = invoke("py:told_peer:interrupted", "triton/gated_pool", "--case", "r8_d*",
                  "--format", "json")  # fmt: skip
    assert done.exit_code != 0
    printed = json.loads(done.stdout)
    assert [r["case"] for r in printed["results"]] == ["r8_d128"]
    assert printed["partial"]
    whole = json.loads(invoke(*FIRST, "--case", "r8_d128", "--format", "json").stdout)
    assert "partial" not in whole


def test_nothing_timed_is_no_success(invoke):
    done = invoke("triton/gated_pool:plain", "--case", "r8_d128")
    assert done.exit_code == 2
    assert "nothing was timed" in done.stderr


def test_the_users_own_tensors(invoke, tmp_path):
    from safetensors.torch import save_file

    kv = torch.randn(3, 5, 64)
    save_file({"kv": kv, "score": torch.randn(3, 5, 64)}, tmp_path / "mine.safetensors")
    done = invoke(*FIRST, "--inputs", str(tmp_path / "mine.safetensors"), "--format", "json")
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert result["case"].startswith("mine.safetensors:")
    assert result["flop"] is None
    assert result["timings"][0]["time_s"]
    assert result["timings"][0]["tflops"] is None
