"""Building: real compilers, no GPU. What is compiled, what is refused, what is never served."""

from __future__ import annotations

import json
import os
import py_compile
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA, TRITON = str(KERNELS / "scale_cu"), str(KERNELS / "scale_triton")


def build(run_cli, *args: str, code: int = 0, **env: str) -> dict:
    done = run_cli("build", *args, "--format", "json", **env)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def copy(source: str, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__")))


def test_every_field_of_the_result(run_cli):
    result = build(run_cli, CUDA, TRITON, "--arch", "8.0;9.0")
    assert result["schema"] == 1
    assert result["refused"] == []
    by_name = {(a["kernel"], a["variant"], a["arch"]): a for a in result["artifacts"]}
    assert set(by_name) == {
        ("scale_cu", "plain", "sm_80"), ("scale_cu", "plain", "sm_90"),
        ("scale_cu", "twice", "sm_80"), ("scale_cu", "twice", "sm_90"),
        ("scale_triton", "plain", "sm_80"), ("scale_triton", "plain", "sm_90a"),
    }  # fmt: skip
    for artifact in result["artifacts"]:
        assert artifact["status"] == "built"
        assert artifact["registers"] > 0
        assert (artifact["spill_store_bytes"], artifact["spill_load_bytes"]) == (0, 0)
        assert artifact["local_bytes"] == 0
        assert len(artifact["cubin_sha256"]) == len(artifact["key"]) == 64
        assert [e["entry"] for e in artifact["entries"]] == ["scale"]
        assert artifact["seconds"] > 0
    assert by_name["scale_cu", "plain", "sm_80"]["shared_bytes"] == 128 * 4


def test_the_second_build_takes_everything_from_the_store(run_cli):
    first = build(run_cli, CUDA, "--arch", "all")
    second = build(run_cli, CUDA, "--arch", "all")
    assert {a["status"] for a in second["artifacts"]} == {"cached"}
    assert [a["cubin_sha256"] for a in first["artifacts"]] == [
        a["cubin_sha256"] for a in second["artifacts"]
    ]
    forced = build(run_cli, CUDA, "--arch", "8.0", "--force")
    assert {a["status"] for a in forced["artifacts"]} == {"built"}


def test_two_checkouts_give_the_same_bytes(run_cli, tmp_path):
    results = []
    for place in ("here", "over/there"):
        folders = [str(copy(k, tmp_path / place / Path(k).name)) for k in (CUDA, TRITON)]
        store = str(tmp_path / place / "store")
        results.append(
            build(run_cli, *folders, "--arch", "8.0;9.0;12.0", SPARSEKIT_CACHE_DIR=store)
        )
    keys = [[(a["key"], a["cubin_sha256"]) for a in r["artifacts"]] for r in results]
    assert keys[0] == keys[1]


def test_line_info_is_an_artifact_of_its_own(run_cli):
    plain = build(run_cli, CUDA, TRITON, "--arch", "9.0")
    lined = build(run_cli, CUDA, TRITON, "--arch", "9.0", "--lineinfo")
    for a, b in zip(plain["artifacts"], lined["artifacts"], strict=True):
        assert a["key"] != b["key"]
        assert a["cubin_sha256"] != b["cubin_sha256"]


CHANGES = {
    "source": lambda f: _append(f / "kernel.cu", "// changed\n"),
    "header": lambda f: _append(f / "scale.cuh", "// changed\n"),
    "constant": lambda f: _replace(f / "spec.py", '"THREADS": 128}', '"THREADS": 64}'),
    "option": lambda f: _replace(f / "spec.py", 'op="', 'options={"fmad": False}, op="'),
    "promise": lambda f: _replace(f / "spec.py", '"x", "*fp32"', '"x", "*fp32", divisible_by=16'),
}  # fmt: skip


def _append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)
    os.utime(file, (978_307_200,) * 2)  # in 2001: the time of a file says nothing


def _replace(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, (978_307_200,) * 2)


def test_what_is_imported_is_taken_by_its_bytes(run_cli, tmp_path):
    """Of the same size and the same time as before, with a stale .pyc beside it."""
    folder = copy(TRITON, tmp_path / "scale_triton")
    tiles = folder / "tiles.py"

    def built_with(shift: int) -> dict:
        tiles.write_text(re.sub(r"return start.*", f"return start + {shift}", tiles.read_text()))
        os.utime(tiles, (315_532_800,) * 2)
        return build(run_cli, f"{folder}:plain", "--arch", "8.0")["artifacts"][0]

    first, second = built_with(3), built_with(7)
    assert first["key"] != second["key"]
    assert first["cubin_sha256"] != second["cubin_sha256"]
    assert list(folder.glob("**/__pycache__")) == []
    py_compile.compile(str(tiles))
    third = built_with(3)
    assert third["cubin_sha256"] == first["cubin_sha256"]
    shutil.rmtree(folder / "__pycache__")
    assert (
        build(run_cli, f"{folder}:plain", "--arch", "8.0", "--force")["artifacts"][0][
            "cubin_sha256"
        ]
        == first["cubin_sha256"]
    )


@pytest.mark.parametrize("change", CHANGES)
def test_what_can_change_the_bytes_changes_the_key(change, run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    before = build(run_cli, str(folder) + ":plain", "--arch", "8.0")
    CHANGES[change](folder)
    after = build(run_cli, str(folder) + ":plain", "--arch", "8.0")
    assert after["artifacts"][0]["status"] == "built"
    assert after["artifacts"][0]["key"] != before["artifacts"][0]["key"]


def test_variants_that_differ_in_their_launches_alone_share_an_artifact(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    spec = (folder / "spec.py").read_text()
    own = 'Variant("twice", {"THREADS": 128}, same_bits_as="plain")'
    others = "".join(
        f'Variant("wide{n}", {{"THREADS": 128}}, launch={{"BLOCKS": {n}}}), ' for n in (1, 2)
    )
    (folder / "spec.py").write_text(spec.replace(own, f"{others}{own}"))
    told = build(run_cli, str(folder), "--arch", "8.0")["artifacts"]
    assert [a["variant"] for a in told] == ["plain", "wide1"]
    assert (
        build(run_cli, f"{folder}:twice", "--arch", "8.0")["artifacts"][0]["key"]
        == (told[1]["key"])
    )
    listed = json.loads(run_cli("list", str(folder), "--format", "json").stdout)
    assert {v["name"]: v["built"] for v in listed["kernels"][0]["variants"]} == {
        name: ["sm_80"] for name in ("plain", "wide1", "wide2", "twice")
    }


def test_the_name_of_an_entry_is_part_of_the_key(run_cli, tmp_path):
    """ptxas allots registers by it."""
    folder = copy(CUDA, tmp_path / "scale_cu")
    plan = ("build", f"{folder}:plain", "--arch", "8.0", "-n", "--format", "json")

    def key() -> str:
        return json.loads(run_cli(*plan).stdout)["jobs"][0]["key"]

    spec, before = (folder / "spec.py").read_text(), key()
    (folder / "spec.py").write_text(
        spec.replace('"scale",\n            (', '"renamed",\n            (').replace(
            'Launch("scale"', 'Launch("renamed"'
        )
    )
    assert key() != before
    (folder / "spec.py").write_text(spec)
    assert key() == before


def test_a_file_beside_a_triton_source_is_part_of_the_key(run_cli, tmp_path):
    folder = copy(TRITON, tmp_path / "scale_triton")
    before = build(run_cli, str(folder), "--arch", "8.0")
    _replace(folder / "tiles.py", "return start", "return start + 0")
    after = build(run_cli, str(folder), "--arch", "8.0")
    assert after["artifacts"][0]["key"] != before["artifacts"][0]["key"]


def test_a_header_of_the_working_directory_reaches_no_compiler(run_cli, tmp_path):
    """NVRTC would look into a folder of the kernel's name, relative to where it runs."""
    folder = copy(CUDA, tmp_path / "kernels" / "scale_cu")
    (tmp_path / "scale_cu").mkdir()
    (folder / "scale.cuh").rename(tmp_path / "scale_cu" / "stray.cuh")
    _replace(folder / "kernel.cu", '#include "scale.cuh"', '#include "stray.cuh"')
    done = run_cli("build", str(folder) + ":plain", "--arch", "8.0", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert 'kernel.cu:1: includes "stray.cuh"' in done.stderr
    # Written so that the closure does not see it, it is the compiler that does not find it.
    _replace(folder / "kernel.cu", '#include "stray.cuh"', '/**/ #include "stray.cuh"')
    done = run_cli("build", str(folder) + ":plain", "--arch", "8.0", cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "stray.cuh" in done.stdout


def test_relative_folders_mean_the_working_directory(run_cli, tmp_path):
    copy(CUDA, tmp_path / "scale_cu")
    options = ("--arch", "8.0", "--cache-dir", "store", "--format", "json")
    done = run_cli("build", "./scale_cu:plain", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "store").glob("v1/*/*/kernel.cubin"))) == 1


def test_every_target_has_an_entry_of_its_own(run_cli):
    targets = "sm120;sm121;sm120f;sm120a;sm100;sm103"
    result = build(run_cli, CUDA + ":plain", "--arch", targets)
    assert [a["arch"] for a in result["artifacts"]] == [
        "sm_100", "sm_103", "sm_120", "sm_120a", "sm_120f", "sm_121",
    ]  # fmt: skip
    assert len({a["key"] for a in result["artifacts"]}) == 6


def test_a_named_target_that_a_kernel_lacks_is_refused_by_name(run_cli):
    result = build(run_cli, TRITON, "--arch", "sm_120f;8.0", code=4)
    assert [a["arch"] for a in result["artifacts"]] == ["sm_80"]
    (refused,) = result["refused"]
    assert refused["kernel"] == "scale_triton"
    assert refused["arch"] == "sm_120f"
    assert "sm_120a" in refused["reason"]


def test_loadable_ptx_is_refused_for_triton(run_cli):
    result = build(run_cli, TRITON, "--arch", "8.0+PTX", code=4)
    assert "not loadable" in result["refused"][0]["reason"]
    assert build(run_cli, CUDA, "--arch", "8.0+PTX")["refused"] == []


def test_all_without_a_gpu_is_the_default(run_cli, probe):
    result = build(run_cli, CUDA + ":plain")
    expected = {d.compute_capability for d in probe.devices}
    archs = {a["arch"] for a in result["artifacts"]}
    assert len(archs) == (len(expected) or 9)


def test_a_dry_run_removes_nothing(run_cli, tmp_path):
    build(run_cli, CUDA + ":plain", "--arch", "8.0")
    (cubin,) = (tmp_path / "store").glob("v1/*/*/kernel.cubin")
    cubin.write_bytes(b"")
    planned = build(run_cli, CUDA + ":plain", "--arch", "8.0", "-n")
    assert cubin.exists()
    assert [j["status"] for j in planned["jobs"]] == ["cached"]


def test_a_variable_of_the_kernel_s_own_is_no_launch_fact(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    _append(
        folder / "kernel.cu",
        'extern "C" __device__ unsigned scale_calls;\n'
        'extern "C" __device__ unsigned scale_limit = 7;\n',
    )
    build(run_cli, str(folder) + ":plain", "--arch", "8.0;9.0")
    manifests = list((tmp_path / "store").glob("v1/*/*/manifest.json"))
    assert len(manifests) == 2
    for file in manifests:
        (entry,) = json.loads(file.read_text())["entries"]
        assert entry["launch_facts"] == {"dynamic_smem_bytes": 512}


def test_no_dynamic_shared_memory_may_be_said_too(run_cli, tmp_path):
    """A variable that is 0 lies in a section without data."""
    folder = copy(CUDA, tmp_path / "scale_cu")
    source = folder / "kernel.cu"
    _replace(source, "extern __shared__ float factor[];", "__shared__ float factor[128];")
    _replace(source, "= 128 * sizeof(float)", "= 0")
    result = build(run_cli, str(folder) + ":plain", "--arch", "8.0")
    assert result["artifacts"][0]["shared_bytes"] == 512


def test_a_dry_run_builds_nothing(run_cli, tmp_path):
    result = build(run_cli, CUDA, "--arch", "8.0", "-n")
    assert [j["status"] for j in result["jobs"]] == ["to build", "to build"]
    assert not list((tmp_path / "store").glob("v1/*/*"))


def test_one_failing_job_does_not_stop_the_others(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    _append(folder / "kernel.cu", '#if __CUDA_ARCH__ == 900\n#error "not here"\n#endif\n')
    result = build(run_cli, str(folder) + ":plain", "--arch", "8.0;9.0;12.0", code=5)
    assert {a["arch"]: a["status"] for a in result["artifacts"]} == {
        "sm_80": "built", "sm_90": "failed", "sm_120": "built",
    }  # fmt: skip
    done = run_cli("build", str(folder) + ":plain", "--arch", "9.0")
    assert done.returncode == 5
    assert "not here" in done.stdout
    assert f"sparsekit build {folder}:plain@" in done.stdout


def pasted(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What a shell makes of a command that was printed."""
    words = f"{shlex.quote(sys.executable)} -m {command}"
    full = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        ["bash", "-c", words], cwd=cwd, env=full, capture_output=True, text=True, check=False
    )


def repeat_of(done) -> str:
    (line,) = [x for x in done.stdout.splitlines() if "repeat it with: " in x]
    return line.partition("repeat it with: ")[2]


def test_the_command_that_repeats_a_failure_does(run_cli, tmp_path):
    """From another folder, for a path with a blank, `@` and `:`, and with the store of the flag."""
    folder = copy(CUDA, tmp_path / "my w@2" / "a:b")
    _append(folder / "kernel.cu", '#error "not here"\n')
    store = tmp_path / "another store"
    options = ("--arch", "8.0", "--cache-dir", str(store))
    command = repeat_of(run_cli("build", f"{folder}:plain", *options))
    (tmp_path / "elsewhere").mkdir()
    again = pasted(command, tmp_path / "elsewhere", SPARSEKIT_CACHE_DIR=str(tmp_path / "c"))
    assert again.returncode == 5, again.stderr
    assert "not here" in again.stdout
    (folder / "kernel.cu").write_text((Path(CUDA) / "kernel.cu").read_text())
    assert pasted(command, tmp_path / "elsewhere").returncode == 0
    assert list(store.glob("v1/*/*/kernel.cubin"))


def test_the_command_for_a_kernel_that_shares_an_op_names_its_folders(run_cli, tmp_path):
    kernels = tmp_path / "kernels"
    copy(CUDA, kernels / "first")
    second = copy(CUDA, kernels / "second")
    (second / "op.py").unlink()
    _append(second / "kernel.cu", '#error "not here"\n')
    done = run_cli("build", "second:plain", "--arch", "8.0", "--kernels", str(kernels))
    again = pasted(repeat_of(done), tmp_path, SPARSEKIT_CACHE_DIR=str(tmp_path / "store"))
    assert again.returncode == 5, again.stderr


BROKEN = {
    "import": ("scale_triton", "kernel.py", "import triton\n", "import triton, numpy\n", 3),
    "op": ("scale_cu", "op.py", "OP = Op(", "OP = Op(nothing=1, ", 3),
    "option": ("scale_cu", "spec.py", 'op="scale"', 'op="scale", options={"fast": 1}', 3),
    "spec": ("scale_cu", "spec.py", "KERNEL = ", "raise SystemExit(0)\nKERNEL = ", 3),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_folder_leaves_the_others_alone(broken, run_cli, tmp_path):
    source, file, old, new, code = BROKEN[broken]
    folder = copy(str(KERNELS / source), tmp_path / "kernels" / "bad")
    _replace(folder / file, old, new)
    copy(CUDA, tmp_path / "kernels" / "good")
    options = ("--kernels", str(tmp_path / "kernels"), "--arch", "8.0")
    planned = build(run_cli, *options, "-n", code=code)
    assert {"good", "sparse_prefill", "gated_pool"} <= {j["kernel"] for j in planned["jobs"]}
    assert "bad" not in {j["kernel"] for j in planned["jobs"]}
    assert [b["folder"] for b in planned["broken"]] == [str(folder)]
    listed = run_cli("list", "--kernels", str(tmp_path / "kernels"), "--format", "json")
    assert listed.returncode == code
    if broken in ("import", "option"):  # named, it does not stop those beside it either
        good = str(tmp_path / "kernels" / "good")
        result = build(run_cli, str(folder), good + ":plain", "--arch", "8.0", code=code)
        assert [a["status"] for a in result["artifacts"]] == ["built"]
        assert [b["folder"] for b in result["broken"]] == [str(folder)]


def test_a_compiler_that_is_missing_leaves_the_other_language_alone(run_cli):
    result = build(
        run_cli, CUDA + ":plain", TRITON, "--arch", "8.0", code=4, TRITON_PTXAS_PATH="/no/ptxas"
    )
    assert [(a["kernel"], a["status"]) for a in result["artifacts"]] == [("scale_cu", "built")]
    assert "/no/ptxas" in result["broken"][0]["reason"]


def test_a_reference_whose_toolchain_is_of_another_language_is_never_dropped(run_cli):
    for others in ([], ["gated_pool"]):
        done = run_cli("build", "-n", "sparse_prefill@triton-3.7.1", *others, "--arch", "9.0")
        assert done.returncode == 4, done.stderr
        assert "sparse_prefill@triton-3.7.1" in done.stderr
        assert "compiles no cuda kernels" in done.stderr


def test_a_body_that_was_compiled_out_is_refused(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    source = folder / "kernel.cu"
    text = source.read_text().replace(
        "  extern __shared__", "#ifdef __CUDA_ARCH_FEAT_SM100_ALL\n  extern __shared__"
    )
    source.write_text(
        text.replace('\n}\n\nextern "C" __device__', '\n#endif\n}\n\nextern "C" __device__')
    )
    result = build(run_cli, str(folder) + ":plain", "--arch", "sm_100a;sm_120", code=5)
    status = {a["arch"]: a["status"] for a in result["artifacts"]}
    assert status == {"sm_100a": "built", "sm_120": "failed"}
    assert "is empty for sm_120" in str(result["artifacts"])


def test_a_commit_that_nothing_waits_for_is_warned_of(run_cli, tmp_path):
    kernel = copy(str(KERNELS / "scale_cu"), tmp_path / "commits")
    _replace(
        kernel / "kernel.cu",
        "  factor[threadIdx.x] = alpha;",
        '  factor[threadIdx.x] = alpha;\n  asm volatile("cp.async.commit_group;");',
    )
    (artifact,) = build(
        run_cli, f"{kernel}:plain", "--arch", "8.0", "--lineinfo",
    )["artifacts"]  # fmt: skip
    (warning,) = [w for w in artifact["warnings"] if "cp.async" in w]
    assert warning.startswith("scale, PTX line ")
    assert "kernel.cu:7" in warning
    assert "nothing waits for the group that it commits" in warning


def test_more_registers_than_an_sm_has_are_refused():
    from sparsekit.aot.record import _check_registers
    from sparsekit.errors import CompileError

    _check_registers("k", 128, 512)
    with pytest.raises(CompileError, match="130 registers in each of 512 threads, 69632"):
        _check_registers("k", 130, 512)


def test_too_much_shared_memory_names_need_and_limit(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    _replace(folder / "kernel.cu", "128 * sizeof(float)", "100 * 1024")
    result = build(run_cli, str(folder) + ":plain", "--arch", "8.0;8.6", code=5)
    assert {a["arch"]: a["status"] for a in result["artifacts"]} == {
        "sm_80": "built",
        "sm_86": "failed",
    }
    assert "needs 102400 bytes" in result["artifacts"][1]["error"]
    assert "101376" in result["artifacts"][1]["error"]


@pytest.mark.parametrize(
    ("kernel", "old", "new", "told"),
    [
        (CUDA, 'Arg("columns", "i32"),', "", "takes parameters of"),
        (CUDA, '"i64", "x.stride(0)"', '"i32", "x.stride(0)"', "takes parameters of"),
        (CUDA, '"scale",\n            (', '"scales",\n            (', "has no entry 'scales'"),
        (CUDA, 'op="scale"', 'op="scale", options={"fast": 1}', "unknown option 'fast'"),
        (TRITON, 'op="scale"', 'op="scale", options={"num_warp": 8}', "unknown Triton option"),
        (TRITON, 'Arg("columns", "i32"),', "", "columns"),
        (TRITON, '{"BLOCK": 64}', "{}", "compile-time parameter BLOCK"),
        (TRITON, '{"BLOCK": 64}', '{"BLOCK": 60}', "power of 2"),
        (TRITON, 'Arg("alpha", "fp32")', 'Arg("beta", "fp32", "alpha")', "'beta'"),
    ],
)  # fmt: skip
def test_a_spec_that_does_not_match_its_source(kernel, old, new, told, run_cli, tmp_path):
    folder = copy(kernel, tmp_path / Path(kernel).name)
    spec = folder / "spec.py"
    _replace(spec, old, new)
    if "columns" in told:
        spec.write_text(spec.read_text().replace(', "columns")', ")"))
    done = run_cli("build", str(folder), "--arch", "8.0")
    assert done.returncode in (3, 5), done.stdout + done.stderr
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_compiler_error_has_file_and_line(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    _replace(folder / "scale.cuh", "x * alpha", "x * beta")
    done = run_cli("build", str(folder) + ":plain", "--arch", "8.0")
    assert done.returncode == 5
    assert f'\n{folder}/scale.cuh(4): error: identifier "beta" is undefined' in done.stdout
    _replace(folder / "scale.cuh", "x * beta", "x * alpha")
    _replace(folder / "kernel.cu", "= alpha;", "= beta;")
    done = run_cli("build", str(folder) + ":plain", "--arch", "8.0")
    assert f'\n{folder}/kernel.cu(6): error: identifier "beta" is undefined' in done.stdout


def test_an_error_of_triton_has_file_and_line_and_its_cause(run_cli, tmp_path):
    folder = copy(TRITON, tmp_path / "scale_triton")
    _replace(folder / "tiles.py", "return start", "return start + nothing")
    done = run_cli("build", str(folder) + ":plain", "--arch", "8.0")
    assert done.returncode == 5
    lines = done.stdout.splitlines()
    calls = f"{folder}/kernel.py:12: CompilationError: at 4:17:"
    cause = f"{folder}/tiles.py:8: CompilationError: at 2:19:"
    assert lines.index(calls) < lines.index(cause)
    assert "NameError('nothing is not defined')" in lines[lines.index(cause) :]
    assert (folder / "tiles.py").read_text().splitlines()[7] == "    return start + nothing"


def test_a_variable_that_the_source_never_set_is_told_with_its_line(run_cli, tmp_path):
    folder = copy(CUDA, tmp_path / "scale_cu")
    _replace(folder / "kernel.cu", "  factor[threadIdx.x] = alpha;", "  float sum;")
    _replace(folder / "kernel.cu", "factor[threadIdx.x]);", "sum);\n    sum += alpha;")
    build = ("build", str(folder) + ":plain", "--arch", "8.0")
    plain, lines = run_cli(*build), run_cli(*build, "--lineinfo")
    for done in (plain, lines):
        assert done.returncode == 5, done.stdout + done.stderr
        assert "before its definition on every path" in done.stdout
        assert "either the source reads a variable that it has not set" in done.stdout
        assert "or the compiler moved the read" in done.stdout
    assert "build with --lineinfo to have the line of the source" in plain.stdout
    assert f"({folder}/scale.cuh:4:" in lines.stdout
    assert "build with --lineinfo" not in lines.stdout


HOSTILE = (
    {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    {"PTXAS_OPTIONS": "-O0", "DISABLE_LLVM_OPT": "1", "TRITON_DEFAULT_FP_FUSION": "0"},
    {"TRITON_OVERRIDE_ARCH": "sm80", "TRITON_KERNEL_DUMP": "1"},
)


def test_the_environment_does_not_reach_the_compiler(run_cli, tmp_path):
    built = []
    for number, env in enumerate(({}, *HOSTILE)):
        store = str(tmp_path / str(number))
        told = build(run_cli, TRITON, "--arch", "9.0", SPARSEKIT_CACHE_DIR=store, **env)
        built.append([(a["key"], a["cubin_sha256"]) for a in told["artifacts"]])
    for found, env in zip(built[1:], HOSTILE, strict=True):
        assert found == built[0], env


STUB_PTXAS = """#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 12.8, V12.8.93"; exit 0;; esac
echo "ptxas fatal   : Value 'sm_80' is not defined for option 'gpu-name'" >&2
exit 255
"""


def test_an_assembler_that_the_user_chose_is_used_and_said(run_cli, tmp_path):
    stub = tmp_path / "ptxas"
    stub.write_text(STUB_PTXAS)
    stub.chmod(0o755)
    done = run_cli("build", TRITON, "--arch", "8.0", TRITON_PTXAS_PATH=str(stub))
    assert done.returncode == 4, done.stdout + done.stderr
    told = next(line for line in done.stdout.splitlines() if "does not know sm_80" in line)
    assert str(stub) in told
    assert "12.8" in told
    assert "that of CUDA 11.0 is the first that does" in told
    assert "TRITON_PTXAS_PATH" in told
    assert list((tmp_path / "store").glob("v1/*/*/manifest.json")) == []
    assert "Traceback" not in done.stdout + done.stderr
    stub.write_text("#!/bin/sh\nexit 1\n")
    refused = run_cli("build", TRITON, "--arch", "8.0", TRITON_PTXAS_PATH=str(stub))
    assert refused.returncode == 4
    assert "no ptxas that Triton accepts" in refused.stdout
    missing = run_cli("build", TRITON, "--arch", "8.0", TRITON_PTXAS_PATH="/no/such/ptxas")
    assert missing.returncode == 4
    assert "TRITON_PTXAS_PATH=/no/such/ptxas" in missing.stderr


def test_a_damaged_entry_is_rebuilt_with_a_note(run_cli, tmp_path):
    first = build(run_cli, CUDA + ":plain", "--arch", "8.0")
    (cubin,) = (tmp_path / "store").glob("v1/*/*/kernel.cubin")
    cubin.write_bytes(cubin.read_bytes()[:100])
    done = run_cli("build", CUDA + ":plain", "--arch", "8.0", "--format", "json")
    again = json.loads(done.stdout)
    assert "damaged" in done.stderr
    assert again["artifacts"][0]["status"] == "built"
    assert again["artifacts"][0]["cubin_sha256"] == first["artifacts"][0]["cubin_sha256"]


def test_no_space_left(run_cli, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k,mode=700", "tmpfs", str(small)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("cannot mount a file system here")
    try:
        done = run_cli("build", CUDA, "--arch", "all", SPARSEKIT_CACHE_DIR=str(small / "store"))
        assert done.returncode in (5, 7)
        assert "No space left" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        verified = run_cli("cache", "verify", SPARSEKIT_CACHE_DIR=str(small / "store"))
        assert verified.returncode == 0, verified.stdout
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_interrupt_leaves_a_clean_store(run_cli, tmp_path):
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(tmp_path / "store")}
    process = subprocess.Popen(
        [sys.executable, "-m", "sparsekit", "build", "--arch", "all"],  # minutes of it
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while "built" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    assert list((tmp_path / "store" / "staging").iterdir()) == []
    assert run_cli("cache", "verify").returncode == 0


def children(pid: int) -> list[str]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for file in lists for child in file.read_text().split()]


def runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def until(condition, seconds: float = 20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


def test_workers_die_with_their_builder(tmp_path):
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(tmp_path / "store"), "TMPDIR": str(tmp_path)}
    builder = subprocess.Popen(
        [sys.executable, "-m", "sparsekit", "build", CUDA, "--arch", "all", "-j", "2"],
        cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    workers = until(lambda: children(builder.pid))
    until(lambda: list(tmp_path.glob("store/staging/*/*")))
    builder.kill()
    builder.wait()
    until(lambda: not any(runs(worker) for worker in workers))
    until(lambda: list(tmp_path.glob("sparsekit-worker-*")) == [])


def test_killed_builds_never_leave_a_bad_entry(run_cli, tmp_path):
    """A dozen kills over all phases; the full two hundred run with tests/stress/kill_builds.py."""
    build(run_cli, CUDA, "--arch", "8.0", "-n")  # so that the compiler's files are known
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(tmp_path / "store")}
    command = [sys.executable, "-m", "sparsekit", "build", CUDA, "--arch", "8.0;9.0;12.0"]
    for i in range(12):
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.1 + 0.08 * i)
        process.kill()
        process.wait()
        assert run_cli("cache", "verify").returncode == 0
    result = build(run_cli, CUDA, "--arch", "8.0;9.0;12.0")
    assert {a["status"] for a in result["artifacts"]} <= {"built", "cached"}
    assert list((tmp_path / "store" / "staging").iterdir()) == []
