"""Bundles: what was built here is run there, and nothing else gets in."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest
from conftest import ROOT

from sparsekit.aot.execute import execute
from sparsekit.aot.plan import Planner
from sparsekit.discover import Catalog
from sparsekit.errors import StoreError, ToolchainError, UsageError
from sparsekit.model.arch import parse_archs
from sparsekit.settings import load
from sparsekit.store.bundle import export_bundle, import_bundle
from sparsekit.store.local import Store
from sparsekit.toolchain.find import Toolchains
from sparsekit.toolchain.imported import imported

zstandard = pytest.importorskip("zstandard")
SCALE = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"
ELSEWHERE = "nvrtc-13.9.9"  # a toolchain that no machine has


def jobs_for(archs):
    catalog = Catalog()
    planner = Planner(Toolchains(load()))
    plan = planner.plan(
        catalog.resolve([f"{SCALE}:plain"]), parse_archs(archs), every_instance=False
    )
    return [
        replace(j, toolchain=replace(j.toolchain, version="13.9.9", fingerprint="ab" * 32))
        for j in plan.jobs
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Artifacts that a toolchain made which is not here, and that toolchain."""
    store = Store(tmp_path_factory.mktemp("built"), lambda text: None)
    outcomes = list(execute(jobs_for("9.0 8.0"), store, workers=1))
    assert [o.error for o in outcomes] == [None, None]
    return [o.artifact for o in outcomes], outcomes[0].job.toolchain


@pytest.fixture
def bundle(built, tmp_path):
    artifacts, toolchain = built
    export_bundle(tmp_path / "out.tar.zst", artifacts, [toolchain])
    return tmp_path / "out.tar.zst"


@pytest.fixture
def store(tmp_path):
    (tmp_path / "there").mkdir(mode=0o700)
    return Store(tmp_path / "there", lambda text: None)


def test_artifacts_arrive_whole_and_once(built, bundle, store):
    result = import_bundle(bundle, store)
    assert len(result.new) == 2
    assert result.known == ()
    for artifact in built[0]:
        found = store.get(artifact.manifest.key)
        assert found.files == artifact.files
    again = import_bundle(bundle, store)
    assert (again.new, len(again.known)) == ((), 2)


def test_the_same_artifacts_give_the_same_bytes(built, tmp_path):
    artifacts, toolchain = built
    digests = {
        export_bundle(tmp_path / name, order, [toolchain])
        for name, order in (("a", artifacts), ("b", artifacts[::-1]))
    }
    assert len(digests) == 1


def test_the_toolchain_can_be_named_there_and_compiles_nothing(bundle, store):
    import_bundle(bundle, store)
    toolchains = Toolchains(load(cache_dir=store.root))
    named = toolchains.named("cuda", ELSEWHERE)
    assert (named.id, named.compiles, named.fingerprint) == (ELSEWHERE, False, "ab" * 32)
    assert toolchains.default("cuda").id != ELSEWHERE
    planner = Planner(toolchains)
    choices = Catalog().resolve([f"{SCALE}:plain@{ELSEWHERE}"])
    plan = planner.plan(choices, parse_archs("9.0 12.0"), every_instance=False)
    outcomes = {str(o.job.arch): o for o in execute(plan.jobs, store, workers=1)}
    assert outcomes["sm_90"].status == "cached"
    assert isinstance(outcomes["sm_120"].error, ToolchainError)
    assert "is not here to build it" in str(outcomes["sm_120"].error)
    assert f"@{ELSEWHERE} --arch sm_120" in str(outcomes["sm_120"].error)


def test_a_store_that_cannot_be_written_is_one_error(run_cli, bundle, tmp_path):
    (tmp_path / "file").write_text("")
    where = str(tmp_path / "file" / "store")
    done = run_cli("bundle", "import", str(bundle), "--cache-dir", where)
    assert done.returncode == 7
    assert done.stderr.count("cannot be written") == 1
    assert "name one of yours with --cache-dir" in done.stderr
    assert "is lost" not in done.stderr


def members(file):
    raw = zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        return [(m, archive.extractfile(m).read() if m.isreg() else b"") for m in archive]


def rewritten(file, change):
    """The bundle with its members changed by `change(list of (TarInfo, bytes))`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, content in change(members(file)):
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    file.write_bytes(zstandard.ZstdCompressor().compress(stream.getvalue()))


def named(name):
    def change(found):
        found[2][0].name = name
        return found

    return change


def flipped(suffix):
    def change(found):
        return [(m, bytes([c[0] ^ 1]) + c[1:] if m.name.endswith(suffix) else c) for m, c in found]

    return change


def linked(found):
    link = tarfile.TarInfo(found[2][0].name)
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return [*found[:2], (link, b""), *found[3:]]


def swapped(found):
    """The second artifact's files under the first one's key."""
    first, second = (found[1][0].name.split("/")[1], found[-1][0].name.split("/")[1])
    kept = [(m, c) for m, c in found if first not in m.name]
    for member, _ in kept:
        member.name = member.name.replace(second, first)
    return kept


def replaced(name, content):
    """The member of that name with other content."""

    def change(found):
        at = next(i for i, (m, _) in enumerate(found) if m.name.endswith(name))
        return [*found[:at], (found[at][0], content), *found[at + 1 :]]

    return change


WRONG = {
    "path out of the store": (named("../../etc/cron.d/x"), "belongs into no bundle"),
    "absolute path": (named("/etc/x"), "belongs into no bundle"),
    "folder in a key": (named("artifacts/" + "a" * 64 + "/b/c"), "belongs into no bundle"),
    "key that is none": (named("artifacts/zz/x"), "belongs into no bundle"),
    "hidden file": (named("artifacts/" + "a" * 64 + "/.x"), "belongs into no bundle"),
    "link": (linked, "no plain file"),
    "bit in a cubin": (flipped(".cubin"), "does not match its sha256"),
    "bit in the sums": (flipped("SHA256SUMS"), "is not what bundle.json speaks of"),
    "bit in the index": (flipped("bundle.json"), "is no bundle"),
    "another key's artifact": (swapped, "is not what bundle.json speaks of"),
    "file twice": (lambda found: [*found, found[-1]], "twice"),
    "artifact missing": (lambda f: [x for x in f if x[0].name.split("/")[-2:-1] != [
        f[-1][0].name.split("/")[1]]], "is cut off"),
    "index nested without end": (replaced("bundle.json", b"[" * 100_000), "nested too deeply"),
    "no index": (lambda found: found[1:], "is no bundle"),
    "stranger beside the artifact": (
        lambda f: [*f, (tarfile.TarInfo(f[-1][0].name.rpartition("/")[0] + "/more.py"), b"x")],
        "does not list more.py"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_does_not_belong_is_refused(bundle, store, wrong, tmp_path):
    change, told = WRONG[wrong]
    rewritten(bundle, change)
    with pytest.raises(StoreError, match=told):
        import_bundle(bundle, store)
    assert not (store.root / "toolchains").exists()
    assert not list((store.root / "staging").glob("*/*"))
    outside = {p.name for p in tmp_path.iterdir()}
    assert outside == {"out.tar.zst", "there"}
    for folder in (store.root / "v1").glob("??/*"):
        assert store.get(folder.name) is not None


@pytest.mark.parametrize("cut", [10, 500, -40])
def test_a_file_that_is_cut_off(bundle, store, cut):
    bundle.write_bytes(bundle.read_bytes()[:cut])
    with pytest.raises(StoreError):
        import_bundle(bundle, store)


def test_a_record_that_would_name_another_file_is_refused(built, store, tmp_path):
    artifacts, toolchain = built
    evil = replace(toolchain, version="../../x")
    export_bundle(tmp_path / "out", artifacts, [evil])
    with pytest.raises(StoreError, match="does not read"):
        import_bundle(tmp_path / "out", store)


def test_a_toolchain_record_nested_without_end_is_told_by_its_file(bundle, store):
    import_bundle(bundle, store)
    (file,) = (store.root / "toolchains").glob("*.json")
    file.write_text("[" * 100_000)
    with pytest.raises(StoreError, match="nested too deeply; remove it and import again"):
        list(imported(store.root, "cuda"))


def test_without_zstandard_the_package_is_named(built, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match="pip install"):
        export_bundle(tmp_path / "out", built[0], [built[1]])


def test_the_commands(run_cli, tmp_path):
    there = {"SPARSEKIT_CACHE_DIR": str(tmp_path / "there")}
    file = str(tmp_path / "out.tar.zst")
    done = run_cli("bundle", "export", file, str(SCALE))
    assert done.returncode == 4
    assert "sparsekit build" in done.stderr
    assert run_cli("build", str(SCALE), "--arch", "9.0").returncode == 0
    done = run_cli("bundle", "export", file, str(SCALE), "--format", "json")
    assert done.returncode == 0, done.stderr
    keys = json.loads(done.stdout)["artifacts"]
    done = run_cli("bundle", "import", file, "--format", "json", **there)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["new"] == sorted(keys)
    done = run_cli("build", str(SCALE), "--arch", "9.0", "--format", "json", **there)
    assert {a["status"] for a in json.loads(done.stdout)["artifacts"]} == {"cached"}
    done = run_cli("bundle", "import", str(SCALE / "spec.py"), **there)
    assert done.returncode == 7


def test_an_export_of_all_is_of_what_is_built_and_tells_the_rest(run_cli, tmp_path):
    file = tmp_path / "all.tar.zst"
    own = {"SPARSEKIT_CACHE_DIR": str(tmp_path / "own")}
    kernels = ("--kernels", str(SCALE))
    done = run_cli("bundle", "export", str(file), *kernels, **own)
    assert done.returncode == 4
    assert done.stderr.strip().endswith("nothing is built for these archs; sparsekit build")
    assert run_cli("build", str(SCALE), "--arch", "9.0", **own).returncode == 0
    done = run_cli("bundle", "export", str(file), *kernels, "--format", "json", **own)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["artifacts"]
    assert told["not_built"]
    assert all("scale" in job and "sm_90" not in job for job in told["not_built"])
    done = run_cli("bundle", "export", str(file), "cu/gated_pool_staged", **own)
    assert done.returncode == 4
    assert "nothing of cu/gated_pool_staged is built" in done.stderr
    done = run_cli("bundle", "export", str(file), "gated_pool@triton-0.0.1", **own)
    assert done.returncode == 4
    assert "toolchain add triton==0.0.1" in done.stderr
