"""`profile` from its options to its document, with a device and an ncu that are told things."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from fake_timer import FakeTimer
from test_profile import FakeNcu

from sparsekit.cli.profile_command import command
from sparsekit.errors import NoKernelError
from sparsekit.measure.ncu import Ncu
from sparsekit.model.bench import Ceilings
from sparsekit.model.call import Device

PEER = """
from sparsekit.ops.gated_pool.reference import reference

def pool(kv, score, out_dtype):
    return reference({"kv": kv, "score": score})["out"].to(out_dtype)
"""


def refuse(self, inputs, outputs):
    raise NoKernelError("no kernel takes this call\n  there is no GPU")


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    (tmp_path / "profiled_peer.py").write_text(PEER)
    monkeypatch.syspath_prepend(str(tmp_path))
    gpu = Device((9, 0), 132, 232448, 0, "Told GPU", "0000:00:00.0")
    ncu = FakeNcu()
    monkeypatch.setattr(
        "sparsekit.cli.profile_command.gpu_of", lambda text, or_cpu: (torch.device("cpu"), gpu)
    )
    monkeypatch.setattr("sparsekit.measure.timer.CudaTimer", lambda device: FakeTimer())
    monkeypatch.setattr(
        "sparsekit.measure.ceilings.measure_ceilings", lambda timer, device: Ceilings(700.0, 4000.0)
    )
    monkeypatch.setattr("sparsekit.measure.ncu.Ncu", lambda path: Ncu(path, ncu))

    monkeypatch.setattr("sparsekit.measure.contender.KernelContender.compute", refuse)

    def run(*arguments: str, with_ncu: bool):
        found = tmp_path / "ncu" if with_ncu else None
        monkeypatch.setattr("sparsekit.cli.profile_command.find_ncu", lambda settings: found)
        return CliRunner().invoke(
            command,
            ["gated_pool", "--against", "py:profiled_peer:pool", "--case", "r8_d128", "--format",
             "json", "--cache-dir", str(tmp_path / "store"), *arguments],
        )  # fmt: skip

    run.ncu = ncu
    return run


def test_without_ncu_it_is_said_and_events_are_shown(invoke):
    done = invoke(with_ncu=False)
    assert done.exit_code == 0, done.output
    assert "ncu is not here" in done.stderr
    assert "gated_pool does not take the call" in done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["label"] == "py:profiled_peer:pool"
    assert result["counts"]["duration_s"]["source"] == "measured"


def test_ncu_runs_this_command_again_for_one_launch(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["sparsekit", "profile", "gated_pool", "--case", "r8_d128"])
    reports, figure = tmp_path / "reports", tmp_path / "roof.svg"
    done = invoke("--reports", str(reports), "--roofline", str(figure), with_ncu=True)
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert result["counts"]["dram_read_bytes"] == {"value": 1500.0, "source": "measured"}
    assert [f.name for f in reports.iterdir()] == ["py_profiled_peer_pool-r8_d128.ncu-rep"]
    program = invoke.ncu.commands[1][-8:]
    assert program[0:2] == ["-m", "sparsekit"]
    assert program[-2:] == ["--launch", "py:profiled_peer:pool"]
    assert figure.read_text().startswith("<svg")


def test_an_unknown_label_to_launch(invoke):
    done = invoke("--launch", "nothing", with_ncu=False)
    assert "there are py:profiled_peer:pool, gated_pool" in str(done.exception)
