"""References and the folders they lead to."""

from __future__ import annotations

import textwrap

import pytest

from sparsekit.discover import Catalog
from sparsekit.errors import SpecError, ToolchainError, UsageError
from sparsekit.model.reference import Reference, parse_reference

SPEC = """
from sparsekit.model import Arg, Entry, Kernel, Launch, Override, Variant

KERNEL = Kernel(
    lang="cuda", op={op!r}, source="kernel.cu", entries=(Entry("go", (Arg("kv", "*fp32"),)),),
    targets=("sm_80",), variants=({variants}),
    launches=lambda variant, call: (Launch("go", (1, 1, 1)),),
)
"""


@pytest.fixture
def make_folder(tmp_path):
    def make(
        name: str, op: str = "gated_pool", variants: str = 'Variant("plain"),', spec: str = ""
    ):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "kernel.cu").write_text(
            'extern "C" __global__ void go(float* kv) { kv[0] = 1; }\n'
        )
        (folder / "spec.py").write_text(spec or SPEC.format(op=op, variants=variants))
        return folder

    return make


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sparse_prefill", ("sparse_prefill", None, None)),
        ("cu/sparse_prefill:noskip", ("cu/sparse_prefill", "noskip", None)),
        ("gated_pool:unroll2@triton-3.8.0", ("gated_pool", "unroll2", "triton-3.8.0")),
        ("gated_pool@triton-3.8.0", ("gated_pool", None, "triton-3.8.0")),
        ("./my/kernel:plain", ("./my/kernel", "plain", None)),
        ("*_pool:un*", ("*_pool", "un*", None)),
        ("gated_pool@git:main", ("gated_pool", None, None, "main")),
        ("x:v@triton-3.8.0@git:v1.2~3", ("x", "v", "triton-3.8.0", "v1.2~3")),
    ],
)
def test_parts(text, parts):
    assert parse_reference(text) == Reference(*parts)


@pytest.mark.parametrize(
    "text", ["", "a b", ":plain", "gated_pool:", "@triton-3.8.0", "x@git:", "@git:main"]
)
def test_what_is_no_reference(text):
    with pytest.raises(UsageError):
        parse_reference(text)


def test_a_path_is_a_kernel_folder(make_folder):
    (choice,) = Catalog().resolve([str(make_folder("mine"))])
    assert (choice.kernel.name, choice.variants) == ("mine", ("plain",))


@pytest.mark.parametrize("name", ["w@2", "a:b", "mein küchen kernel", "w@2:plain", "x@nvrtc-1"])
def test_a_path_that_is_there_works_whatever_its_characters(
    name, make_folder, tmp_path, monkeypatch
):
    folder = make_folder(f"in w@2/{name}/mine")
    monkeypatch.chdir(tmp_path)
    relative = folder.relative_to(tmp_path)
    for path in (folder, relative, f"./{relative}"):
        (choice,) = Catalog().resolve([f"{path}:plain"])
        assert (choice.kernel.folder, choice.variants) == (folder, ("plain",))
        assert Catalog().resolve([f"{path}@nvrtc-13.0.88"])[0].toolchain == "nvrtc-13.0.88"
    monkeypatch.chdir(folder)
    assert Catalog().resolve(["."])[0].kernel.folder == folder


def test_a_folder_that_looks_like_a_name_is_written_with_a_dot(make_folder, tmp_path, monkeypatch):
    make_folder("mine")
    make_folder("cu/mine")
    make_folder("my own")
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "cu/mine"):
        with pytest.raises(UsageError, match=rf"for the folder write \./{name}"):
            Catalog().resolve([name])
        assert Catalog().resolve([f"./{name}"])[0].kernel.name == "mine"
    assert Catalog().resolve(["my own"])[0].kernel.name == "my own"


def test_a_toolchain_of_another_language_is_never_dropped(make_folder):
    with pytest.raises(ToolchainError, match="compiles no cuda kernels"):
        Catalog().resolve(["sparse_prefill@triton-3.8.0", "gated_pool"])
    choices = Catalog().resolve(["*@triton-3.8.0"])
    assert {c.kernel.lang for c in choices} == {"triton"}


def test_a_home_that_is_not_there():
    with pytest.raises(UsageError, match="no_such_user"):
        Catalog().resolve(["~no_such_user/x"])


def test_a_path_without_a_spec(tmp_path):
    with pytest.raises(UsageError, match=r"spec\.py"):
        Catalog().resolve([str(tmp_path)])


def test_named_folders_count_like_shipped_ones(make_folder, tmp_path):
    make_folder("kernels/mine", variants='Variant("a"), Variant("b"),')
    catalog = Catalog([tmp_path / "kernels"])
    assert [c.kernel.name for c in catalog.resolve(["cu/mine"])] == ["mine"]
    assert catalog.resolve(["mine:b"])[0].variants == ("b",)
    assert {"mine"} <= {c.kernel.name for c in catalog.resolve(["gated_pool"])}


def test_kernels_for_some_calls_go_first_and_then_those_for_fewer_targets(make_folder, tmp_path):
    def spec(*targets: str, made_for: str = "") -> str:
        text = SPEC.format(op="gated_pool", variants='Variant("plain"),')
        text = text.replace('("sm_80",)', str(targets))
        some = f"made_for={made_for!r}, reject=lambda variant, call: None, launches="
        return text.replace("launches=", some) if made_for else text

    make_folder("kernels/all", spec=spec("sm_80"))
    make_folder("kernels/few", spec=spec("sm_80", made_for="few rows"))
    make_folder("kernels/anywhere", spec=spec("sm_80", "sm_90"))
    make_folder("kernels/few_anywhere", spec=spec("sm_80", "sm_90", made_for="few rows"))
    found = [c.kernel.name for c in Catalog([tmp_path / "kernels"]).resolve(["gated_pool"])]
    assert found == ["few", "few_anywhere", "gated_pool_staged", "all", "anywhere", "gated_pool"]


def test_the_working_directory_is_never_scanned(make_folder, tmp_path, monkeypatch):
    make_folder("kernels_cu/mine")
    monkeypatch.chdir(tmp_path)
    assert "mine" not in {k.name for k in Catalog().kernels}


def test_ambiguity_names_the_candidates(make_folder, tmp_path):
    make_folder("a/mine")
    make_folder("b/mine")
    with pytest.raises(UsageError, match=r"ambiguous.*a/mine.*b/mine"):
        Catalog([tmp_path / "a", tmp_path / "b"]).resolve(["cu/mine"])


def test_unknown_names_and_variants(make_folder, tmp_path):
    make_folder("kernels/mine")
    catalog = Catalog([tmp_path / "kernels"])
    with pytest.raises(UsageError, match=r"nothing is called 'ours'.*mine"):
        catalog.resolve(["ours"])
    with pytest.raises(UsageError, match="variants plain"):
        catalog.resolve(["cu/mine:fast"])


BROKEN = {
    "import os\nKERNEL = None": r"spec\.py:1: imports os",
    "from sparsekit import settings": "imports sparsekit",
    "KERNEL = open('x')": "open is not allowed",
    "KERNEL = ().__class__": "__class__ is not allowed",
    "KERNEL = 3": "must bind KERNEL to a Kernel, found a int",
    "x = (": r"spec\.py:1: .*never closed",
    "\n\nKERNEL = 1 / 0": r"spec\.py:3: ZeroDivisionError",
}


@pytest.mark.parametrize("source", BROKEN)
def test_a_broken_spec_is_a_finding(source, make_folder, tmp_path):
    make_folder("kernels/mine", spec=source)
    make_folder("kernels/other")
    catalog = Catalog([tmp_path / "kernels"])
    assert "other" in {k.name for k in catalog.kernels}
    (broken,) = catalog.broken
    with pytest.raises(SpecError, match=BROKEN[source]):
        raise SpecError(broken.reason)
    with pytest.raises(SpecError):  # and an error when it is the one that is named
        catalog.resolve(["mine"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("Variant(\"plain\")", "Variant(\"plain\", same_bits_as=\"fast\")"), "same_bits_as"),
        (("Variant(\"plain\")", "Variant(\"plain\", same_bits_as=\"cu/a b\")"), "same_bits_as"),
        (("\"*fp32\"", "\"*fp33\""), "unknown type"),
        (("\"*fp32\"", "\"*{kv}\""), "gives no element type"),
        (("\"sm_80\"", "\"sm_8a\""), "unknown arch"),
        (("kernel.cu", "absent.cu"), "does not exist"),
        (("kernel.cu", "../kernel.cu"), "source"),
        (("gated_pool", "no_such_op"), "unknown op"),
        (("Variant(\"plain\")", "Variant(\"plain\", {\"N\": 1, \"n\": 2})"), "differ in case only"),
        ((
            "Variant(\"plain\")",
            "Variant(\"plain\", {\"N\": 1}, overrides=(Override({\"M\": 2}),))",
        ), "an override sets 'M'"),
        ((
            "Variant(\"plain\")",
            "Variant(\"plain\", {\"N\": 1}, overrides=(Override({}, instance={\"d\": 1}),))",
        ), "an override is for 'd'"),
        (("(\"sm_80\",)", "()"), "targets is empty"),
    ],
)  # fmt: skip
def test_a_spec_must_hold_together(change, told, make_folder):
    spec = SPEC.format(op="gated_pool", variants='Variant("plain"),').replace(*change)
    assert spec != SPEC.format(op="gated_pool", variants='Variant("plain"),')
    with pytest.raises(SpecError, match=told):
        Catalog().resolve([str(make_folder("mine", spec=spec))])


def test_a_folder_may_bring_its_own_op(make_folder):
    folder = make_folder("mine", op="copy")
    (folder / "op.py").write_text(
        textwrap.dedent("""
        from sparsekit.model import Case, Op, Tensor, Work
        OP = Op("Copies.", (Tensor("kv", ("n",), ("fp32",)),), (Tensor("out", ("n",), ("fp32",)),),
                (Case("small", {"n": 4}, ("smoke",)),), work=lambda case: Work(0, 8))
        """)
    )
    (choice,) = Catalog().resolve([str(folder)])
    assert (choice.op.name, choice.op.folder) == ("copy", folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('Arg("kv", "*fp32")', 'Arg("s", "i64", "nope.stride(0)")'), "has no tensor 'nope'"),
        (('Arg("kv", "*fp32")', 'Arg("s", "i64", "kv.stride(3)")'), r"has no kv\.stride\(3\)"),
        (("targets=", 'instances=(Instance(constants={"d": 1}),), targets='), "or has_X 'd'"),
        (("targets=", 'instances=(Instance({"x": "fp32"}),), targets='), "has no tensor 'x'"),
    ],
)
def test_a_spec_must_fit_its_op(change, told, make_folder):
    spec = SPEC.format(op="gated_pool", variants='Variant("plain"),').replace(*change)
    spec = spec.replace("Kernel, Launch", "Instance, Kernel, Launch", 1)
    with pytest.raises(SpecError, match=told):
        Catalog().resolve([str(make_folder("mine", spec=spec))])


def test_one_folder_that_does_not_fit_leaves_the_others_alone(make_folder, tmp_path):
    make_folder("kernels/stranger", op="no_such_op")
    make_folder("kernels/usurper", op="gated_pool")
    (tmp_path / "kernels" / "usurper" / "op.py").write_text("OP = 3\n")
    make_folder("kernels/halved", op="halved")
    (tmp_path / "kernels" / "halved" / "op.py").write_text("OP = (\n")
    make_folder("kernels/other")
    catalog = Catalog([tmp_path / "kernels"])
    reasons = {b.folder.name: b.reason for b in catalog.broken}
    assert set(reasons) == {"stranger", "usurper", "halved"}
    assert "is a shipped op" in reasons["usurper"]
    names = {c.kernel.name for c in catalog.resolve([])}
    assert {"other", "gated_pool", "sparse_prefill"} <= names
    assert catalog.ops["gated_pool"].folder.parent.name == "ops"
