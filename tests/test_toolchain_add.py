"""Adding, listing and removing toolchains, from wheels of our own: no network takes part."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from sparsekit.errors import ToolchainError, UsageError
from sparsekit.toolchain.install import parse_release
from sparsekit.toolchain.packages import find_package

GATED = "triton/gated_pool:plain"
_BIN = "triton/backends/nvidia/bin"
_PTXAS = "#!/bin/sh\necho 'Cuda compilation tools, release {0}, V{0}.1'\n"
INSTALLERS = ["pip", pytest.param("uv", marks=pytest.mark.skipif(
    shutil.which("uv") is None, reason="uv is not on PATH"))]  # fmt: skip


def make_wheel(folder: Path, version: str) -> Path:
    """A triton of two assembler scripts."""
    files = {
        "triton/__init__.py": "raise ImportError('a toolchain is never imported')\n",
        f"{_BIN}/ptxas": _PTXAS.format("12.8"),
        f"{_BIN}/ptxas-blackwell": _PTXAS.format("13.1"),
        f"triton-{version}.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\n"
        f"Version: {version}\n",
        f"triton-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = hashlib.sha256(text.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record += f"{name},sha256={encoded},{len(text)}\n"
    files[f"triton-{version}.dist-info/RECORD"] = record
    folder.mkdir(exist_ok=True)
    wheel = folder / f"triton-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100755 << 16
            archive.writestr(info, text)
    return wheel


@pytest.fixture(params=INSTALLERS)
def toolchain(request, run_cli, tmp_path):
    """`sparsekit toolchain` with our wheels as the only source."""
    make_wheel(tmp_path / "wheels", "1.2.3")
    wheels = str(tmp_path / "wheels")
    env = {
        "SPARSEKIT_DATA_DIR": str(tmp_path / "data"),
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels,
        "UV_NO_INDEX": "1", "UV_FIND_LINKS": wheels,
    }  # fmt: skip
    if request.param == "pip":
        env["PATH"] = "/usr/bin:/bin"

    def run(*args: str, code: int = 0, command: str = "toolchain", **more: str):
        done = run_cli(command, *args, **(env | more))
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


def test_added_listed_used_and_removed(toolchain, tmp_path):
    site = tmp_path / "data" / "toolchains" / "triton-1.2.3"
    assert "triton-1.2.3 added" in toolchain("add", "triton==1.2.3").stdout
    assert (site / _BIN / "ptxas").is_file()
    again = toolchain("add", "triton-1.2.3")
    assert "is there already" in again.stdout
    assert "installing" not in again.stderr
    listed = json.loads(toolchain("list", "--format", "json").stdout)["toolchains"]
    (ours,) = [t for t in listed if t["id"] == "triton-1.2.3"]
    assert ours["added"] is True
    assert ours["assemblers"]["9.0"] == "12.8.1"
    assert ours["assemblers"]["10.0"] == "13.1.1"
    assert ours["fingerprint"] == find_package("triton", [str(site)]).fingerprint
    by_option = toolchain(GATED, "--toolchain", "triton-1.2.3", "-n", "--arch", "8.0",
                          "--format", "json", command="build")  # fmt: skip
    by_reference = toolchain(f"{GATED}@triton-1.2.3", "-n", "--arch", "8.0", "--format", "json",
                             command="build")  # fmt: skip
    assert by_option.stdout == by_reference.stdout
    assert "removed" in toolchain("remove", "triton-1.2.3").stdout
    assert list((tmp_path / "data" / "toolchains").iterdir()) == []
    toolchain("remove", "triton-1.2.3", code=4)


def test_a_release_that_does_not_exist_is_one_clear_error(toolchain, tmp_path):
    done = toolchain("add", "triton==9.9.9", code=4)
    (said,) = [line for line in done.stderr.splitlines() if "cannot install" in line]
    assert "triton==9.9.9" in said
    assert "no such release" in said
    assert list((tmp_path / "data" / "toolchains").iterdir()) == []


def test_offline_is_one_clear_error(toolchain, tmp_path):
    nowhere = "http://127.0.0.1:9/simple"
    done = toolchain(
        "add", "triton==1.2.3", code=4, PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL=nowhere,
        UV_NO_INDEX="0", UV_FIND_LINKS="", UV_INDEX_URL=nowhere, UV_HTTP_RETRIES="0",
    )  # fmt: skip
    assert "the package index cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "data" / "toolchains").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_clear_error(toolchain, tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    done = toolchain("add", "triton==1.2.3", code=4)
    assert f"cannot write to {tmp_path}/data/toolchains" in done.stderr
    assert "SPARSEKIT_DATA_DIR" in done.stderr


def test_half_a_folder_is_replaced(toolchain, tmp_path):
    """What another program left under that name is no toolchain, and in nobody's way."""
    site = tmp_path / "data" / "toolchains" / "triton-1.2.3"
    (site / "triton").mkdir(parents=True)
    assert "added" in toolchain("add", "triton==1.2.3").stdout
    assert (site / _BIN / "ptxas").is_file()


def test_the_installed_one_is_not_ours_to_remove(run_cli):
    listed = json.loads(run_cli("toolchain", "list", "--format", "json").stdout)["toolchains"]
    installed = next(t for t in listed if t["lang"] == "triton" and not t["added"])
    done = run_cli("toolchain", "remove", installed["id"])
    assert done.returncode == 4
    assert "pip uninstall triton" in done.stderr


def test_files_that_are_not_what_was_published_are_found(tmp_path):
    with zipfile.ZipFile(make_wheel(tmp_path, "1.2.3")) as archive:
        archive.extractall(tmp_path / "site")
    package = find_package("triton", [str(tmp_path / "site")])
    assert package.damaged() == []
    (tmp_path / "site" / _BIN / "ptxas").write_text("#!/bin/sh\n")
    assert package.damaged() == [tmp_path / "site" / _BIN / "ptxas"]


@pytest.mark.parametrize("text", ["triton", "cuda==12", "triton>=3", "", "nvrtc==", "triton==x"])
def test_what_is_no_release(text):
    with pytest.raises(UsageError, match="expected one release"):
        parse_release(text)


def test_releases():
    assert parse_release("nvrtc==13.5.37").package == "nvidia-cuda-nvrtc==13.5.37"
    assert parse_release("triton-3.8.0").id == "triton-3.8.0"


def test_an_id_that_compiles_none_of_them(run_cli):
    done = run_cli("build", "triton/gated_pool", "--toolchain", "nvrtc-13.0.88", "-n")
    assert done.returncode == 4
    assert "'nvrtc-13.0.88' compiles no triton kernels" in done.stderr


def test_a_toolchain_option_leaves_named_ones_alone():
    from sparsekit.discover import Catalog

    catalog = Catalog()
    both = catalog.resolve(["gated_pool:plain", "gated_pool:unroll2@triton-3.8.0"],
                           ["triton-3.6.0", "triton-3.7.1"])  # fmt: skip
    assert [(c.variants, c.toolchain) for c in both] == [
        (("plain",), "triton-3.6.0"), (("plain",), "triton-3.7.1"),
        (("unroll2",), "triton-3.8.0"),
    ]  # fmt: skip
    everything = catalog.resolve([], ["triton-3.6.0"])
    assert {c.kernel.lang for c in everything} == {"triton"}
    with pytest.raises(ToolchainError):
        catalog.resolve(["cu/sparse_prefill"], ["triton-3.6.0"])
