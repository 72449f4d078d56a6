"""Timing on a GPU: the whole command, both methods, both states of L2, streams, two devices."""

from __future__ import annotations

import json

import pytest
import torch

import sparsekit
from sparsekit.check.beside import verify_streams
from sparsekit.check.reference import load_reference
from sparsekit.check.subject import OperatorSubject
from sparsekit.check.workload import make_workload
from sparsekit.errors import ArgumentError
from sparsekit.measure.bench import Setup, bench_workload
from sparsekit.measure.contender import KernelContender
from sparsekit.measure.protocol import PROTOCOLS
from sparsekit.measure.timer import CudaTimer, NotCapturable
from sparsekit.model.bench import Reading
from sparsekit.runtime.nvml import Watch

pytestmark = pytest.mark.gpu


def bench(run_cli, *arguments: str, timeout: float = 300):
    done = run_cli("bench", *arguments, "--format", "json", timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_bench_times_every_variant_of_a_case(run_cli, l2):
    data = bench(run_cli, "triton/gated_pool", "--case", "b8_r8_d512", "--l2", l2, "--rounds", "20")
    (result,) = data["results"]
    assert [t["label"] for t in result["timings"]] == ["gated_pool:plain", "gated_pool:unroll2"]
    assert result["mode"]["method"] == "graph"
    assert result["mode"]["l2"] == l2
    for timing in result["timings"]:
        assert 5e-7 < timing["time_s"] < 1e-4
        assert timing["problem"] is None
        assert len(timing["samples_s"]) == 20
    assert result["timings"][1]["same_bits"]
    assert 0.9 < result["control"] < 1.1
    assert 100 < data["ceilings"]["matmul_tflops"] < 5000


def test_cold_is_slower_than_warm(run_cli):
    times = {
        l2: bench(run_cli, "triton/gated_pool:plain", "--case", "b8_r128_d512", "--l2", l2,
                  "--rounds", "20")["results"][0]["timings"][0]["time_s"]
        for l2 in ("cold", "warm")
    }  # fmt: skip
    assert times["cold"] > times["warm"]


@pytest.mark.parametrize("protocol", ["seed1", "seed2"])
def test_the_seeds_protocols(run_cli, protocol):
    data = bench(run_cli, "triton/gated_pool", "--case", "b1_r8_d128", "--protocol", protocol)
    assert data["results"][0]["mode"]["protocol"] == protocol
    assert all(t["time_s"] for t in data["results"][0]["timings"])


def test_a_python_callable_and_a_condition(run_cli, tmp_path):
    (tmp_path / "peer.py").write_text(
        "import torch\n"
        "def pool(kv, score, out_dtype):\n"
        "    w = torch.softmax(score, 1)\n"
        "    return (w * kv).sum(1, keepdim=True).to(out_dtype)\n"
    )
    done = run_cli(
        "bench", "triton/gated_pool:unroll2", "--against", "py:peer:pool", "--case", "b8_r8_d512",
        "--fail-if", "time_us>0", "--format", "json", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["base"] == "py:peer:pool"
    assert result["timings"][1]["verdict"] == "faster"
    assert "time_us>0 holds" in done.stderr


def test_what_synchronises_cannot_be_captured():
    timer = CudaTimer(torch.device("cuda"))
    x = torch.ones(4, device="cuda")
    with pytest.raises(NotCapturable, match="it cannot be captured"):
        timer.recorded([lambda: x.sum().item()], "it")
    torch.cuda.synchronize()
    assert timer.elapsed_s(lambda: x.add_(1)) > 0


def test_the_watch_reads_this_gpu(probe):
    watch = Watch(probe.devices[0].pci_bus_id)
    assert watch.problem is None
    reading = watch.read()
    assert reading.sm_clock_mhz
    assert reading.power_w
    torch.ones(1, device="cuda")
    assert not [name for name in watch.others() if "python" in name]


def prepared(device: torch.device):
    operator = sparsekit.load("gated_pool")
    op = operator.op
    case = op.case("r8_d512")
    return operator, make_workload(op, load_reference(op), case, op.probes[0], device)


def test_streams():
    operator, workload = prepared(torch.device("cuda"))
    result = verify_streams(workload, OperatorSubject("gated_pool", "any", operator))
    assert result.ok, result.reason


def test_another_device_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("it needs two GPUs")
    device = torch.device("cuda", 1)
    torch.cuda.set_device(0)
    operator, workload = prepared(device)
    setup = Setup(CudaTimer(device), Reading, PROTOCOLS["sparsekit"])
    result = bench_workload(workload, [KernelContender("a", operator)], "", setup)
    assert result.status == "ok"
    assert result.timings[0].time_s
    assert torch.cuda.current_device() == 0
    mixed = dict(workload.inputs)
    mixed["score"] = mixed["score"].to("cuda:0")
    with pytest.raises(ArgumentError, match="one device"):
        operator(mixed["kv"], mixed["score"])


@pytest.mark.parametrize("command", ["run", "verify", "bench"])
def test_commands_on_the_second_device(run_cli, command):
    if torch.cuda.device_count() < 2:
        pytest.skip("it needs two GPUs")
    done = run_cli(command, "triton/gated_pool:unroll2", "--case", "r8_d512", "--device", "cuda:1",
                   "--format", "json", timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    if command == "verify":
        assert {r["device"] for r in told["results"]} == {"cuda:1"}


def test_profile_tells_something_with_and_without_counters(run_cli, tmp_path):
    done = run_cli("profile", "gated_pool:unroll2", "--against", "gated_pool:plain", "--case",
                   "b8_r128_d512", "--reports", str(tmp_path), "--roofline",
                   str(tmp_path / "roof.svg"), "--format", "json", timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [r["label"] for r in results] == ["gated_pool:plain", "gated_pool:unroll2"]
    for result in results:
        assert result["counts"]["duration_s"]["value"] > 0
        assert result["counts"]["registers"]["source"] == "static"
    assert (tmp_path / "roof.svg").is_file()
