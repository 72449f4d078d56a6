"""Compilers beside the installed ones: found by id, kept apart, and what they make of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
GEMM = str(KERNELS / "gemm_bf16")
NEWEST_NVRTC = "nvrtc-13.5.37"


@pytest.fixture
def built(run_cli, toolchain_data_dir):
    def build(*args: str, code: int = 0) -> dict:
        done = run_cli(
            "build",
            *args,
            "--format",
            "json",
            SPARSEKIT_DATA_DIR=str(toolchain_data_dir),
            timeout=900,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    return build


def test_the_miscompiled_gemm_is_refused(run_cli):
    """With the NVRTC that torch pins: refused from sm_100 on, with entry, register and line."""
    done = run_cli("build", GEMM, "--arch", "8.0;9.0;10.0;12.0", "--format", "json")
    result = json.loads(done.stdout)
    if "13.0" not in result["artifacts"][0]["toolchain"]:
        pytest.skip(
            f"the installed compiler is {result['artifacts'][0]['toolchain']}, which is sound"
        )
    assert done.returncode == 5
    status = {a["arch"]: a["status"] for a in result["artifacts"]}
    assert status == {"sm_80": "built", "sm_90": "built", "sm_100": "failed", "sm_120": "failed"}
    for artifact in result["artifacts"][2:]:
        assert "must not be used" in artifact["error"]
        assert "gemm_bf16, PTX line" in artifact["error"]
        assert "%rd58" in artifact["error"]
    assert "13.1.80 or newer does not have the fault" in done.stderr


@pytest.mark.toolchains
def test_the_newest_nvrtc_compiles_it_right(built):
    result = built(f"{GEMM}@{NEWEST_NVRTC}", "--arch", "9.0;10.0;12.0")
    assert {a["status"] for a in result["artifacts"]} == {"built"}
    assert all(a["warnings"] == [] for a in result["artifacts"])
    assert {a["toolchain"] for a in result["artifacts"]} == {NEWEST_NVRTC}


@pytest.mark.toolchains
def test_our_cuda_kernels_are_clean_under_the_newest_nvrtc(built):
    result = built(f"sparse_prefill@{NEWEST_NVRTC}", "--arch", "all")
    assert {a["status"] for a in result["artifacts"]} == {"built"}
    assert [a["warnings"] for a in result["artifacts"] if a["warnings"]] == []


def test_our_cuda_kernels_are_clean_under_the_installed_nvrtc(run_cli):
    done = run_cli("build", "cu/*", "--arch", "all", "--format", "json", timeout=900)
    assert done.returncode == 0, done.stdout
    assert [a["warnings"] for a in json.loads(done.stdout)["artifacts"] if a["warnings"]] == []


@pytest.mark.toolchains
def test_a_target_that_a_release_lacks_is_refused_by_name(built):
    result = built("triton/gated_pool:plain@triton-3.6.0", "--arch", "11.0;9.0", code=4)
    assert [a["arch"] for a in result["artifacts"]] == ["sm_90a"]
    (refused,) = result["refused"]
    assert "triton 3.7 is the first that does" in refused["reason"]
    everything = built("triton/gated_pool:plain@triton-3.6.0", "--arch", "all")
    assert [r["arch"] for r in everything["refused"]] == ["sm_110a"]


def test_an_unknown_toolchain_names_those_at_hand(run_cli):
    done = run_cli("build", "gated_pool@triton-9.9.9", "--arch", "8.0")
    assert done.returncode == 4
    assert "at hand are triton-" in done.stderr
    assert "sparsekit toolchain add triton==9.9.9" in done.stderr


def test_a_toolchain_of_another_language(run_cli):
    done = run_cli("build", "triton/gated_pool@nvrtc-13.0.88", "--arch", "8.0")
    assert done.returncode == 4
    assert "compiles no triton kernels" in done.stderr


@pytest.mark.toolchains
def test_another_release_is_another_key(built):
    keys = {
        built(f"triton/gated_pool:plain@{t}", "--arch", "9.0")["artifacts"][0]["key"]
        for t in ("triton-3.6.0", "triton-3.8.0")
    }
    assert len(keys) == 2


def test_reinstalling_the_same_release_is_the_same_fingerprint(tmp_path):
    """What an installer writes beside the files (order, INSTALLER, bytecode) does not count."""
    from sparsekit.toolchain.packages import find_package

    def install(name: str, record: str) -> Path:
        site = tmp_path / name
        info = site / "thing-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        (info / "RECORD").write_text(record)
        return site

    a = install(
        "a", "thing/x.so,sha256=AAA,1\nthing/y.py,sha256=BBB,2\nthing-1.0.dist-info/RECORD,,\n"
    )
    b = install(
        "b",
        "thing/y.py,sha256=BBB,2\nthing-1.0.dist-info/INSTALLER,sha256=ZZZ,3\n"
        "thing/__pycache__/y.pyc,,\nthing/x.so,sha256=AAA,1\n../../bin/t,sha256=QQQ,4\n",
    )
    c = install("c", "thing/x.so,sha256=AAB,1\nthing/y.py,sha256=BBB,2\n")
    prints = [find_package("thing", [str(site)]).fingerprint for site in (a, b, c)]
    assert prints[0] == prints[1] != prints[2]


def test_without_nvrtc_the_error_says_what_to_install(run_cli, tmp_path):
    """Metadata that is not there is a compiler that is not installed."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.metadata as m\n"
        "real = m.MetadataPathFinder.find_distributions\n"
        "def hide(context=m.DistributionFinder.Context()):\n"
        "    return iter(()) if 'nvrtc' in (context.name or '') else real(context)\n"
        "m.MetadataPathFinder.find_distributions = staticmethod(hide)\n"
    )
    done = run_cli("build", str(KERNELS / "scale_cu"), "--arch", "8.0", PYTHONPATH=str(tmp_path))
    assert done.returncode == 4
    assert "pip install -c constraints.txt nvidia-cuda-nvrtc" in done.stderr


def test_copying_a_compiler_needs_its_metadata(tmp_path, run_cli):
    site = tmp_path / "data" / "toolchains" / "triton-1.2.3" / "triton"
    shutil.copytree(KERNELS, site)
    done = run_cli(
        "build", "gated_pool@triton-1.2.3", "-n", SPARSEKIT_DATA_DIR=str(tmp_path / "data")
    )
    assert done.returncode == 4
    assert "triton-1.2.3" in done.stderr
