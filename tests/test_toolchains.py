"""Compilers beside the installed ones: found by id, kept apart, and what they make of ours."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.aot.options import compiler_options
from sparsekit.aot.plan import Planner, Refusal, target_of
from sparsekit.discover import Catalog
from sparsekit.model.arch import Arch, parse_arch, parse_archs
from sparsekit.model.kernel import TRITON_TARGETS
from sparsekit.model.toolchain import FIRST_PTXAS, Toolchain
from sparsekit.settings import load
from sparsekit.toolchain.find import Toolchains, toolchain_at

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
GEMM = str(KERNELS / "gemm_bf16")
# Shared memory that a block may have. Source: CUDA C++ Programming Guide, "Compute Capabilities".
SHARED_KB = {
    "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227,
    "sm_110": 227, "sm_120": 99, "sm_121": 99,
}  # fmt: skip
NEWEST_NVRTC = "nvrtc-13.5.37"


@pytest.fixture
def built(run_cli, toolchain_data_dir):
    def build(*args: str, code: int = 0, **env: str) -> dict:
        done = run_cli(
            "build", *args, "--format", "json", SPARSEKIT_DATA_DIR=str(toolchain_data_dir),
            timeout=900, **env,
        )  # fmt: skip
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
@pytest.mark.parametrize("archs", ["12.0", pytest.param("all", marks=pytest.mark.slow)])
def test_our_cuda_kernels_are_clean_under_the_newest_nvrtc(built, shipped_store, archs):
    reference = f"sparse_prefill@{NEWEST_NVRTC}"
    result = built(reference, "--arch", archs, SPARSEKIT_CACHE_DIR=str(shipped_store))
    assert {a["toolchain"] for a in result["artifacts"]} == {NEWEST_NVRTC}
    assert_clean(result["artifacts"])


def test_every_shipped_kernel_fits_every_arch(run_shipped):
    done = run_shipped("build", "--arch", "all", "--format", "json", timeout=900)
    assert done.returncode == 0, done.stdout
    artifacts = json.loads(done.stdout)["artifacts"]
    assert {a["arch"].rstrip("a") for a in artifacts} == set(SHARED_KB)
    for artifact in artifacts:
        limit = SHARED_KB[artifact["arch"].rstrip("a")] * 1024
        assert 0 <= artifact["shared_bytes"] <= limit, artifact
    ours = [a for a in artifacts if a["toolchain"].startswith("nvrtc")]
    assert_clean(ours)
    stated = readme_shared_bytes()
    for artifact in (a for a in ours if a["kernel"] == "sparse_prefill"):
        heads = 32 if "heads32" in artifact["variant"] else 64
        found = stated[artifact["arch"], heads, artifact["instance"]]
        assert found == artifact["shared_bytes"], artifact


def assert_clean(artifacts: list[dict]) -> None:
    """No warning, no local memory, no spill."""
    assert artifacts
    for artifact in artifacts:
        assert artifact["warnings"] == [], artifact
        unwanted = ("local_bytes", "spill_store_bytes", "spill_load_bytes")
        assert [artifact[name] for name in unwanted] == [0, 0, 0], artifact


def readme_shared_bytes() -> dict[tuple[str, int, str], int]:
    """What the kernel's README states, by arch, heads of a block and instance."""
    text = (ROOT / "kernels_cu" / "sparse_prefill" / "README.md").read_text()
    found = {}
    row = re.compile(r"^\| (sm_[\d ]+) \| 576 / 512 \| (\d+) \|.*\| (\d+) / (\d+) \|$", re.M)
    for line in row.findall(text):
        for number in line[0].removeprefix("sm_").split():
            found[f"sm_{number}", int(line[1]), "d_qk576"] = int(line[2])
            found[f"sm_{number}", int(line[1]), "d_qk512"] = int(line[3])
    return found


def test_a_compiler_that_is_too_old_is_told_in_one_line():
    (choice,) = Catalog().resolve([str(KERNELS / "scale_cu")])
    library = Path("/cuda/libnvrtc.so.12")
    old = Toolchain("cuda", "12.8.93", Path("/site"), "f", {"library": library})
    refused = [target_of(choice.kernel, r, old) for r in parse_archs("10.3;11.0;12.1;12.0")]
    for refusal, first in zip(refused, ("12.9", "13.0", "12.9"), strict=False):
        assert isinstance(refusal, Refusal)
        assert refusal.named
        assert "\n" not in refusal.reason
        assert "nvrtc-12.8.93 (/cuda/libnvrtc.so.12) does not know 1" in refusal.reason
        assert f"; nvrtc {first} is the first that does" in refusal.reason
        assert "--toolchain nvrtc-VERSION" in refusal.reason
    assert refused[3] == Arch(12, 0)


@pytest.mark.parametrize(
    ("references", "archs", "counted"),
    [
        ([], "9.0", set()),  # sparse_prefill has a kernel for Hopper only, and one for all
        (["sparse_prefill"], "12.0;9.0", set()),
        (["sparse_prefill_sm90"], "9.0;12.0", {"12.0"}),
        (["cu/sparse_prefill", "sparse_prefill_sm90"], "12.0", {"12.0"}),
        (["sparse_attn_paged"], "8.0;12.0f", {"sm_120f"}),
        ([], "12.0f", {"sm_120f"}),  # which no kernel of Triton's has
    ],
)
def test_a_target_that_another_kernel_of_the_op_has_is_not_missed(references, archs, counted):
    choices = Catalog().resolve(references)
    settings = load()
    plan = Planner(Toolchains(settings)).plan(choices, parse_archs(archs), every_instance=False)
    assert {r.arch for r in plan.refused if r.named} == counted
    assert plan.jobs or not references


def test_every_target_of_triton_has_a_first_ptxas():
    assert {parse_arch(t).compute_capability for t in TRITON_TARGETS} <= set(FIRST_PTXAS)


@pytest.mark.toolchains
def test_a_target_that_a_release_lacks_is_refused_by_name(built):
    result = built("triton/gated_pool:plain@triton-3.6.0", "--arch", "11.0;9.0", code=4)
    assert [a["arch"] for a in result["artifacts"]] == ["sm_90a"]
    (refused,) = result["refused"]
    assert "triton 3.7 is the first that does" in refused["reason"]
    everything = built("triton/gated_pool:plain@triton-3.6.0", "--arch", "all")
    assert [r["arch"] for r in everything["refused"]] == ["sm_110a"]


_PARSED = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions
asked, capability = json.loads(sys.argv[1]), int(sys.argv[2])
backend = CUDABackend(GPUTarget("cuda", capability, 32))
said = {n: tuple(v) if isinstance(v, list) else v for n, v in asked.items()}
print(json.dumps({
    "fields": sorted(CUDAOptions.__dataclass_fields__),
    "said": backend.parse_options(dict(said)).__dict__,
    "unsaid": backend.parse_options({k: asked[k] for k in ("num_warps", "num_stages")}).__dict__,
}))
"""
_TRITON_DECIDES = {"arch", "max_num_imprecise_acc_default", "extern_libs"}


@pytest.mark.parametrize(
    "release",
    [None, *(pytest.param(r, marks=pytest.mark.toolchains) for r in ("3.6.0", "3.8.0", "3.9.0"))],
)
@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "12.0"])
def test_every_option_of_triton_is_said_and_is_its_default(release, capability, request):
    """Of each release all that it knows, and none that it does not."""
    settings, toolchain = load(), Toolchains(load()).default("triton")
    if release is not None:
        beside = request.getfixturevalue("toolchain_data_dir")
        if not (beside / "toolchains" / f"triton-{release}").is_dir():
            pytest.skip(f"triton-{release} is not in {beside}")
        toolchain = Toolchains(replace(settings, data_dir=beside)).named(
            "triton", f"triton-{release}"
        )
    planner = Planner(Toolchains(settings))
    (choice,) = Catalog(()).resolve([str(KERNELS / "scale_triton")])
    (kernel, arch) = (choice.kernel, parse_arch(capability))
    variant, instance = kernel.variants[0], kernel.instances[0]
    said = compiler_options(kernel, variant, instance, arch, toolchain, False)["options"]
    done = subprocess.run(
        [sys.executable, "-c", _PARSED, json.dumps(said), capability.replace(".", "")],
        env={"PYTHONPATH": str(toolchain.site), "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert set(said) == set(found["fields"]) - _TRITON_DECIDES
    assert found["said"] == found["unsaid"]
    assert planner.plan([choice], parse_archs("9.0"), every_instance=False).jobs[0].identity[
        "compiler"
    ]["options"].keys() >= {"num_ctas", "maxnreg", "default_dot_input_precision"}


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


def copied_nvrtc(tmp_path: Path) -> Path:
    """The installed NVRTC in a toolchain folder of the test's own; returns its library."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    site = tmp_path / "data" / "toolchains" / f"nvrtc-{version}"
    installed = importlib.metadata.distribution("nvidia-cuda-nvrtc")
    for file in installed.files:
        if ".alt." not in file.name and file.suffix != ".pyc" and file.locate().is_file():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), site / file)
    return site / "nvidia/cu13/lib/libnvrtc.so.13"


def test_a_library_that_was_changed_behind_its_package_s_back(tmp_path):
    """Another fingerprint, and it is said, though the package records what it always did."""
    library = copied_nvrtc(tmp_path)
    settings = replace(load(cache_dir=tmp_path), data_dir=tmp_path / "data")

    def found() -> Toolchain:
        toolchain = toolchain_at("cuda", [str(library.parents[3])])
        assert toolchain is not None
        return Toolchains(settings)._as_it_is(toolchain)

    intact = found()
    assert intact.altered == ()
    assert intact.caution(Arch(8, 0)) is None
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    changed = found()
    assert changed.altered == (library,)
    assert changed.fingerprint != intact.fingerprint
    assert f"is not as it was installed: {library}" in changed.caution(Arch(8, 0))
    library.unlink()
    library.write_bytes(b"")
    assert found().fingerprint not in (intact.fingerprint, changed.fingerprint)


def test_doctor_names_the_files_that_were_changed(run_cli, tmp_path):
    """The installed compiler, as metadata of the test's own describes it."""
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.metadata as m\n"
        "real = m.PathDistribution.read_text\n"
        "def read(self, name):\n"
        "    text = real(self, name)\n"
        "    if name == 'RECORD' and text and 'libnvrtc.so.13,' in text:\n"
        "        head, _, tail = text.partition('libnvrtc.so.13,sha256=')\n"
        "        text = head + 'libnvrtc.so.13,sha256=' + 'A' * 43 + tail[43:]\n"
        "    return text\n"
        "m.PathDistribution.read_text = read\n"
    )
    done = run_cli("doctor", "--format", "json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    bad = [f for f in json.loads(done.stdout)["findings"] if f["subject"].startswith("files of")]
    assert [f["subject"].partition("-")[0] for f in bad] == ["files of nvrtc"]
    assert bad[0]["found"].endswith("libnvrtc.so.13")


def test_digests_are_worked_out_once(tmp_path, monkeypatch):
    from sparsekit import digest

    file, memory = tmp_path / "file", tmp_path / "known.json"
    file.write_bytes(b"one")
    first = digest.KnownDigests(memory)
    assert first.of(file) == digest.sha256_of(b"one")
    first.keep()
    with monkeypatch.context() as patched:
        patched.setattr(digest, "file_sha256", pytest.fail)
        assert digest.KnownDigests(memory).of(file) == digest.sha256_of(b"one")
    file.write_bytes(b"two!")
    assert digest.KnownDigests(memory).of(file) == digest.sha256_of(b"two!")
    for rubbish in (b"", b"[]", b'{"x": 1}', b"\xff"):
        memory.write_bytes(rubbish)
        assert digest.KnownDigests(memory).of(file) == digest.sha256_of(b"two!")
    assert digest.KnownDigests(memory).of(tmp_path / "absent") is None


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


def test_the_hint_for_a_missing_nvrtc_names_it_as_toolchain_add_takes_it(run_cli):
    done = run_cli("build", "cu/sparse_prefill@nvrtc-99.1.2", "--arch", "8.0")
    assert done.returncode == 4
    assert "sparsekit toolchain add nvrtc==99.1.2" in done.stderr
