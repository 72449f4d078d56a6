"""Looking into generated code: widths, resources, an entry each, and tools that are not there."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.aot.elf import read_cubin
from sparsekit.aot.ptxas_log import Spills, remarks, spills
from sparsekit.codegen.listing import ptx_listing
from sparsekit.codegen.ptx_loads import ptx_loads
from sparsekit.codegen.sass import access_bytes
from sparsekit.errors import CompileError
from sparsekit.ptx import parse

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA, TWO = str(KERNELS / "scale_cu") + ":plain", str(KERNELS / "two_entries")


def inspect(run_cli, *args: str, code: int = 0, **env: str) -> dict:
    done = run_cli("inspect-sass", *args, "--format", "json", **env)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_an_entry_per_kernel_and_arch_and_the_second_spills(run_cli):
    entries = inspect(run_cli, TWO, "--arch", "8.0;9.0")["entries"]
    assert [(e["arch"], e["entry"]) for e in entries] == [
        ("sm_80", "small"), ("sm_80", "spilling"), ("sm_90", "small"), ("sm_90", "spilling"),
    ]  # fmt: skip
    for entry in entries:
        spilled = entry["entry"] == "spilling"
        assert (entry["spill_store_bytes"] > 0) == spilled
        assert (entry["local_bytes"] > 0) == spilled
        assert ("STL" in entry["sass_loads"]) == spilled
        assert entry["registers"] <= 32 if spilled else entry["registers"] < 32
    build = json.loads(run_cli("build", TWO, "--arch", "8.0", "--format", "json").stdout)
    (artifact,) = build["artifacts"]
    assert artifact["spill_store_bytes"] == entries[1]["spill_store_bytes"]  # the worst entry's
    assert [e["spill_store_bytes"] > 0 for e in artifact["entries"]] == [False, True]


def test_spill_bytes_are_the_widths_in_sass(run_cli):
    (_, spilling) = inspect(run_cli, TWO, "--arch", "8.0")["entries"]
    loads = spilling["sass_loads"]
    stored = sum(int(width) * count for width, count in loads["STL"].items())
    loaded = sum(int(width) * count for width, count in loads["LDL"].items())
    assert (stored, loaded) == (spilling["spill_store_bytes"], spilling["spill_load_bytes"])


def test_dump(run_cli):
    sass = run_cli("inspect-sass", CUDA, "--arch", "8.0", "--dump", "sass")
    assert "LDG.E" in sass.stdout
    assert "/*0000*/" in sass.stdout
    ptx = run_cli("inspect-sass", CUDA, "--arch", "8.0", "--dump", "ptx", "--format", "markdown")
    assert ".visible .entry scale(" in ptx.stdout
    assert "```" in ptx.stdout


def test_the_digest_of_the_code_ignores_line_info(run_cli):
    plain = inspect(run_cli, CUDA, "--arch", "8.0")["entries"][0]
    lined = inspect(run_cli, CUDA, "--arch", "8.0", "--lineinfo")["entries"][0]
    assert plain["text_sha256"] == lined["text_sha256"]


@pytest.fixture
def only_tool(tmp_path):
    """An environment in which only this script answers to nvdisasm."""

    def make(script: str | None) -> dict[str, str]:
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.metadata as m\n"
            "real = m.MetadataPathFinder.find_distributions\n"
            "def hide(context=m.DistributionFinder.Context()):\n"
            "    hidden = context.name in ('nvidia-cuda-nvdisasm', 'triton')\n"
            "    return iter(()) if hidden else real(context)\n"
            "m.MetadataPathFinder.find_distributions = staticmethod(hide)\n"
        )
        home = tmp_path / "cuda"
        if script is not None:
            (home / "bin").mkdir(parents=True)
            (home / "bin" / "nvdisasm").write_text(script)
            (home / "bin" / "nvdisasm").chmod(0o755)
        return {"PYTHONPATH": str(tmp_path), "CUDA_HOME": str(home), "PATH": "/usr/bin:/bin"}

    return make


def test_no_disassembler_anywhere(run_cli, only_tool):
    env = only_tool(None)
    done = run_cli("inspect-sass", CUDA, "--arch", "8.0", "--format", "json", **env)
    assert done.returncode == 4
    assert "nvdisasm was found nowhere; searched" in done.stderr
    assert f"{env['CUDA_HOME']}/bin/nvdisasm" in done.stderr
    assert "pip install -c constraints.txt nvidia-cuda-nvdisasm" in done.stderr
    (entry,) = json.loads(done.stdout)["entries"]
    assert entry["sass_loads"] is None
    assert entry["ptx_loads"]["ld.global"]
    assert entry["registers"] > 0


def on_a_terminal(store: Path, *args: str) -> str:
    """What `sparsekit ARGS` shows on standard error where that is a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(store), "TERM": "xterm"}
    command = [sys.executable, "-m", "sparsekit", *args]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells that the other end was closed
        while read := os.read(ours, 4096):
            shown += read
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_a_terminal_shows_what_is_done_and_no_more(tmp_path):
    built = on_a_terminal(tmp_path / "store", "build", CUDA, "--arch", "8.0")
    assert "building" in built
    assert "1/1" in built
    looked = on_a_terminal(
        tmp_path / "store", "inspect-sass", CUDA, "--arch", "8.0", "--no-build"
    )  # fmt: skip
    assert "building" not in looked
    assert "reading code" in looked
    assert "1/1" in looked


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\nexit 1\n", "exit code 1: it said nothing"),
        (
            "#!/bin/sh\necho 'nvdisasm fatal: unknown SM version' >&2\nexit 255\n",
            "unknown SM version",
        ),
        ("#!/bin/sh\n", "no readable JSON"),
        ("#!/bin/sh\necho '[{}, []]'\n", "shows no instructions"),
        ("#!/no/such/shell\n", "does not run"),
    ],
)
def test_a_disassembler_that_fails_is_named_and_never_empty_with_exit_0(
    run_cli, only_tool, script, told
):
    env = only_tool(script)
    done = run_cli("inspect-sass", CUDA, "--arch", "12.1", "--format", "json", **env)
    assert done.returncode == 4
    (entry,) = json.loads(done.stdout)["entries"]
    assert told in entry["problem"]
    assert f"{env['CUDA_HOME']}/bin/nvdisasm" in entry["problem"]
    assert entry["sass_loads"] is None


def test_the_disassembler_of_a_wheel_is_found_without_path(run_cli):
    entries = inspect(run_cli, CUDA, "--arch", "8.0", PATH="/nonexistent", CUDA_HOME="")["entries"]
    assert entries[0]["sass_loads"]["LDG"]


WIDTHS = {
    "LDG.E": 4, "LDG.E.128.CONSTANT": 16, "LDG.E.U8": 1, "LDG.E.64": 8, "LDG.E.U16": 2, "STL.64": 8,
    "LDG.E.ENL2.256": 32, "LDSM.16.M88.4": 16, "LDSM.16.MT88.2": 8, "LDSM.16.M88": 4, "STS.128": 16,
    "LDGSTS.E.BYPASS.128": 16, "LDGSTS.E.BYPASS.LTC128B.128": 16, "LDS.U.128": 16, "LDL.LU": 4,
}  # fmt: skip


@pytest.mark.parametrize("opcode", WIDTHS)
def test_bytes_per_thread(opcode):
    assert access_bytes(opcode) == WIDTHS[opcode]


PTX = """
.version 8.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd<3>; .reg .b32 %r<9>; .reg .b16 %rs<2>; .reg .f32 %f<3>;
  ld.param.u64 %rd1, [p];
  ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
  ld.global.v2.f32 {%f1, %f2}, [%rd1];
  ld.global.b16 %rs1, [%rd1];
  ld.shared.b32 %r5, [%r6];
  cp.async.cg.shared.global [%r6], [%rd1], 0x10;
  cp.async.ca.shared.global [%r6], [%rd1], 4, %r7;
  cp.async.commit_group;
  ret;
}
"""


def test_ptx_loads():
    (entry,) = parse(PTX).entries
    assert ptx_loads(entry) == {
        "ld.global": {"16": 1, "8": 1, "2": 1}, "cp.async": {"16": 1, "4": 1},
    }  # fmt: skip


BULK = """
.version 9.0
.target sm_90
.address_size 64
.entry k(.param .b64 x) {
  .reg .b32 %r<3>; .reg .b64 %rd<3>;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 16, [%r2];
  cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
  cp.async.commit_group;
  ret;
}
"""


def test_only_what_reads_global_memory_is_a_load():
    (entry,) = parse(BULK).entries
    assert ptx_loads(entry) == {"cp.async.bulk": {"?": 1}}
    marked = [line for line in ptx_listing(BULK, "k") if "<-- load" in line]
    assert len(marked) == 1
    assert "shared::cluster.global" in marked[0]


LOG = """
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : (C7519) Potential Performance Loss: wgmma serialized
ptxas info    : Compiling entry function 'second' for 'sm_90'
    432 bytes stack frame, 624 bytes spill stores, 636 bytes spill loads
"""


def test_what_ptxas_says():
    assert spills(LOG) == {"first": Spills(0, 0), "second": Spills(624, 636)}
    assert remarks(LOG) == ("(C7519) Potential Performance Loss: wgmma serialized",)


def test_what_is_no_cubin(tmp_path):
    for image in (b"", b"\x7fELF", os.urandom(4096), b"\x7fELF\x02" + bytes(200)):
        with pytest.raises(CompileError, match="not a readable cubin"):
            read_cubin(image)


def test_a_truncated_cubin_is_not_read(run_cli, tmp_path):
    run_cli("build", CUDA, "--arch", "8.0")
    (file,) = (tmp_path / "store").glob("v1/*/*/kernel.cubin")
    image = file.read_bytes()
    assert read_cubin(image).arch == "sm_80"
    with pytest.raises(CompileError):
        read_cubin(image[: len(image) // 2])


def test_the_arch_is_read_back_from_the_cubin():
    """A compiler that makes another arch than it was asked for is not believed."""
    from sparsekit.aot.elf import Cubin
    from sparsekit.aot.record import _check_arch

    _check_arch(Cubin("sm_100f", True, {}), "sm_100f")
    _check_arch(Cubin("sm_90", False, {}), "sm_90a")
    with pytest.raises(
        CompileError, match="asked the compiler for sm_90, and the cubin is for sm_86"
    ):
        _check_arch(Cubin("sm_86", True, {}), "sm_90")


PREFILL = {"LDGSTS": {"16": 16}}


@pytest.mark.parametrize("arch", ["8.0", "9.0", "10.0"])
def test_kv_rows_are_gathers_and_indices_are_not(run_shipped, arch):
    """The prefill's 16 rows of 16 bytes; neither q, nor the indices, nor a loaded count."""
    entries = inspect(run_shipped, "triton/sparse_attn_paged:hint16", "--arch", arch)["entries"]
    prefills = [e for e in entries if e["entry"] == "sparse_attn_paged_prefill"]
    assert [e["gathers"] for e in prefills] == [PREFILL, PREFILL]
    assert all(e["sass_loads"]["LDG"]["4"] >= 17 for e in prefills)  # indices among them
    merges = [e for e in entries if e["entry"] == "sparse_attn_paged_decode_merge"]
    assert [e["gathers"] for e in merges] == [{}, {}]


def test_the_gathers_of_cuda_are_the_16_byte_copies(run_shipped):
    entries = inspect(run_shipped, "cu/sparse_prefill:noskip", "--arch", "9.0")["entries"]
    assert entries
    for entry in entries:
        assert set(entry["gathers"]) == {"LDGSTS"}
        assert set(entry["gathers"]["LDGSTS"]) == {"16"}
        assert entry["facts"]["gather.count"] < sum(entry["sass_loads"]["LDGSTS"].values())


def test_gated_pool_gathers_nothing(run_shipped):
    entries = inspect(run_shipped, "triton/gated_pool", "--arch", "8.0;9.0;12.0")["entries"]
    assert len(entries) == 6
    assert [e["gathers"] for e in entries] == [{}] * 6
    with_gathers = [e for e in entries if "gather.min_bytes" in e["facts"]]
    assert with_gathers == []


def test_the_second_call_disassembles_nothing(run_cli, only_tool):
    """The ledger is in the store: no disassembler is there any more, and nothing is missed."""
    first = inspect(run_cli, CUDA, "--arch", "8.0")
    assert inspect(run_cli, CUDA, "--arch", "8.0", **only_tool("#!/bin/sh\nexit 1\n")) == first


def test_resources_stand_beside_the_limits_of_the_arch(run_shipped):
    (entry,) = inspect(run_shipped, CUDA, "--arch", "8.6")["entries"]
    assert entry["shared_limit_bytes"] == 99 * 1024
    assert entry["threads"] == 128
    assert entry["facts"]["code_bytes"] > 0
    (prefill, _) = inspect(run_shipped, "cu/sparse_prefill:skip", "--arch", "9.0")["entries"]
    assert prefill["facts"]["mma.HMMA.16816.F32.BF16"] == prefill["facts"]["mma.count"] > 0
    assert prefill["facts"]["barriers"] >= 2
