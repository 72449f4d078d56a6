"""Code that sparsekit did not build: what lies in files and folders, and files that are broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.codegen.fatbin import Unreadable, find_fatbins, read_fatbin
from sparsekit.codegen.foreign import Piece, Problem, is_foreign, read_foreign

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
FATBINS = ROOT / "tests" / "fixtures" / "fatbin"
GATHER, TWO = str(KERNELS / "gather_cu"), str(KERNELS / "two_entries")
WHEEL = "nvidia-nvjpeg==13.2.3.58"


@pytest.fixture
def inspect(run_cli):
    def run(*args: str, code: int = 0) -> dict:
        done = run_cli("inspect-sass", *args, "--format", "json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}

    return run


@pytest.fixture
def built(run_cli, tmp_path):
    """Build a reference; the artifact's folder."""

    def build(reference: str, arch: str) -> Path:
        done = run_cli("build", reference, "--arch", arch, "--format", "json")
        (artifact,) = json.loads(done.stdout)["artifacts"]
        key = artifact["key"]
        return tmp_path / "store" / "v1" / key[:2] / key

    return build


def test_a_cubin_says_of_itself_what_its_artifact_says(inspect, built):
    folder = built(TWO, "9.0")
    ours = inspect(TWO, "--arch", "9.0")["entries"]
    theirs = inspect(str(folder / "kernel.cubin"))["entries"]
    assert [e["entry"] for e in theirs] == ["small", "spilling"]
    for a, b in zip(ours, theirs, strict=True):
        for fact in ("registers", "local_bytes", "static_shared_bytes", "sass_loads", "loops",
                     "text_sha256", "threads", "spill_store_bytes"):  # fmt: skip
            assert a[fact] == b[fact], fact
    assert theirs[0]["toolchain"].startswith("ptxas-13.")
    gate = inspect(str(folder / "kernel.cubin"), "--require", "spills==0", code=1)
    assert [f["entry"] for f in gate["findings"]] == ["spilling"]


def test_a_ptx_is_assembled(inspect, built):
    folder = built(f"{GATHER}:wide", "8.0")
    (entry,) = inspect(str(folder / "kernel.ptx"))["entries"]
    assert entry["arch"] == "sm_80"
    assert entry["toolchain"].startswith("ptxas of triton-")
    assert entry["gathers"] == {"LDG": {"16": entry["facts"]["gather.count"]}}
    assert entry["ptx_loads"]["ld.global"]["16"]


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_compressed_fat_binaries(inspect, name):
    """Made by NVIDIA's fatbinary of CUDA 13.0 from a gated_pool for sm_120a."""
    (entry,) = inspect(str(FATBINS / f"gated_pool_{name}.fatbin"))["entries"]
    assert (entry["entry"], entry["arch"]) == ("gated_pool_fwd", "sm_120a")
    assert entry["facts"]["loop0.loads"] == 4
    wrong = inspect(str(FATBINS / f"gated_pool_{name}.fatbin"), "--arch", "9.0", code=2)
    assert "holds code for sm_120, and none for 9.0" in wrong["stderr"]


def test_a_shared_object_with_a_fat_binary_and_a_whole_cubin(inspect, built, tmp_path):
    host = Path(sys.executable).resolve().read_bytes()[:4096]
    assert host[:4] == b"\x7fELF"
    cubin = (built(f"{GATHER}:wide", "8.0") / "kernel.cubin").read_bytes()
    fatbin = (FATBINS / "gated_pool_lz4.fatbin").read_bytes()
    file = tmp_path / "libmine.so.2"
    file.write_bytes(host + bytes(8) + fatbin + bytes(64) + cubin + bytes(16))
    found = inspect(str(file))["entries"]
    assert [(e["entry"], e["arch"]) for e in found] == [
        ("gated_pool_fwd", "sm_120a"), ("gather_sum", "sm_80"),
    ]  # fmt: skip
    assert [e["arch"] for e in inspect(str(file), "--arch", "8.0")["entries"]] == ["sm_80"]


def test_a_triton_cache_brings_shared_bytes_and_ptx(inspect, built, tmp_path):
    folder = built("triton/gated_pool:plain", "9.0")
    cache = tmp_path / "cache" / "ABCDEF"
    cache.mkdir(parents=True)
    for suffix in ("cubin", "ptx"):
        shutil.copy(folder / f"gated_pool_fwd.{suffix}", cache)
    meta = {"name": "gated_pool_fwd", "shared": 4096, "num_warps": 4, "triton_version": "3.7.1"}
    (cache / "gated_pool_fwd.json").write_text(json.dumps(meta))
    (cache / "__grp__gated_pool_fwd.json").write_text("{}")
    (entry,) = inspect(f"{tmp_path}/cache")["entries"]
    assert entry["kernel"] == "ABCDEF/gated_pool_fwd.cubin"
    assert entry["arch"] == "sm_90a"  # its own cubin leaves the suffix out, its PTX does not
    assert entry["dynamic_shared_bytes"] == 4096
    assert entry["toolchain"] == "triton-3.7.1"
    assert entry["ptx_loads"] == {"ld.global": {"8": 3}}


def test_broken_files_are_named_as_what_they_are(inspect, built, tmp_path):
    good = (built(f"{GATHER}:wide", "8.0") / "kernel.cubin").read_bytes()
    host = Path(sys.executable).resolve().read_bytes()[:4096]
    cases = {
        "cut.cubin": (good[: len(good) // 2], "truncated or damaged"),
        "empty.cubin": (b"", "empty"),
        "zeros.cubin": (bytes(4096), "empty"),
        "host.o": (host, "no code for an NVIDIA GPU in it: an object file for x86-64"),
        "text.fatbin": (b"hello, world", "no cubin, PTX, fat binary or object file"),
        "cut.fatbin": ((FATBINS / "gated_pool_zstd.fatbin").read_bytes()[:3000], "truncated"),
    }  # fmt: skip
    for name, (content, told) in cases.items():
        (tmp_path / name).write_bytes(content)
        assert told in inspect(str(tmp_path / name), code=2)["stderr"], name
    assert "there is no such file" in inspect(str(tmp_path / "absent.cubin"), code=2)["stderr"]


def test_a_folder_with_a_broken_file_shows_the_rest_and_fails(inspect, built, tmp_path, run_cli):
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(built(f"{GATHER}:wide", "8.0") / "kernel.cubin", folder / "good.cubin")
    (folder / "bad.cubin").write_bytes(b"")
    done = run_cli("inspect-sass", str(folder), "--format", "json")
    assert done.returncode == 4
    assert f"{folder}/bad.cubin: empty" in done.stderr
    assert [e["kernel"] for e in json.loads(done.stdout)["entries"]] == ["good.cubin"]


def test_a_broken_path_hides_no_other(built, tmp_path, run_cli):
    for name in ("empty.cubin", "zeros.cubin"):
        (tmp_path / name).write_bytes(bytes(1024 * (name == "zeros.cubin")))
    good = str(built(f"{GATHER}:wide", "8.0") / "kernel.cubin")
    broken = [str(tmp_path / name) for name in ("empty.cubin", "zeros.cubin")]
    done = run_cli("inspect-sass", broken[0], good, broken[1], "--format", "json")
    assert done.returncode == 2
    assert [e["kernel"] for e in json.loads(done.stdout)["entries"]] == ["kernel.cubin"]
    none = run_cli("inspect-sass", *broken)
    assert (none.returncode, none.stdout) == (2, "")
    for said in (done.stderr, none.stderr):
        assert all(f"{path}: empty" in said for path in broken)


def test_what_is_foreign(tmp_path):
    assert is_foreign("x.cubin")
    assert is_foreign("libx.so.13")
    assert is_foreign(str(tmp_path))
    assert not is_foreign("gated_pool")
    assert not is_foreign("triton/gated_pool")
    assert not is_foreign(GATHER)


def test_a_damaged_image_in_a_fat_binary():
    data = bytearray((FATBINS / "gated_pool_zstd.fatbin").read_bytes())
    assert [(i.kind, i.sm) for i in read_fatbin(bytes(data))] == [("cubin", 120), ("ptx", 120)]
    data[120:140] = bytes(20)
    with pytest.raises(Unreadable, match="does not decompress"):
        list(read_fatbin(bytes(data)))
    assert list(find_fatbins(b"xx" + bytes(data))) == [(2, len(data))]


def test_pieces_of_a_folder_come_in_order(tmp_path):
    (tmp_path / "b.cubin").write_bytes(b"\x7fELF")
    (tmp_path / "a.ptx").write_text(".version 8.0\n.target sm_80\n.address_size 64\n")
    found = list(read_foreign(tmp_path))
    assert [type(f) for f in found] == [Piece, Piece]
    assert [f.file.name for f in found if not isinstance(f, Problem)] == ["a.ptx", "b.cubin"]


@pytest.mark.toolchains
@pytest.mark.slow
def test_an_installed_wheel_of_nvidia(inspect, tmp_path):
    """About 250 kernels for each of ten archs, most of them compressed."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
    subprocess.run([*command, str(tmp_path / "site"), WHEEL], check=True)
    found = inspect(f"{tmp_path}/site/nvidia", "--arch", "9.0")["entries"]
    assert len(found) == 250  # as many as cuobjdump -res-usage lists
    assert {e["arch"] for e in found} == {"sm_90"}
    assert all(e["registers"] for e in found)
    loadless = [e["entry"] for e in found if not e["sass_loads"]]
    assert loadless == ["_ZN3cub11EmptyKernelIvEEvv"]
