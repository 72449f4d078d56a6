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
from sparsekit.errors import NoKernelError
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
    assert "ratio>1.02 holds for py:told_peer:slow" in done.stderr


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
    assert [r["case"] for r in json.loads(out.read_text())["results"]] == ["r8_d128"]


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
