"""The command line: forms, files, exit codes, and one clear message for what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from sparsekit.cli.device import gpu_of
from sparsekit.discover import Catalog
from sparsekit.errors import GpuError
from sparsekit.model.call import Device
from sparsekit.runtime.probe import Probe

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA, TRITON = str(KERNELS / "scale_cu") + ":plain", str(KERNELS / "scale_triton")
COMMANDS = (
    "build",
    "list",
    "run",
    "verify",
    "emulate",
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


GROUPS = list(dict.fromkeys(command.split()[0] for command in COMMANDS))


@pytest.mark.parametrize("command", GROUPS)
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
    "folder of no kernel": (["list", "--kernels", "docs"], 2,
                            "docs: there is no spec.py in it, nor in a folder in it"),
    "arch that is half": (["build", CUDA, "--arch", "9"], 2, "did you mean 9.0?"),
    "cpu to time on": (["bench", CUDA, "--device", "cpu"], 2, "bench needs a GPU"),
    "device to time on": (["profile", CUDA, "--device", "tpu"], 2, "must be cuda or cuda:N, found"),
    "path without a spec": (["build", str(KERNELS)], 2, "spec.py"),
    "prune without a limit": (["cache", "prune"], 2, "--older-than"),
    "age that is none": (["cache", "prune", "--older-than", "soon"], 2, "expected an age"),
    "size that is none": (["cache", "prune", "--max-size", "-3"], 2, "expected a size"),
    "case and inputs missing": (["run", "gated_pool"], 2, "give --case NAME or --inputs FILE"),
    "set without a value": (["run", CUDA, "--case", "small", "--set", "B"], 2, "NAME=VALUE"),
    "against without bitwise": (["verify", "gated_pool", "--against", "x"], 2, "--bitwise"),
    "inputs and bits": (["verify", "gated_pool", "--inputs", "x", "--bitwise"], 2, "float64"),
    "inputs and cases": (["verify", "gated_pool", "--inputs", "x", "--case", "*"], 2, "float64"),
    "set that no case has": (["verify", "gated_pool", "--set", "h_q=90"], 2, "--set h_q=90"),
    "device that is none": (["verify", "gated_pool", "--device", "tpu"], 2, "cuda, cuda:N or cpu"),
    "several ops to run": (["run", "*", "--case", "r8_d128"], 2, "several ops"),
    "batch of one kernel": (["run", CUDA, "--case", "small", "--no-batch-invariant"], 2,
                            "--no-batch-invariant is for an op"),
    "batch of named kernels": (["bench", "cu/gated_pool_staged", "--no-batch-invariant"], 2,
                               "--no-batch-invariant is for an op"),
    "batch of all kernels": (["bench", "--no-batch-invariant"], 2, "is for an op"),
    "batch of a profile": (["profile", "gated_pool:plain", "--case", "r8_d128",
                            "--no-batch-invariant"], 2, "--no-batch-invariant is for an op"),
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
    "no such user": (["build", "~nosuchuser/x"], 2, "~nosuchuser/x"),
    "no store": (["build", CUDA, "--cache-dir", ""], 2, "expected a folder, found ''"),
    "no kernels": (["list", "--kernels", ""], 2, "expected a folder, found ''"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_once_with_exit_2(run_cli, wrong):
    args, code, told = WRONG[wrong]
    done = run_cli(*args)
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


PAGED, PREFILL = "sparse_attn_paged decode_small", "sparse_prefill small_576"
SETTINGS = {
    f"{PREFILL} topk=-5": "expected 0 or more",
    f"{PREFILL} s_q=-1": "expected 0 or more",
    f"{PREFILL} s_q=many": "expected an integer",
    f"{PREFILL} q_pad=-1": "expected 0 or more",
    f"{PREFILL} h_kv=2": "h_kv must be 1, found 2",
    f"{PREFILL} d_qk=100": "d_qk must be one of (512, 576), found 100",
    f"{PREFILL} indices=bogus": "expected one of random, ramp, ramp_saturating, ",
    f"{PREFILL} values=abc": "expected one of normal, nan, inf",
    f"{PREFILL} topk_length=long": "expected one of none, valid, hostile",
    f"{PREFILL} scale=big": "expected a number",
    f"{PREFILL} nope=1": "has s_q s_kv",
    f"{PAGED} n_window=9999": "n_window must lie in [0, topk = 300], found 9999",
    f"{PAGED} return_lse=maybe": "expected one of true, false, 1, 0, yes, no",
    f"{PAGED} sink=none": "expected one of finite, off, special",
    "gated_pool r8_d128 out_dtype=banana": "expected one of fp32, bf16, fp16",
    "gated_pool r8_d128 values=abc": "expected one of normal, special, equal, one_large",
    "gated_pool r8_d128 R=0": "R must be at least 1",
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_makes_no_case(run_cli, setting):
    op, case, change = setting.split()
    done = run_cli("run", op, "--case", case, "--set", change)
    assert done.returncode == 2, done.stderr
    assert f"--set {change}: " in done.stderr
    assert SETTINGS[setting] in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_settings_that_make_a_case():
    from sparsekit.discover import Catalog
    from sparsekit.model.op import with_settings

    op = Catalog().ops["sparse_attn_paged"]
    changes = {"topk": "200", "return_lse": "No", "sink": "off", "scale": "0.5", "q_pad": "16"}
    case = with_settings(op, op.case("prefill_counts"), changes)
    assert case.dims["topk"] == 200
    options = {name: case.options[name] for name in ("return_lse", "sink", "scale", "q_pad")}
    assert options == {"return_lse": False, "sink": "off", "scale": 0.5, "q_pad": 16}


MISTAKES = {
    "no such case": (["run", CUDA, "--case", "nope"], "its cases are small, padded, empty"),
    "no such pattern": (["verify", CUDA, "--case", "nope*"], "its cases are small"),
    "no file to run": (["run", CUDA, "--inputs", "no.st"], "--inputs no.st: there is no such file"),
    "no file": (["verify", CUDA, "--inputs", "no.st"], "--inputs no.st: there is no such file"),
    "inputs of several": (["verify", CUDA, "gated_pool", "--inputs", str(ROOT / "LICENSE")],
                          "the tensors of one op"),
    "no such scalar": (["run", CUDA, "--inputs", str(ROOT / "LICENSE"), "--set", "beta=1"],
                       "the scalars of scale are alpha"),
    "no number": (["verify", CUDA, "--inputs", str(ROOT / "LICENSE"), "--set", "alpha=x"],
                  "--set alpha=x: expected a number"),
    "no one base": (["verify", CUDA, "--bitwise", "--against", "gated_pool"], "one variant"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_before_the_gpu_is_looked_for(run_cli, mistake):
    args, told = MISTAKES[mistake]
    done = run_cli(*args)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert done.stdout == ""


def test_without_a_gpu_run_exits_6_and_so_does_verify_when_nothing_is_built(run_cli, probe):
    if probe.devices:
        pytest.skip("this machine has a GPU")
    for args in (
        ["verify", CUDA],
        ["run", CUDA, "--case", "small"],
        ["verify", "--bitwise", CUDA],
        ["bench", CUDA, "--case", "small"],
    ):
        done = run_cli(*args)
        assert done.returncode == 6
        assert "see sparsekit doctor" in done.stderr
        assert ("--device cpu" in done.stderr) == (args[0] != "bench")
        assert done.stdout == ""


def test_an_op_is_listed_with_all_that_it_takes(run_cli):
    lines = run_cli("list", CUDA).stdout.splitlines()
    at = lines.index("scale")
    assert [line.split()[2] for line in lines[2:at] if line] == ["plain"]
    assert [" ".join(line.split()) for line in lines[at:] if "──" not in line] == [
        "scale", "out = alpha * x.", "",
        "Arguments", "argument role type shape must be",
        "x input fp32 [rows, columns] –", "alpha input, 2.0 if not given float scalar –",
        "out output fp32 [rows, columns] –", "",
        "What run --set takes", "name mostly takes",
        "rows a size", "columns a size", "x_pad 0 a size", "x_offset 0 a size", "",
        "Cases", "case tags rows columns and",
        "small smoke sanitize 7 64", "padded corner 7 60 x_pad=3 x_offset=1", "empty corner 0 64",
    ]  # fmt: skip


def test_every_op_is_listed_for_machines(run_cli):
    found = json.loads(run_cli("list", "*", "--format", "json").stdout)
    ops = Catalog().ops
    assert sorted(told["op"] for told in found["ops"]) == sorted(ops)
    for told in found["ops"]:
        op = ops[told["op"]]
        assert told["summary"] == op.summary
        assert [i["name"] for i in told["inputs"]] == [i.name for i in op.inputs]
        assert [tuple(o["shape"]) for o in told["outputs"]] == [o.shape for o in op.outputs]
        assert {c["name"]: c["dims"] for c in told["cases"]} == {c.name: c.dims for c in op.cases}
        assert [tuple(c["tags"]) for c in told["cases"]] == [c.tags for c in op.cases]
    prefill = next(o for o in found["ops"] if o["op"] == "sparse_prefill")
    assert prefill["inputs"][0] == {
        "name": "q", "kind": "tensor", "dtypes": ["bf16"], "shape": ["s_q", "h_q", "d_qk"],
        "optional": False, "divisible_by": 16, "stride_divisible_by": 8,
    }  # fmt: skip
    assert prefill["inputs"][3] == {"name": "sm_scale", "kind": "scalar", "type": "float"}
    assert prefill["inputs"][4]["default"] == 512
    assert prefill["known_values"]["values"] == ["normal", "nan", "inf"]


def test_the_cpu_is_offered_where_it_serves():
    one = Probe((Device((9, 0), 132, 232448),))
    for or_cpu in (True, False):
        with pytest.raises(GpuError) as error:
            gpu_of("cuda:1", one, or_cpu=or_cpu)
        assert str(error.value) == (
            "--device cuda:1: the driver shows 1 GPU; see sparsekit doctor"
            + ", or take --device cpu" * or_cpu
        )


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


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(run_cli, tmp_path):
    """Of every command: -o is handled in one place."""
    file = str(tmp_path / "no" / "x.json")
    done = run_cli("build", CUDA, "--arch", "8.0", "-o", file)
    assert done.returncode == 2
    assert done.stderr == f"sparsekit: cannot write {file}: No such file or directory\n"
    assert not (tmp_path / "store" / "v1").exists()


def test_what_is_no_regular_file_can_be_written(run_cli, tmp_path):
    for file in ("/dev/null", "/dev/stdout"):
        assert run_cli("cache", "dir", "-o", file).returncode == 0


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tool = 3", "tool must be a table, found 3"),
        ("[tool]\nsparsekit = 3", "sparsekit must be a table, found 3"),
        ("[tool.sparsekit]\ncache-dir = 5", "cache-dir must be a folder, found 5"),
        ('[tool.sparsekit]\ncache-dir = ["a"]', "cache-dir must be a folder, found ['a']"),
        ("[tool.sparsekit]\ndata-dir = 5", "data-dir must be a folder, found 5"),
        ("[tool.sparsekit]\nkernels = 'a'", "kernels must be a list of folders, found 'a'"),
        ("[tool.sparsekit]\nkernels = ['no/folder']", "[tool.sparsekit] kernels: "),
        ("[tool.sparsekit]\ncache-dir = '~nosuchuser/x'", "cache-dir '~nosuchuser/x' is no path"),
    ],
)
def test_a_project_file_that_is_wrong(run_cli, tmp_path, text, told):
    (tmp_path / "pyproject.toml").write_text(text)
    done = run_cli("list", cwd=tmp_path, SPARSEKIT_CACHE_DIR="")
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["SPARSEKIT_CACHE_DIR", "SPARSEKIT_DATA_DIR", "SPARSEKIT_KERNELS"])
@pytest.mark.parametrize("value", ["~nosuchuser/x", "/tmp/" + "n" * 300])
def test_a_variable_that_is_no_path(run_cli, name, value):
    for command in ("list", "build", "verify"):
        done = run_cli(command, **{name: value})
        assert done.returncode == 2, done.stdout
        assert f"{name} '{value}' is no path" in done.stderr
        assert "Traceback" not in done.stderr
    for command in ("doctor", "--version"):
        done = run_cli(command, **{name: value})
        assert done.returncode == 0
        assert f"{name} '{value}' is no path" in done.stdout


def test_a_folder_that_is_not_there_is_told_by_its_variable(run_cli):
    done = run_cli("list", SPARSEKIT_KERNELS="/nonexistent")
    assert done.returncode == 2
    assert "SPARSEKIT_KERNELS: /nonexistent" in done.stderr


def shell(command: str, tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, "PYTHONPATH": str(ROOT), "SPARSEKIT_CACHE_DIR": str(tmp_path), **env}
    words = command.replace("sparsekit", f"{sys.executable} -m sparsekit", 1)
    return subprocess.run(
        ["bash", "-c", words], cwd=tmp_path, env=full, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["list", "--version", "--help", "cache dir", "completion bash"])
@pytest.mark.parametrize("target", ["/dev/full", "&-"])
def test_output_that_cannot_be_written(tmp_path, command, target):
    if target == "/dev/full" and not os.path.exists(target):
        pytest.skip("this system has no /dev/full")
    done = shell(f"sparsekit {command} >{target}", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("sparsekit: cannot write to standard output: ")
    assert done.stderr.count("\n") == 1


def test_streams_that_are_closed_and_not_needed(tmp_path):
    assert shell("sparsekit list -o out.txt >&- 2>&- <&-", tmp_path).returncode == 0
    assert "sparse_prefill" in (tmp_path / "out.txt").read_text()
    assert shell(f"sparsekit build {CUDA} --arch 8.0 2>&-", tmp_path).returncode == 0


def test_ctrl_c_while_packages_are_imported(run_cli, tmp_path):
    (tmp_path / "click.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    done = run_cli("list", PYTHONPATH=str(tmp_path))
    assert done.returncode == 130
    assert done.stderr == "sparsekit: interrupted\n"


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
    pruned = run_cli("cache", "prune", "--max-size", "99G", "--format", "json")
    assert json.loads(pruned.stdout)["removed"] == []
    assert json.loads(run_cli("cache", "dir", "--format", "json").stdout)["dir"] == str(
        tmp_path / "store"
    )
    refused = shell("sparsekit cache clear </dev/null", tmp_path / "store")
    assert refused.returncode == 2
    assert "Remove 1 artifacts" in refused.stderr
    assert refused.stderr.endswith("nobody is there to say yes; give --yes to remove them\n")
    assert shell("sparsekit cache clear <&-", tmp_path / "store").stderr == refused.stderr
    assert shell("echo n | sparsekit cache clear", tmp_path / "store").returncode == 130
    cleared = run_cli("cache", "clear", "--yes", "--format", "json")
    assert len(json.loads(cleared.stdout)["removed"]) == 1
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


NO_PASSWORD_ENTRY = """
import os, pwd
def missing(*args):
    raise KeyError("no such user")
pwd.getpwuid = pwd.getpwnam = missing
os.environ.pop("HOME", None)
"""


def test_a_user_without_a_home_works_with_one_warning(run_cli, tmp_path):
    """As under a user number that the password file does not have, with HOME unset."""
    (tmp_path / "sitecustomize.py").write_text(NO_PASSWORD_ENTRY)
    nobody = {"PYTHONPATH": str(tmp_path), "SPARSEKIT_CACHE_DIR": "", "XDG_CACHE_HOME": ""}
    done = run_cli("build", CUDA, TRITON, "--arch", "8.0", **nobody)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot be written") == 1
    assert done.stderr.count("sparsekit: ") == 1
    done = run_cli("cache", "dir", **nobody)
    assert done.returncode == 7
    assert "Set SPARSEKIT_CACHE_DIR" in done.stderr
    assert "Traceback" not in done.stderr
    for command in ("doctor", "list", "--version"):
        assert run_cli(command, **nobody).returncode == 0


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
