"""`--device cpu`: the product's path through the emulator, and what it says of planted faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from process_tasks import doing

import sparsekit
from sparsekit.__main__ import run as run_command
from sparsekit.check.allotment import Allotment
from sparsekit.check.emulated import schedules_of
from sparsekit.check.emulated_campaign import CaseTask, EmulatedKernel, EmulationPlan, run_tasks
from sparsekit.check.processes import WorkerError, run_in_processes
from sparsekit.cli import verify_command
from sparsekit.emulator import CHECKS, STRICT_CHECKS, FaultError
from sparsekit.emulator import load as load_program
from sparsekit.errors import ArgumentError, UsageError
from sparsekit.model.call import Device
from sparsekit.ptx import PtxError
from sparsekit.runtime.probe import Probe
from sparsekit.settings import load as load_settings

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
SCALE, FAULTY = str(KERNELS / "scale_cu"), str(KERNELS / "scale_faulty")


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("emulated-store")


@pytest.fixture
def cli(store, monkeypatch, capsys):
    """(exit code, standard output, standard error) of a command, run in this process."""

    def run(*args: str, cache_dir: Path = store) -> tuple[int, str, str]:
        monkeypatch.setenv("SPARSEKIT_CACHE_DIR", str(cache_dir))
        monkeypatch.setattr(sys, "argv", ["sparsekit", *args])
        capsys.readouterr()
        code = run_command()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def verify(cli):
    """(exit code, JSON document, standard error) of `verify --device cpu`."""

    def run(*args: str, **options):
        code, out, err = cli("verify", *args, "--device", "cpu", "--format", "json", **options)
        return code, json.loads(out) if out else None, err

    return run


def test_a_sound_kernel_passes_under_every_schedule(verify):
    code, told, _ = verify(f"{FAULTY}:sound", "--arch", "8.0,12.0", "--seeds", "2")
    assert code == 0
    assert told["environment"]["emulated"] is True
    assert told["environment"]["gpu"] is None
    results = told["results"]
    assert {r["arch"] for r in results} == {"sm_80", "sm_120"}
    for result in results:
        assert result["ok"]
        assert result["schedules"] == ["lazy", "eager", "random(1)", "random(2)"]
        assert result["runs"] == result["launches"] == 4
        assert result["findings"] == []
    for entry in told["coverage"]:
        assert entry["executed"] + len(entry["uncovered"]) == entry["blocks"]
        assert 0 < entry["executed"] < entry["blocks"]  # one round of each loop


def test_cases_take_other_sizes(verify):
    code, told, _ = verify(f"{FAULTY}:sound", "--arch", "8.0", "--set", "rows=3")
    assert (code, {r["case"] for r in told["results"]}) == (0, {"small[rows=3]"})
    (coverage,) = told["results"][0]["coverage"]
    (whole,) = told["coverage"]
    assert coverage["executed"] == whole["executed"] > 0
    code, _, err = verify(f"{FAULTY}:sound", "--arch", "8.0", "--set", "row=3")
    assert code == 2
    assert "case 'small' has rows" in err


def test_a_race_is_reported_with_its_place(verify):
    code, told, _ = verify(f"{FAULTY}:race", "--arch", "sm_90", "--lineinfo", "--seeds", "1")
    assert code == 1
    (result,) = told["results"]
    assert result["ok"] is False
    (race, *_) = [f for f in result["findings"] if f["check"] == "race"]
    lines = Path(FAULTY, "kernel.cu").read_text().splitlines()
    file, line, _ = race["source"].rsplit(":", 2)
    assert file.endswith("scale_faulty/kernel.cu")
    assert "line[mirrored]" in lines[int(line) - 1] or "line[threadIdx.x]" in lines[int(line) - 1]
    assert race["entry"] == "scale"
    assert race["instruction"].split()[0] in ("ld.shared.f32", "st.shared.f32")
    assert race["ptx_line"] > 0
    assert {"lazy", "eager"} <= set(race["schedules"])
    assert result["arch"] == "sm_90"
    assert result["case"] == "small"


def test_a_bound_is_reported_by_the_tensor_that_is_left(verify):
    code, told, _ = verify(f"{FAULTY}:bounds", "--arch", "8.0")
    assert code == 1
    (result,) = told["results"]
    (finding,) = result["findings"]
    assert finding["check"] == "bounds"
    assert "past the end of x" in finding["message"]
    assert "x [1792 bytes" in finding["message"]
    assert finding["source"] == ""  # built without line info


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_people_read_the_same(cli, form):
    code, out, _ = cli(
        "verify", f"{FAULTY}:race", "--device", "cpu", "--arch", "8.0", "--format", form
    )
    assert code == 1
    for told in ("on the CPU, emulated", "FAILED scale_faulty:race sm_80", "case small", "race: ",
                 "PTX line ", "thread ", "schedule lazy", "Coverage: basic blocks"):  # fmt: skip
        assert told in out, told


def test_a_check_is_switched_off_by_name(verify):
    """A race that no schedule turns into a wrong result: warps of the block run in step."""
    code, told, _ = verify(f"{FAULTY}:race", "--arch", "8.0", "--without", "race,uninitialised")
    assert code == 0, told
    code, _, error = verify(f"{FAULTY}:race", "--arch", "8.0", "--without", "races")
    assert code == 2
    assert "unknown check 'races'" in error
    assert "uninitialised" in error


def test_a_result_that_depends_on_the_schedule_names_both(verify):
    code, told, _ = verify(
        f"{FAULTY}:race", "--arch", "8.0", "--without", "race,uninitialised", "--seeds", "6"
    )
    assert code == 1
    (result,) = told["results"]
    assert result["findings"] == []
    assert "differs from lazy: out: " in result["reason"]
    assert "random(" in result["reason"]


def test_further_data_sets_are_asked_for_values_under_one_schedule(verify):
    """--strict finds what Triton leaves to the hardware, in the first of them."""
    kernel, case = "triton/sparse_attn_paged_bf16:heads64", "few_columns_m2"
    _, told, _ = verify(kernel, "--arch", "sm_80", "--case", case, "--strict")
    first, further = told["results"]
    assert (first["case"], first["schedules"]) == (case, ["lazy", "eager"])
    assert {f["check"] for f in first["findings"]} == {"same-value-race"}
    assert (further["case"], further["schedules"]) == (f"{case}/zero_q", ["lazy"])
    assert (further["ok"], further["findings"]) == (True, [])


def test_misaligned_pools_are_right_by_the_slower_kernel_chosen_with_its_reason(cli, verify):
    case = ["--case", "misaligned_m1", "--arch", "sm_90"]
    asked = ["sparse_attn_paged", *case, "--device", "cpu", "--explain", "--format", "json"]
    code, out, error = cli("run", *asked)
    assert code == 0, error
    *passed_over, last = json.loads(out)["decisions"]
    assert last["taken"]
    slower = "sparse_attn_paged:plain"
    assert last["candidate"].startswith(f"{slower} [d512,has_cmp_counts0,has_lse1]")
    found = {d["candidate"].partition(":")[0]: d["reason"] for d in passed_over}
    off = "it assumes window_pool at a multiple of 16 bytes, found an address divisible by 2 only"
    assert found["sparse_attn_paged_decode_sm90"] == off
    assert found["sparse_attn_paged_bf16"] == off
    code, told, _ = verify(slower, *case)
    assert code == 0, told
    assert all(r["ok"] for r in told["results"])
    assert len(told["results"]) == 2  # random, and all-zero queries


def test_the_same_code_on_the_same_data_runs_once(verify):
    code, told, _ = verify(SCALE, "--arch", "8.0,12.0")
    assert code == 0
    launches = {(r["variant"], r["arch"]): (r["launches"], r["reused"]) for r in told["results"]}
    assert launches["plain", "sm_80"] == (2, 0)
    assert launches["twice", "sm_80"] == (2, 2)
    assert launches["plain", "sm_120"] == launches["twice", "sm_120"] == (2, 0)  # other constants


def test_without_an_arch_what_is_built_runs(verify, cli, tmp_path):
    own = tmp_path / "own"
    assert cli("build", SCALE, "--arch", "8.0;9.0a", cache_dir=own)[0] == 0
    code, told, _ = verify(SCALE, cache_dir=own)
    assert code == 0
    assert {(r["variant"], r["arch"]) for r in told["results"]} == {
        (v, arch) for v in ("plain", "twice") for arch in ("sm_80", "sm_90a")
    }
    code, told, error = verify(FAULTY, cache_dir=own)
    assert code == 6
    assert told is None
    assert "sparsekit build --arch all" in error


@pytest.mark.parametrize("archs", ["8.0", "8.0,9.0,12.0"])
def test_without_a_gpu_verify_emulates_all_that_is_built(cli, monkeypatch, tmp_path, archs):
    own = tmp_path / "own"
    assert cli("build", SCALE, "--arch", archs, cache_dir=own)[0] == 0
    monkeypatch.setattr(verify_command, "probe_devices", lambda: Probe((), None, "no driver"))
    code, out, _ = cli("verify", SCALE, "--format", "json", cache_dir=own)
    told = json.loads(out)
    assert code == 0
    assert told["environment"]["emulated"] is True
    assert all(r["device"] == "cpu" and r["ok"] for r in told["results"])
    assert {(r["variant"], r["arch"]) for r in told["results"]} == {
        (v, f"sm_{arch.replace('.', '')}") for v in ("plain", "twice") for arch in archs.split(",")
    }


def test_with_a_gpu_verify_takes_it(cli, monkeypatch):
    device = Device((9, 0), 132, 232448)
    monkeypatch.setattr(verify_command, "probe_devices", lambda: Probe((device,), "13.0"))
    code, _, error = cli("verify", SCALE, "--arch", "8.0")
    assert code == 2
    assert "go with --device cpu" in error


def test_a_named_target_is_that_target(verify):
    code, told, _ = verify(f"{SCALE}:plain", "--arch", "sm_90a")
    assert code == 0
    assert [r["arch"] for r in told["results"]] == ["sm_90a"]
    code, _, error = verify("gated_pool:plain", "--arch", "sm_100f")
    assert code == 4
    assert "has no target sm_100f" in error


def test_options_of_the_emulator_need_it(cli, verify):
    code, _, error = verify(SCALE, "--arch", "8.0", "--repeat", "2")
    assert code == 2
    assert "--repeat is for a GPU" in error
    for option in (["--arch", "8.0"], ["--strict"], ["--seeds", "1"], ["--without", "race"]):
        code, _, error = cli("verify", SCALE, "--device", "cuda", *option)
        assert code == 2
        assert "go with --device cpu" in error
    assert cli("run", SCALE, "--case", "small", "--strict")[0] == 2


def test_bitwise_and_own_inputs(verify, tmp_path):
    from safetensors.torch import save_file

    code, told, _ = verify(SCALE, "--bitwise", "--arch", "8.0,9.0", "--case", "padded")
    assert code == 0
    rows = "row 0 in batches of 1, 2, 3, 7"
    assert {(r["variant"], r["against"], r["arch"]) for r in told["results"]} == {
        (v, against, arch)
        for arch in ("sm_80", "sm_90")
        for v, against in (
            ("plain", "itself"),
            ("plain", rows),
            ("twice", "scale_cu:plain"),
            ("twice", "itself"),
            ("twice", rows),
        )
    }
    file = tmp_path / "mine.safetensors"
    save_file({"x": torch.arange(12.0).view(3, 4)}, file)
    code, told, _ = verify(f"{SCALE}:plain", "--inputs", str(file), "--arch", "8.0")
    assert code == 0
    assert told["inputs_sha256"]
    assert told["results"][0]["ok"]


def test_run(cli):
    code, out, error = cli(
        "run", f"{SCALE}:plain", "--case", "small", "--device", "cpu", "--arch", "sm_90",
        "--format", "json",
    )  # fmt: skip
    assert code == 0, error
    told = json.loads(out)
    assert told["environment"]["emulated"] is True
    assert told["time_s"] is None
    assert told["kernel"].endswith("sm_90")
    code, _, error = cli("run", f"{FAULTY}:race", "--case", "small", "--device", "cpu")
    assert code == 1
    assert "race: warp" in error


@pytest.fixture
def by_batch(tmp_path) -> Path:
    """A folder of two kernels: that which goes first, and one that prefers seven rows and more."""
    shutil.copytree(SCALE, tmp_path / "kernels" / "scale_cu")
    many = tmp_path / "kernels" / "scale_many"
    shutil.copytree(SCALE, many, ignore=shutil.ignore_patterns("op.py", "reference.py"))
    text = (many / "spec.py").read_text()
    assert text.count("    launches=") == 1
    prefer = 'prefer=lambda call: "rows are many" if call.dims["rows"] >= 7 else None'
    (many / "spec.py").write_text(text.replace("    launches=", f"    {prefer},\n    launches="))
    return tmp_path / "kernels"


def test_run_lets_the_choice_look_at_the_batch_when_it_is_told_to(cli, by_batch):
    def run(*options: str) -> tuple[str, list[str]]:
        code, out, error = cli(
            "run", "scale", "--kernels", str(by_batch), "--case", "small", "--device", "cpu",
            "--arch", "9.0", "--explain", "--format", "json", *options,
        )  # fmt: skip
        assert code == 0, error
        told = json.loads(out)
        return told["kernel"].partition(":")[0], [d["reason"] for d in told["decisions"]]

    reason = "fits; rows are many, and the choice may look at the batch"
    assert run() == ("scale_cu", ["fits"])
    assert run("--no-batch-invariant") == ("scale_many", [reason])
    assert run("--no-batch-invariant", "--set", "rows=6") == ("scale_cu", ["fits"])


# ---- from Python


def test_load_lets_the_choice_look_at_the_batch_when_it_is_told_to(store, by_batch):
    many, few = torch.ones(7, 8), torch.ones(6, 8)
    for invariant, x, kernel in (
        (True, many, "scale_cu"), (False, many, "scale_many"), (False, few, "scale_cu"),
    ):  # fmt: skip
        scale = load("scale", store, kernels=[by_batch], arch="9.0", batch_invariant=invariant)
        assert torch.equal(scale(x), 2 * x)
        assert scale.prepared(scale.bind(x)).candidate.kernel.name == kernel


def load(reference: str, store: Path, **options):
    return sparsekit.load(reference, cache_dir=store, device="cpu", **options)


def test_a_loaded_operator(store):
    scale = load(f"{SCALE}:plain", store)
    x = torch.randn(5, 40)[:, 2:35]
    assert torch.equal(scale(x, 3.0), x * 3.0)
    out = torch.full((5, 33), 7.0)
    assert scale(x, alpha=-1.0, out=out) is out
    assert torch.equal(out, -x)
    assert scale(torch.empty(0, 8)).shape == (0, 8)


def test_several_threads_may_call(store):
    scale = load(f"{SCALE}:plain", store)
    scale.prepare(torch.zeros(5, 64))
    tensors = [torch.randn(5, 64) for _ in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for x, out in zip(tensors, pool.map(scale, tensors), strict=True):
            assert torch.equal(out, x * 2.0)


def test_arguments_are_checked_as_on_a_gpu(store):
    scale = load(SCALE, store, arch="sm_120")
    with pytest.raises(TypeError, match="x must be fp32, found fp64"):
        scale(torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="stride 1"):
        scale(torch.zeros(4, 4).t())
    on_cuda = sparsekit.load(SCALE, cache_dir=store)
    with pytest.raises(ArgumentError, match=r"must be on a CUDA device.*device=\"cpu\""):
        on_cuda(torch.zeros(2, 2))


def test_alignment_is_that_of_the_place_in_the_storage(store):
    """The promise of out at a multiple of 16 bytes is checked, wherever the host has it."""
    scale = load(f"{SCALE}:plain", store)
    memory = torch.zeros(4 * 8 + 1)
    with pytest.raises(ArgumentError, match="multiple of 16"):
        scale(torch.zeros(4, 8), out=memory[1:].view(4, 8))


def test_a_fault_raises_and_says_where(store):
    with pytest.raises(FaultError, match="race: warp") as caught:
        load(f"{FAULTY}:race", store, lineinfo=True)(torch.ones(2, 64))
    fault = caught.value.faults[0]
    assert fault.entry == "scale"
    assert "kernel.cu" in fault.source
    assert torch.equal(
        load(f"{FAULTY}:race", store, without=["race"])(torch.ones(2, 64)), torch.full((2, 64), 2.0)
    )


def test_outputs_come_back_without_any_check(store):
    x = torch.arange(128, dtype=torch.float32).view(2, 64)
    assert torch.equal(load(SCALE, store, without=CHECKS)(x), x * 2.0)
    out = torch.full((2, 64), 99.0)
    assert load(SCALE, store, strict=True, without={**CHECKS, **STRICT_CHECKS})(x, out=out) is out
    assert torch.equal(out, x * 2.0)


def test_inputs_are_read_only(store, tmp_path):
    kernel = tmp_path / "writes_input"
    kernel.mkdir()
    for name in ("spec.py", "op.py", "reference.py"):
        text = Path(FAULTY, name).read_text()
        (kernel / name).write_text(text)
    source = Path(FAULTY, "kernel.cu").read_text()
    (kernel / "kernel.cu").write_text(
        source.replace("const float* x", "float* x").replace("out[(long", "x[(long")
    )
    with pytest.raises(FaultError, match=r"writes to read-only memory, .* of x"):
        load(f"{kernel}:sound", store)(torch.ones(2, 64))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "tpu"}, "cuda or cpu"),
        ({"device": "cpu", "arch": "all"}, "one arch"),
        ({"device": "cpu", "without": ["nothing"]}, "unknown check"),
        ({"device": "cuda", "arch": "8.0"}, "arch goes with"),
    ],
)
def test_what_load_refuses(store, options, told):
    with pytest.raises(UsageError, match=told):
        sparsekit.load(SCALE, cache_dir=store, **options)


# ---- what is too large


@pytest.fixture
def with_a_huge_case(tmp_path) -> str:
    """`scale` with one more case, of 4 GiB in and out, whose data nobody must make."""
    folder = tmp_path / "scale_cu"
    shutil.copytree(SCALE, folder)
    op, reference = folder / "op.py", folder / "reference.py"
    small = '_case("small", ("smoke", "sanitize"), 7, 64),'
    huge = '_case("huge", ("smoke",), 1 << 20, 1 << 10),'
    op.write_text(op.read_text().replace(small, small + huge))
    head = "def make_inputs(case, probe):\n"
    refuse = '    assert case.name != "huge", "its data was made"\n'
    assert head in reference.read_text()
    reference.write_text(reference.read_text().replace(head, head + refuse))
    return str(folder)


@pytest.mark.parametrize("options", [["-j1"], ["-j2"], ["--bitwise"]], ids=str)
def test_a_case_too_large_is_skipped_before_its_data_is_made(verify, with_a_huge_case, options):
    reference = f"{with_a_huge_case}:plain"
    code, told, _ = verify(reference, "--arch", "8.0,9.0", "--tag", "smoke", *options)
    assert code == 0
    ran = {(r["case"], r["arch"], r["skipped"], r["ok"]) for r in told["results"]}
    skipped = {r["reason"] for r in told["results"] if r["skipped"]}
    assert ("small", "sm_80", False, True) in ran
    found = {(arch, skip, ok) for case, arch, skip, ok in ran if case == "huge"}
    assert found == {("sm_80", True, None), ("sm_90", True, None)}
    assert skipped == {"the call's tensors hold 8589934592 bytes; the emulator takes 2147483648"}


def test_nothing_but_cases_too_large_is_no_success(cli, verify, with_a_huge_case):
    reference = f"{with_a_huge_case}:plain"
    code, told, error = verify(reference, "--arch", "8.0", "--case", "huge")
    assert code == 2
    assert [r["skipped"] for r in told["results"]] == [True]
    assert "nothing of scale_cu ran; see the reasons" in error
    code, out, _ = cli("verify", reference, "--device", "cpu", "--arch", "8.0", "--case", "huge")
    assert "0 ok, 0 failed, 1 skipped" in out
    assert "the emulator takes" in out
    code, _, error = cli("run", reference, "--device", "cpu", "--arch", "8.0", "--case", "huge")
    assert code == 2
    assert "the emulator takes" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("limit", ["bytes", "memory"])
def test_a_call_that_turns_out_too_large_is_skipped(verify, monkeypatch, tmp_path, limit):
    """The user's tensors, or scratch, or what the machine has: known only when it is run."""
    from safetensors.torch import save_file

    def refuse(*arguments):
        raise MemoryError

    if limit == "bytes":
        monkeypatch.setattr("sparsekit.emulator.host_memory._MOST_BYTES", 1000)
    else:
        monkeypatch.setattr("sparsekit.operators.emulated_driver.HostMemory", refuse)
    file = tmp_path / "mine.safetensors"
    save_file({"x": torch.zeros(16, 16)}, file)
    code, told, _ = verify(f"{SCALE}:plain", "--inputs", str(file), "--arch", "8.0")
    (result,) = told["results"]
    assert code == 2
    assert result["skipped"]
    assert result["ok"] is None
    wanted = {"bytes": "hold 2048 bytes; the emulator takes 1000", "memory": "not enough memory"}
    assert wanted[limit] in result["reason"]


# ---- processes


def plan(store: Path) -> EmulationPlan:
    return EmulationPlan(
        load_settings(cache_dir=store), True, False, False, frozenset(CHECKS), schedules_of(0)
    )


def task(variant: str) -> CaseTask:
    return CaseTask((EmulatedKernel(f"{FAULTY}:{variant}", variant, "sm_80"),), "small", "random",
                    10**10)  # fmt: skip


def test_processes_give_what_this_one_gives(store):
    tasks = [task("sound"), task("race"), task("sound")]
    alone = list(run_tasks(plan(store), tasks, 1, print))
    together = list(run_tasks(plan(store), tasks, 2, print))
    assert [r.ok for r in alone] == [True, False, True]
    # What was known depends on which process took which task.
    told = [sorted(repr(replace(r, reused=0)) for r in results) for results in (alone, together)]
    assert told[0] == told[1]


def test_processes():
    assert sorted(run_in_processes(doing, ("echo",), [3, 1, 2], 2)) == [(1, 1), (2, 2), (3, 3)]
    assert list(run_in_processes(doing, ("echo",), [], 2)) == []
    with pytest.raises(WorkerError, match="task-7 died"):
        list(run_in_processes(doing, ("die",), ["task-7"], 1))
    with pytest.raises(WorkerError, match="ZeroDivisionError: by zero"):
        list(run_in_processes(doing, ("fail",), [1], 1))
    with pytest.raises(UsageError, match="not this one"):
        list(run_in_processes(doing, ("refuse",), [1], 1))


def test_workers_keep_to_the_kinds_that_they_have_begun():
    left = Allotment(["a1", "b1", "a2", "c1", "b2", "a3"], lambda task: task[0])
    assert [left.next("one"), left.next("two")] == [0, 1]  # a, b
    assert [left.next("one"), left.next("two")] == [2, 4]
    assert left.next("two") == 3  # c, which nobody has begun
    assert left.next("two") == 5  # helps with a
    assert left.next("one") is None


def test_programs_are_shared_by_texts_that_differ_in_their_header_only():
    text = ".version 9.0\n.target {}\n.address_size 64\n.visible .entry e() {{ ret; }}\n"
    found = load_program(text.format("sm_80"))
    assert load_program(text.format("sm_86")) is found
    assert load_program(text.format("sm_90a").replace("9.0", "8.7", 1)) is found
    assert load_program(text.format("sm_80").replace("64", "32")) is not found
    with pytest.raises(PtxError):
        load_program(text.format("sm_80").replace(".target sm_80", ""))


def test_processes_have_a_thread_of_numpy_each(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # the user's own
    names = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"]
    found = dict(run_in_processes(doing, ("threads",), names, 2))
    assert found == {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "3"}
    assert "OPENBLAS_NUM_THREADS" not in os.environ


_PARENT = """
import os, sys, time
sys.path.insert(0, {tests!r})
from process_tasks import sleepers
from sparsekit.check.processes import run_in_processes
if __name__ == "__main__":
    list(run_in_processes(sleepers, ({folder!r},), [1, 2], 2))
"""


def test_workers_die_with_their_parent(tmp_path):
    folder = tmp_path / "pids"
    folder.mkdir()
    script = tmp_path / "parent.py"
    script.write_text(_PARENT.format(tests=str(Path(__file__).parent), folder=str(folder)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    parent = subprocess.Popen([sys.executable, str(script)], env=env)
    try:
        _until(lambda: len(list(folder.iterdir())) == 2)
        idle_or_busy = [int(p.name) for p in folder.iterdir()]
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not any(map(_is_alive, idle_or_busy)))


def _until(condition, limit_s: float = 120.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
