"""`verify` from the command on, with kernels that fail on the CPU in the place of a GPU's."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass

import pytest
import torch
from conftest import ROOT

from sparsekit.__main__ import run
from sparsekit.check.subject import Ran, repeated
from sparsekit.cli import verify_command
from sparsekit.cli.verification import _Campaign
from sparsekit.errors import (
    CompileError,
    ContextLostError,
    GpuError,
    MissingArtifactError,
    SpecError,
    StoreError,
    ToolchainError,
)
from sparsekit.model.call import Device
from sparsekit.model.results import VerifyResult
from sparsekit.runtime.probe import Probe

FIXTURE = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"


@dataclass(frozen=True)
class Fake:
    """scale on the CPU; error: what one that is named `failing` raises."""

    kernel: str
    variant: str
    error: Exception
    arch: str | None = None

    def turns(self, repeat):
        return repeated(self, repeat)

    def compute(self, inputs, outputs):
        if self.kernel == "failing":
            raise self.error
        outputs["out"].copy_(inputs["x"] * inputs["alpha"])
        return Ran("sm_00", "none-0")


@pytest.fixture
def verify(tmp_path, monkeypatch, capsys):
    """Run `verify --format json` over the given kernels; gives code, results and messages."""
    monkeypatch.setenv("SPARSEKIT_CACHE_DIR", str(tmp_path / "store"))
    device = Device((9, 0), 132, 232448)
    monkeypatch.setattr(verify_command, "probe_devices", lambda: Probe((device,)))
    monkeypatch.setattr(verify_command, "gpu_of", lambda text, probe: (torch.device("cpu"), device))
    monkeypatch.setattr(verify_command, "environment", lambda gpu: {"gpu": "none"})

    def go(error: Exception, *arguments: str):
        def subject(kernel, variant, operator):
            return Fake(kernel, variant, error)

        monkeypatch.setattr("sparsekit.check.subject.OperatorSubject", subject)
        monkeypatch.setattr(sys, "argv", ["sparsekit", "verify", *arguments, "--format", "json"])
        code = run()
        told = capsys.readouterr()
        return code, json.loads(told.out)["results"] if told.out else [], told.err

    return go


@pytest.fixture
def kernels(tmp_path):
    """Two kernels of an op; the one that fails comes first."""
    for name in ("failing", "sound"):
        shutil.copytree(FIXTURE, tmp_path / "kernels" / name)
    return [str(tmp_path / "kernels" / name) + ":plain" for name in ("failing", "sound")]


ERRORS = [
    CompileError("it does not compile"),
    SpecError("spec.py: launches() gives none"),
    ToolchainError("no triton found"),
    StoreError("the store is full"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("options", [[], ["--bitwise"]], ids=["float64", "bitwise"])
def test_a_kernel_that_cannot_be_had_fails_and_the_others_go_on(verify, kernels, error, options):
    code, results, _ = verify(error, *kernels, *options)
    assert code == 1
    failed = [r for r in results if r["kernel"] == "failing"]
    assert failed
    assert all(r["ok"] is False and r["reason"] == str(error) for r in failed)
    assert {r["ok"] for r in results if r["kernel"] == "sound"} == {True}


def test_what_ends_the_campaign_leaves_the_results_before_it(verify, kernels, tmp_path):
    failing, sound = kernels
    rename_op(tmp_path / "kernels" / "failing")
    code, results, told = verify(MissingArtifactError("scale is not built"), sound, failing)
    assert code == 4
    assert {r["kernel"]: r["ok"] for r in results} == {"sound": True}
    assert "scale is not built" in told


def test_a_fault_leaves_the_results_before_it(verify, kernels, monkeypatch):
    lost, turns = ContextLostError("a kernel faulted"), iter([None, None])

    def synchronize(device):
        if next(turns, lost):
            raise lost

    monkeypatch.setattr("sparsekit.check.campaign.synchronize", synchronize)
    code, results, told = verify(GpuError("x"), kernels[1], "--tag", "smoke", "--tag", "corner")
    assert code == 6
    assert results
    assert "a kernel faulted" in told


def rename_op(folder):
    spec = folder / "spec.py"
    spec.write_text(spec.read_text().replace('op="scale"', 'op="other"'))


def test_a_reference_that_does_not_load_fails_its_kernels_only(verify, tmp_path, kernels):
    failing, sound = kernels
    rename_op(tmp_path / "kernels" / "failing")
    (tmp_path / "kernels" / "failing" / "reference.py").write_text("import nothing_such\n")
    code, results, _ = verify(GpuError("x"), failing, sound)
    assert code == 1
    assert {r["kernel"]: r["ok"] for r in results} == {"failing": False, "sound": True}
    assert "reference.py:1 does not load" in results[0]["reason"]


FAULTS = {
    "make_inputs": ("    raise KeyError('rows')", ":7: {} raised KeyError: 'rows'"),
    "reference": ("    raise SystemExit", ":13: {} raised SystemExit"),
    "tolerance": ("    return inputs['y']", ":17: {} raised KeyError: 'y'"),
    "make_inputs ": ("    return 3", ": {} must be a dictionary, found 3"),
    "reference ": ("    return {'out_': 0}", ": {}: out must be a tensor [7, 64], found None"),
    "tolerance ": ("    return {'out': inputs['x'][1:]}", "a tensor [7, 64], found [6, 64]"),
}  # fmt: skip


def put_fault(folder, fault) -> str:
    """Plant the fault; gives what is to be told."""
    name, (line, told) = fault.strip(), FAULTS[fault]
    file = folder / "reference.py"
    file.write_text(re.sub(rf"(def {name}\(.*\n)", rf"\1{line}\n", file.read_text()))
    op = re.search(r'op="(\w+)"', (folder / "spec.py").read_text())[1]
    return f"{file}{told}".format(f"{name}() of op {op}, case 'small'") if told[0] == ":" else told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reference_that_raises_fails_its_kernels_only(verify, tmp_path, kernels, fault):
    folder = shutil.copytree(FIXTURE, tmp_path / "kernels" / "mine")
    rename_op(folder)
    wanted = put_fault(folder, fault)
    code, results, told = verify(GpuError("x"), f"{folder}:plain", kernels[1], "--case", "small")
    assert code == 1
    assert {r["kernel"]: r["ok"] for r in results} == {"mine": False, "sound": True}
    assert wanted in results[0]["reason"]
    assert "Traceback" not in told


def test_a_case_that_cannot_be_made_ends_run_with_exit_3(run_cli, tmp_path, kernels):
    wanted = put_fault(tmp_path / "kernels" / "sound", "make_inputs")
    done = run_cli("run", kernels[1], "--case", "small", "--device", "cpu", "--arch", "8.0")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == f"sparsekit: {wanted}"
    assert "Traceback" not in done.stderr


RIGHT = VerifyResult("op", "k", "v", None, None, "cpu", "c", "float64", runs=1, ok=True)


def test_a_folder_that_is_broken_is_told_and_counts(verify, tmp_path, kernels, monkeypatch):
    (tmp_path / "kernels" / "failing" / "spec.py").write_text("KERNEL = 3\n")
    monkeypatch.setattr(_Campaign, "_against_float64", lambda self: iter([RIGHT]))
    code, _, told = verify(GpuError("x"), "--kernels", str(tmp_path / "kernels"))
    assert code == 3
    assert "must bind KERNEL" in told
