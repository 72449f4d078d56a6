"""Why code differs: the values of arguments, the parts of a toolchain, and where it rounds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.aot.assemble import assemble, triton_options
from sparsekit.aot.elf import read_cubin
from sparsekit.codegen.audit import NO_MULTIPLE, Audited, Specialisation
from sparsekit.codegen.ledger import Ledger, Name, Resources
from sparsekit.errors import CompileError, ToolchainError
from sparsekit.model.kernel import Arg, Instance
from sparsekit.report.causes import audit_document
from sparsekit.settings import load
from sparsekit.toolchain.find import Toolchains

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
CUDA, TRITON = str(KERNELS / "rounding_cu"), str(KERNELS / "rounding_triton")


@pytest.fixture
def inspect(run_cli):
    def run(*args: str, code: int = 0, arch: str = "9.0", **env: str) -> dict:
        done = run_cli("inspect-sass", *args, "--arch", arch, "--format", "json", **env)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}

    return run


@pytest.fixture
def copied(tmp_path):
    """A copy of a kernel folder elsewhere, with some text of its spec replaced."""

    def copy(folder: str, name: str, *replacements: tuple[str, str]) -> str:
        there = tmp_path / "copies" / name
        shutil.copytree(folder, there)
        spec = there / "spec.py"
        text = spec.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        spec.write_text(text)
        return str(there)

    return copy


def changes(inspect, ours: str, base: str) -> dict[str, tuple[str, str]]:
    (entry,) = inspect(ours, "--against", base, "--numerics")["numerics"]
    return {c["what"]: (c["before"], c["now"]) for c in entry["changes"]}


class TestAudit:
    def test_a_page_stride_of_a_kernel_outside_the_repository(self, inspect, copied, run_cli):
        outside = copied(str(KERNELS / "paged_triton"), "my_pages")
        found = inspect(outside, "--audit")["audit"]
        states = {(a["argument"], a["state"]): a for a in found}
        assert len(states) == 7  # three pointers; a stride and a count, each twice
        stride = states["page_stride", "not a multiple of 16"]
        assert "gather.min_bytes 16 -> 2" in stride["bad"]
        assert "tl.multiple_of(page_stride, 16)" in stride["fix"]
        assert "pad the stride" in stride["fix"]
        pointer = states["pool_ptr", "not a multiple of 16"]
        assert "gather.min_bytes 16 -> 2" in pointer["bad"]
        assert "assert that pool_ptr lies at a multiple of 16 bytes" in pointer["fix"]
        assert states["count", "not a multiple of 16"]["bad"] == []
        assert states["page_ptr", "not a multiple of 16"]["fix"] is None
        shown = run_cli("inspect-sass", outside, "--audit", "--arch", "9.0", "--github")
        assert "7 specialisations of 7 entries tried" in shown.stdout
        assert "::warning file=" in shown.stderr

    def test_an_argument_that_the_spec_always_promises_is_not_varied(self, inspect, copied):
        stride = 'Arg("page_stride", "i64", "pool.stride(0)"'
        promised = copied(str(KERNELS / "paged_triton"), "promised",
                          (stride, f"{stride}, divisible_by=16"))  # fmt: skip
        found = inspect(promised, "--audit")["audit"]
        assert "page_stride" not in {a["argument"] for a in found}

    def test_instances_that_agree_share_a_row(self):
        resources = Resources(**dict.fromkeys(Resources.__dataclass_fields__, 0))
        stride = Specialisation(Arg("stride", "i64"), NO_MULTIPLE, Instance())
        found = [
            Audited(stride, Ledger(Name("k", "v", i, "sm_90a", "triton-3.7.1", "e"), resources,
                                   None, None), reasons)
            for i, reasons in (("a", ("spills 0 -> 8",)), ("b", ("spills 0 -> 8",)), ("c", ()))
        ]  # fmt: skip
        table, line = audit_document(found).parts
        assert [(row[3], row[5], row[-1]) for row in table.rows] == [("stride", "spills 0 -> 8", 2)]
        assert line.lines == ("1 specialisations of 3 entries tried, 2 are bad",)

    def test_a_cuda_kernel_has_nothing_to_audit(self, inspect):
        assert "is for Triton kernels" in inspect(CUDA, "--audit", code=2)["stderr"]


class TestNumerics:
    @pytest.mark.parametrize("language", ["cuda", "triton"])
    def test_fused_multiply_add_off(self, inspect, copied, language):
        """Off is what Triton announces as its default from 3.10 on."""
        folder, option = (
            (CUDA, '{"fmad": False}') if language == "cuda"
            else (TRITON, '{"enable_fp_fusion": False}')
        )  # fmt: skip
        off = copied(folder, "off", ("options={}", f"options={option}"))
        found = changes(inspect, f"{off}:plain", f"{folder}:plain")
        assert found["multiply-add"] == (
            "fused, one rounding", "products are rounded before they are added",
        )  # fmt: skip
        back = changes(inspect, f"{folder}:plain", f"{off}:plain")
        assert back["multiply-add"][1] == "fused, one rounding"

    def test_exact_and_approximate_exponential(self, inspect):
        found = changes(inspect, f"{CUDA}:plain", f"{CUDA}:exact_exp")
        assert found == {
            "exponential": (
                "exact (range reduction, then ex2)", "approximate (ex2 of a product)",
            )
        }  # fmt: skip

    def test_exact_and_approximate_division(self, inspect, copied):
        quick = copied(CUDA, "quick", ("options={}", 'options={"prec_div": False}'))
        found = changes(inspect, f"{quick}:divided", f"{CUDA}:divided")
        assert found["division and roots"] == ("refined", "approximate")

    def test_flushing_subnormals(self, inspect, copied):
        flushing = copied(CUDA, "ftz", ("options={}", 'options={"ftz": True}'))
        before, now = changes(inspect, f"{flushing}:plain", f"{CUDA}:plain")["subnormals"]
        assert before == "kept"
        assert now.startswith("flushed in ")

    def test_tensor_types(self, inspect, copied):
        tf32 = copied(TRITON, "tf32", ('{"a": "bf16", "b": "bf16"}', '{"a": "fp32", "b": "fp32"}'))
        before, now = changes(inspect, f"{tf32}:plain", f"{TRITON}:plain")["matrix instructions"]
        assert "BF16" in before
        assert "TF32" in now

    def test_a_sum_that_became_a_tree(self, inspect):
        found = changes(inspect, f"{CUDA}:tree", f"{CUDA}:plain")
        assert found == {
            "order of sums": ("one value after the other", "partial sums joined (a tree)")
        }

    @pytest.mark.parametrize("arch", ["8.0", "10.0"])
    def test_a_renamed_kernel_changes_nothing(self, run_cli, tmp_path, arch, copied):
        renamed = Path(copied(CUDA, "renamed", ('Entry("weighted"', 'Entry("another_name"'),
                              ('Launch("weighted"', 'Launch("another_name"')))  # fmt: skip
        source = renamed / "kernel.cu"
        source.write_text(source.read_text().replace("weighted(", "another_name("))
        done = run_cli("inspect-sass", f"{renamed}:plain", "--against", f"{CUDA}:plain",
                       "--numerics", "--arch", arch, "--format", "json")  # fmt: skip
        data = json.loads(done.stdout)
        assert [n["changes"] for n in data["numerics"]] == [[]]
        assert data["comparisons"][0]["verdict"] in ("identical code", "same instructions")

    def test_unrolling_alone_changes_nothing(self, inspect):
        assert changes(inspect, "gated_pool:unroll2", "gated_pool:plain") == {}

    def test_a_base_is_needed(self, inspect):
        assert "goes with --against" in inspect(f"{CUDA}:plain", "--numerics", code=2)["stderr"]


@pytest.mark.toolchains
class TestBlame:
    @pytest.fixture
    def data_dir(self, toolchain_data_dir):
        return {"SPARSEKIT_DATA_DIR": str(toolchain_data_dir)}

    def test_the_front_end_lost_the_loop_of_gated_pool(self, inspect, data_dir):
        found = inspect(
            "gated_pool:plain@triton-3.8.0", "--against", "gated_pool:plain@triton-3.6.0",
            "--blame", arch="8.0", **data_dir,
        )  # fmt: skip
        (blame,) = found["blame"]
        assert blame["reproduced"] == {"base": True, "ours": True}
        causes = {d["fact"]: (d["before"], d["now"], d["cause"]) for d in blame["differences"]}
        assert causes["loop0.loads"] == (4, 1, "front end")
        assert {cause for _, _, cause in causes.values()} == {"front end"}
        refused = [c for c in blame["cells"] if c["problem"]]
        assert {(c["ptx"], c["ptxas"]) for c in refused} == {("ours", "base")}
        assert "Unsupported .version 8.8; current version is '8.7'" in refused[0]["problem"]

    @pytest.mark.parametrize("version", ["triton-3.6.0", "triton-3.8.0"])
    @pytest.mark.parametrize("arch", ["8.0", "9.0", "10.0"])
    def test_our_options_are_those_of_each_triton(self, run_cli, tmp_path, data_dir, version, arch):
        """Its PTX assembled again is its cubin, byte for byte."""
        done = run_cli("build", f"gated_pool:plain@{version}", "--arch", arch, "--format", "json",
                       **data_dir)  # fmt: skip
        (artifact,) = json.loads(done.stdout)["artifacts"]
        folder = tmp_path / "store" / "v1" / artifact["key"][:2] / artifact["key"]
        ptx = (folder / "gated_pool_fwd.ptx").read_text()
        site = Path(data_dir["SPARSEKIT_DATA_DIR"]) / "toolchains" / version
        toolchain = toolchain_of(site)
        major, _, minor = arch.partition(".")
        ptxas = toolchain.assembler_for((int(major), int(minor)))
        image = assemble(
            ptxas, ptx, artifact["arch"], triton_options(toolchain, fp_fusion=True)
        ).image
        cubin = (folder / "gated_pool_fwd.cubin").read_bytes()
        ours = read_cubin(image).entries["gated_pool_fwd"]
        assert ours.text_sha256 == read_cubin(cubin).entries["gated_pool_fwd"].text_sha256

    def test_blame_is_for_triton(self, inspect, data_dir):
        found = inspect(f"{CUDA}:plain", "--against", f"{CUDA}:tree", "--blame", code=2, **data_dir)
        assert "compares what two Tritons build" in found["stderr"]


def toolchain_of(site: Path):
    from sparsekit.toolchain.find import toolchain_at

    found = toolchain_at("triton", [str(site)])
    assert found is not None
    return found


def test_what_ptxas_refuses_is_told_short():
    ptxas = Toolchains(load()).default("triton").newest_assembler
    with pytest.raises(CompileError, match="refuses the PTX"):
        assemble(ptxas, ".version 99.9\n.target sm_90\n.address_size 64\n", "sm_90", ())
    good = ".version 8.0\n.target sm_90\n.address_size 64\n"
    with pytest.raises(ToolchainError, match="does not know sm_999"):
        assemble(ptxas, good, "sm_999", ())
    with pytest.raises(ToolchainError, match="does not run"):
        assemble(Path("/nonexistent/ptxas"), good, "sm_90", ())
