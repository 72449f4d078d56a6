"""The command line: forms, files, exit codes, and one clear message for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA = str(KERNELS / "scale_cu") + ":plain"
COMMANDS = (
    "build",
    "list",
    "run",
    "verify",
    "bench",
    "profile",
    "report",
    "bundle export",
    "bundle import",
    "inspect-sass",
    "doctor",
    "completion",
    "cache prune",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(run_cli, command):
    done = run_cli(*command.split(), "--help")
    assert done.returncode == 0
    assert "Usage: sparsekit " + command in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    "command",
    [
        "build",
        "list",
        "run",
        "verify",
        "bench",
        "profile",
        "report",
        "bundle",
        "inspect-sass",
        "doctor",
        "cache",
    ],
)
def test_help_has_examples(run_cli, command):
    assert f"\n  sparsekit {command}" in run_cli(command, "--help").stdout


WRONG = {
    "no such command": (["bulid"], 2, "No such command 'bulid'"),
    "no such option": (["build", "--archs", "all"], 2, "--archs"),
    "unknown reference": (["build", "nothing_such"], 2, "nothing is called 'nothing_such'"),
    "unknown arch": (["build", CUDA, "--arch", "sm_999"], 2, "unknown arch 'sm_999'"),
    "suffix that is not": (["build", CUDA, "--arch", "8.0a"], 2, "unknown arch '8.0a'"),
    "no jobs": (["build", CUDA, "-j", "0"], 2, "-j"),
    "bad reference": (["build", "a b"], 2, "is no reference"),
    "folder without kernels": (["list", "--kernels", "/nonexistent"], 2, "expected a folder"),
    "path without a spec": (["build", str(KERNELS)], 2, "spec.py"),
    "prune without a limit": (["cache", "prune"], 2, "--older-than"),
    "age that is none": (["cache", "prune", "--older-than", "soon"], 2, "expected an age"),
    "size that is none": (["cache", "prune", "--max-size", "-3"], 2, "expected a size"),
    "case and inputs missing": (["run", "gated_pool"], 2, "give --case NAME or --inputs FILE"),
    "set without a value": (["run", CUDA, "--case", "small", "--set", "B"], 2, "NAME=VALUE"),
    "against without bitwise": (["verify", "gated_pool", "--against", "x"], 2, "--bitwise"),
    "inputs and bits": (["verify", "gated_pool", "--inputs", "x", "--bitwise"], 2, "float64"),
    "inputs and cases": (["verify", "gated_pool", "--inputs", "x", "--case", "*"], 2, "float64"),
    "set without inputs": (["verify", "gated_pool", "--set", "out_dtype=fp32"], 2, "--inputs"),
    "device that is none": (["verify", "gated_pool", "--device", "tpu"], 2, "cuda or cuda:N"),
    "several ops to run": (["run", "*", "--case", "r8_d128"], 2, "several ops"),
    "condition that is none": (["bench", "gated_pool", "--fail-if", "slow"], 2, "'ratio>1.02'"),
    "rounds of a seed": (["bench", "--protocol", "seed1", "--rounds", "9"], 2, "has its own"),
    "callable of no op": (["bench", "py:a:b"], 2, "name a kernel or op too"),
    "two ops compared": (["bench", "gated_pool", "--against", "sparse_prefill"], 2, "one op"),
    "revision that is none": (["bench", "gated_pool@git:no-such"], 2, "no-such"),
    "profile of no case": (["profile", "gated_pool"], 2, "--case"),
    "profile of an unknown case": (["profile", "gated_pool", "--case", "x"], 2, "no case 'x'"),
    "report of nothing": (["report"], 2, "at least one result file"),
    "report of what is no result": (["report", "pyproject.toml"], 2, "does not read as a result"),
    "form that is none": (["list", "--format", "xml"], 2, "xml"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_once_with_exit_2(run_cli, wrong):
    args, code, told = WRONG[wrong]
    done = run_cli(*args)
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_a_gpu_verify_and_run_exit_6(run_cli, probe):
    if probe.devices:
        pytest.skip("this machine has a GPU")
    for args in (
        ["verify", CUDA],
        ["run", CUDA, "--case", "small"],
        ["verify", "--bitwise", CUDA],
        ["bench", CUDA],
    ):
        done = run_cli(*args)
        assert done.returncode == 6
        assert "see sparsekit doctor" in done.stderr
        assert done.stdout == ""


def test_a_broken_spec_is_listed_and_exits_3(run_cli, tmp_path):
    folder = tmp_path / "kernels" / "mine"
    folder.mkdir(parents=True)
    (folder / "spec.py").write_text("import os\n")
    done = run_cli("list", "--kernels", str(tmp_path / "kernels"))
    assert done.returncode == 3
    assert "spec.py:1: imports os" in done.stdout
    assert run_cli("build", "mine", "--kernels", str(tmp_path / "kernels")).returncode == 3


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_output_goes_to_a_file_whole(run_cli, tmp_path, form):
    file = tmp_path / "result"
    done = run_cli("build", CUDA, "--arch", "8.0", "--format", form, "-o", str(file))
    assert done.returncode == 0
    assert done.stdout == ""
    text = file.read_text()
    if form == "json":
        assert json.loads(text)["schema"] == 1
    else:
        assert "scale_cu" in text
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".result")] == []


def test_a_file_that_cannot_be_written(run_cli, tmp_path):
    for target in (tmp_path / "no" / "folder" / "x.json", tmp_path):
        done = run_cli("list", "--format", "json", "-o", str(target))
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert str(target) in done.stderr


def test_markdown_is_a_table(run_cli):
    text = run_cli("build", CUDA, "--arch", "8.0", "--format", "markdown").stdout
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert set(lines[1]) <= set("|-: ")


def test_results_on_stdout_and_talk_on_stderr(run_cli):
    done = run_cli("build", CUDA, "--arch", "8.0", "--format", "json")
    json.loads(done.stdout)
    assert "[1/1] built" in done.stderr


def test_a_reader_that_leaves_is_no_error(tmp_path):
    command = f"{sys.executable} -m sparsekit build {CUDA} -n --arch all --format json | head -n 1"
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=ROOT, env=env, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken pipe" not in done.stderr


def test_settings_from_the_project_file(run_cli, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.sparsekit]\nkernels = [{str(KERNELS)!r}]\ncache-dir = {str(tmp_path / 'c')!r}\n"
    )
    done = run_cli("list", "--format", "json", cwd=tmp_path, SPARSEKIT_CACHE_DIR="")
    assert "scale_cu" in {k["kernel"] for k in json.loads(done.stdout)["kernels"]}
    assert run_cli("cache", "dir", cwd=tmp_path, SPARSEKIT_CACHE_DIR="").stdout.strip() == str(
        tmp_path / "c"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.sparsekit]\nkernel = []\n")
    done = run_cli("list", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown key 'kernel'" in done.stderr
    (tmp_path / "pyproject.toml").write_text("[tool.sparsekit\n")
    assert run_cli("list", cwd=tmp_path).returncode == 2


def test_the_flag_wins_over_the_variable(run_cli, tmp_path):
    done = run_cli("cache", "dir", "--cache-dir", str(tmp_path / "flag"))
    assert done.stdout.strip() == str(tmp_path / "flag")


def test_cache_commands(run_cli, tmp_path):
    run_cli("build", CUDA, "--arch", "8.0;9.0")
    info = json.loads(run_cli("cache", "info", "--format", "json").stdout)
    assert info["artifacts"] == 2
    assert info["bytes"] > 10_000
    assert run_cli("cache", "verify").returncode == 0
    (cubin, _) = (tmp_path / "store").glob("v1/*/*/kernel.cubin")
    cubin.write_bytes(b"")
    verify = run_cli("cache", "verify", "--format", "json")
    assert verify.returncode == 7
    assert "does not match" in json.loads(verify.stdout)["damaged"][0]["problem"]
    assert "1 artifacts removed" in run_cli("cache", "prune", "--max-size", "12K").stdout
    assert run_cli("cache", "clear").returncode == 130  # nobody is there to say yes
    assert run_cli("cache", "clear", "--yes").returncode == 0
    assert json.loads(run_cli("cache", "info", "--format", "json").stdout)["artifacts"] == 0


def test_an_unsafe_store_exits_7(run_cli, tmp_path):
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store").chmod(0o777)
    done = run_cli("build", CUDA, "--arch", "8.0")
    assert done.returncode == 7
    assert "chmod 700" in done.stderr


def test_a_missing_home_works_with_one_warning(run_cli, tmp_path):
    (tmp_path / "home").write_text("")
    home = str(tmp_path / "home")
    done = run_cli(
        "build", CUDA, "--arch", "8.0", HOME=home, SPARSEKIT_CACHE_DIR="",
        XDG_CACHE_HOME=f"{home}/c",
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.count("cannot be written") == 1


def test_version_names_the_toolchains(run_cli):
    text = run_cli("--version").stdout
    assert text.startswith("sparsekit 0.1.0 (Python 3")
    assert "nvrtc-13." in text
    assert "triton-3." in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run_cli, shell):
    assert "_SPARSEKIT_COMPLETE" in run_cli("completion", shell).stdout


def test_completion_offers_commands(run_cli):
    done = run_cli(_SPARSEKIT_COMPLETE="bash_complete", COMP_WORDS="sparsekit in", COMP_CWORD="1")
    assert "inspect-sass" in done.stdout
