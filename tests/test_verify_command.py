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
from sparsekit.settings import load
from sparsekit.toolchain.find import Toolchains

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
        monkeypatch.setattr(sys, "argv", ["sparsekit", "verify", "--format", "json", *arguments])
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


@pytest.fixture
def golden(tmp_path):
    return tmp_path / "golden.json"


def test_a_golden_file_checks_what_another_toolchain_makes(verify, kernels, golden):
    sound = kernels[1]
    own = Toolchains(load()).default("cuda").id
    code, made, told = verify(GpuError("x"), sound, "--golden", str(golden))
    assert code == 0
    assert f"the digests of {len(made)} of {len(made)} results" in told
    code, results, _ = verify(GpuError("x"), f"{sound}@{own}", "--golden", str(golden))
    assert code == 0
    assert [r["ok"] for r in results if r["against"] == "golden golden.json"] == [True] * len(made)


def test_a_golden_file_that_checked_nothing_is_no_success(verify, kernels, golden):
    """Of all, or of a kernel that was named."""
    failing, sound = kernels
    assert verify(GpuError("x"), sound, "--case", "padded", "--golden", str(golden))[0] == 0
    code, results, told = verify(GpuError("x"), sound, "--case", "small", "--golden", str(golden))
    assert code == 2
    assert [r["skipped"] for r in results] == [False, True]
    assert "nothing of sound was checked against the golden file; see the reasons" in told
    other = shutil.copytree(failing.removesuffix(":plain"), golden.parent / "kernels" / "third")
    given = (sound, f"{other}:plain", "--case", "padded", "--golden", str(golden))
    code, _, told = verify(GpuError("x"), *given)
    assert code == 2
    assert "nothing of third was checked" in told


def test_no_golden_file_is_made_where_nothing_is_right(verify, kernels, golden):
    code, _, told = verify(GpuError("x"), kernels[0], "--golden", str(golden))
    assert code == 1
    assert "golden.json was not made: no result is right" in told
    assert not golden.exists()


@pytest.mark.parametrize("text", ['{"kind": "golden", "schema": 1, "entries": []}', None])
def test_a_golden_file_of_no_use_is_refused_before_the_run(verify, kernels, golden, text):
    """Damaged, or in a folder that is not there."""
    file = golden if text else golden.parent / "none" / "golden.json"
    if text:
        golden.write_text(text)
    code, results, told = verify(AssertionError("it ran"), kernels[0], "--golden", str(file))
    assert (code, results) == (2, [])
    assert "does not read as a golden file" in told if text else f"cannot write {file}" in told


def test_a_golden_file_is_made_of_one_toolchain(verify, kernels, golden):
    own = Toolchains(load()).default("cuda").id
    given = (kernels[1], f"{kernels[1]}@{own}", "--golden", str(golden))
    code, results, told = verify(GpuError("x"), *given)
    assert (code, results) == (2, [])
    assert "several are named of sound:plain" in told


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C after the second case."""
    turns = iter([None])

    def synchronize(device):
        if next(turns, "last"):
            raise KeyboardInterrupt

    monkeypatch.setattr("sparsekit.check.campaign.synchronize", synchronize)


BOTH = ("--tag", "smoke", "--tag", "corner")


def test_an_interrupted_run_tells_what_was_done(verify, kernels, golden, interrupted):
    code, results, told = verify(GpuError("x"), kernels[1], *BOTH, "--golden", str(golden))
    assert code == 130
    assert [r["case"] for r in results] == ["small", "padded"]
    assert "golden.json was not made: the run was ended" in told
    assert "interrupted" in told
    assert not golden.exists()


def test_an_interrupted_run_is_marked_in_its_file(verify, kernels, tmp_path, interrupted):
    file = tmp_path / "out.json"
    code, _, _ = verify(GpuError("x"), kernels[1], *BOTH, "-o", str(file))
    assert code == 130
    assert json.loads(file.read_text())["partial"] is True


def test_a_whole_run_is_not_marked(verify, kernels, tmp_path):
    file = tmp_path / "out.json"
    assert verify(GpuError("x"), kernels[1], "-o", str(file))[0] == 0
    assert "partial" not in json.loads(file.read_text())


def test_a_run_that_was_interrupted_before_its_first_result_writes_nothing(
    verify, kernels, tmp_path
):
    file = tmp_path / "out.json"
    file.write_text("before")
    code, results, _ = verify(KeyboardInterrupt(), kernels[0], "-o", str(file))
    assert (code, results, file.read_text()) == (130, [], "before")


def other_op(folder):
    """The kernel as one of an op of its own, whose cases have other names."""
    rename_op(folder)
    file = folder / "op.py"
    file.write_text(re.sub(r'_case\("', '_case("other_', file.read_text()))


def test_an_op_without_the_case_is_left_out_and_told(verify, kernels, tmp_path):
    other_op(tmp_path / "kernels" / "failing")
    file = tmp_path / "out.json"
    code, _, _ = verify(AssertionError("it ran"), *kernels, "--case", "small", "-o", str(file))
    told = json.loads(file.read_text())
    assert code == 0
    assert {r["kernel"] for r in told["results"]} == {"sound"}
    assert told["left_out"] == ["other: it has no case small"]


def test_a_case_that_no_op_has_is_an_error_that_names_it(verify, kernels, tmp_path):
    other_op(tmp_path / "kernels" / "failing")
    given = (*kernels, "--case", "small", "--case", "nope")
    code, results, told = verify(AssertionError("it ran"), *given)
    assert (code, results) == (2, [])
    assert "no op has a case 'nope'" in told


def test_what_is_compared_computes_one_op(verify, kernels, tmp_path):
    other_op(tmp_path / "kernels" / "failing")
    given = (kernels[0], "--bitwise", "--against", kernels[1])
    code, results, told = verify(AssertionError("it ran"), *given)
    assert (code, results) == (2, [])
    assert "what is compared must compute one op, found other, scale; name kernels of scale" in told


def test_bitwise_says_what_it_left_out(verify, kernels, tmp_path):
    """In the result of each form."""
    file = tmp_path / "out.json"
    given = (kernels[1], "--bitwise", "--case", "padded", "-o", str(file))
    code, _, _ = verify(GpuError("x"), *given)
    told = json.loads(file.read_text())
    assert code == 0
    assert [r["against"] for r in told["results"]] == ["itself", "row 0 in batches of 1, 2, 3, 7"]
    assert told["left_out"] == [
        "scale: streams, which an emulated run does not have",
        "scale: the middle and the last row alone: emulating takes long; row 0 is alone",
    ]
    verify(GpuError("x"), *given, "--format", "markdown")
    assert "Left out" in file.read_text()


RIGHT = VerifyResult("op", "k", "v", None, None, "cpu", "c", "float64", runs=1, ok=True)


def test_a_folder_that_is_broken_is_told_and_counts(verify, tmp_path, kernels, monkeypatch):
    (tmp_path / "kernels" / "failing" / "spec.py").write_text("KERNEL = 3\n")
    monkeypatch.setattr(_Campaign, "_against_float64", lambda self, work: iter([RIGHT]))
    code, _, told = verify(GpuError("x"), "--kernels", str(tmp_path / "kernels"))
    assert code == 3
    assert "must bind KERNEL" in told
