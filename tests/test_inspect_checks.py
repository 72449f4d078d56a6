"""What generated code is held against: another build, requirements, a lock, other toolchains."""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import ROOT

from sparsekit.codegen.facts import KINDS, facts_of, is_worse, kind_of
from sparsekit.codegen.ledger import Ledger, Name, Resources
from sparsekit.codegen.regression import bad, rows
from sparsekit.codegen.requirements import check, parse_requirement
from sparsekit.errors import UsageError

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
GATHER, TWO, SCALE = (str(KERNELS / n) for n in ("gather_cu", "two_entries", "scale_cu"))


@pytest.fixture
def inspect(run_cli):
    def run(*args: str, code: int = 0, **env: str) -> dict:
        done = run_cli("inspect-sass", *args, "--arch", "9.0", "--format", "json", **env)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}

    return run


def verdicts(data: dict) -> list[str]:
    return [c["verdict"] for c in data["comparisons"]]


def test_the_gather_that_fell_apart_is_different_and_fails_the_gate(inspect):
    """Four 4-byte loads move the same bytes, and a tool that adds them up sees no change."""
    good = inspect(f"{GATHER}:wide", "--require", "gather.min_bytes>=16")
    (entry,) = good["entries"]
    assert set(entry["gathers"]["LDG"]) == {"16"}
    assert good["findings"] == []
    found = inspect(f"{GATHER}:narrow", "--against", f"{GATHER}:wide",
                    "--require", "gather.min_bytes>=16", code=1)  # fmt: skip
    assert verdicts(found) == ["different"]
    (failed,) = [f for f in found["findings"] if f["level"] == "error"]
    assert failed["message"] == "required gather.min_bytes>=16, found 4"
    assert failed["source"].endswith("gather_cu/kernel.cu")
    worse = {d["fact"] for d in found["comparisons"][0]["differences"] if d["worse"]}
    assert {"gather.min_bytes", "gather.mean_bytes"} <= worse


def test_line_info_and_another_folder_leave_identical_code(inspect, tmp_path, run_cli):
    copy = tmp_path / "elsewhere" / "gather_cu"
    shutil.copytree(KERNELS / "gather_cu", copy)
    inspect(f"{copy}:wide", "--lineinfo")
    lined = next(
        f for f in (tmp_path / "store").glob("v1/*/*/kernel.cubin")
        if json.loads((f.parent / "manifest.json").read_text())["identity"]["lineinfo"]
    )  # fmt: skip
    found = inspect(str(lined), "--against", f"{GATHER}:wide")
    assert verdicts(found) == ["identical code"]
    assert lined.read_bytes() != b""


def test_the_same_code_under_another_variant_is_identical(inspect):
    assert verdicts(inspect(f"{GATHER}:renamed", "--against", f"{GATHER}:wide")) == [
        "identical code"
    ]


def test_the_gate_fails_on_the_second_entry_alone(inspect):
    found = inspect(TWO, "--require", "spills==0", code=1)
    assert [f["entry"] for f in found["findings"]] == ["spilling"]


def test_no_counterpart_is_said(inspect):
    found = inspect(f"{GATHER}:wide", "--against", TWO)
    assert verdicts(found) == [None]
    assert found["comparisons"][0]["against"] is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gather.min_byte>=16", "did you mean gather.min_bytes"),
        ("spils==0", "did you mean spills"),
        ("spills=0", "expected FACT RELATION VALUE"),
        ("spills==none", "expected a number"),
        ("text_sha256>=3", "compared with == or !="),
        ("bank_conflicts==0", "there is no fact"),
    ],
)
def test_a_requirement_that_means_nothing_is_exit_2(inspect, text, told):
    assert told in inspect(f"{GATHER}:wide", "--require", text, code=2)["stderr"]


def test_a_fact_that_no_entry_has_is_exit_2(inspect):
    found = inspect(f"{SCALE}:plain", "--require", "gather.min_bytes>=16", code=2)
    assert "none of the 1 entries has gather.min_bytes" in found["stderr"]
    found = inspect(f"{SCALE}:plain", "--require", "loop7.loads>=1", code=2)
    assert "so nothing was checked" in found["stderr"]


def test_counts_of_what_is_not_there_are_0(inspect):
    inspect(f"{GATHER}:wide", "--require", "sass.LDG.w2==0", "--require", "sass.LDG.w16>=1")
    inspect(f"{GATHER}:wide", "--require", "ptx.ld.global.w2==0")
    inspect(f"{GATHER}:wide", "--require", "sass.LDG.w2>0", code=1)


def test_annotations_and_sarif(run_cli, tmp_path):
    args = ("inspect-sass", f"{GATHER}:narrow", "--arch", "9.0", "--require", "gather.min_bytes>=8")
    done = run_cli(*args, "--github")
    assert done.returncode == 1
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("::error ")]
    assert "file=tests/fixtures/kernels/gather_cu/kernel.cu," in line
    assert "required gather.min_bytes>=8, found 4" in line
    file = tmp_path / "out.sarif"
    assert run_cli(*args, "--format", "sarif", "-o", str(file)).returncode == 1
    log = json.loads(file.read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (result,) = run["results"]
    assert result["ruleId"] in [r["id"] for r in run["tool"]["driver"]["rules"]]
    assert result["level"] == "error"
    (location,) = result["locations"]
    uri = location["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "tests/fixtures/kernels/gather_cu/kernel.cu"
    markdown = run_cli(*args, "--format", "markdown").stdout
    assert "### Failed" in markdown


def test_dump_marks_the_loads(run_cli):
    done = run_cli("inspect-sass", f"{GATHER}:wide", "--arch", "9.0", "--dump", "sass")
    assert "<-- gather 16 B" in done.stdout
    assert "<-- load 4 B" in done.stdout
    lined = run_cli(
        "inspect-sass", f"{GATHER}:wide", "--arch", "9.0", "--dump", "ptx", "--lineinfo"
    )
    assert "<-- load at" in lined.stdout
    assert "kernel.cu:" in lined.stdout


class TestLock:
    @pytest.fixture
    def lock(self, run_cli, tmp_path):
        file = tmp_path / "codegen.lock.json"

        def run(command: str, *args: str, code: int = 0):
            option = "-o" if command == "lock" else "--lock-file"
            done = run_cli(command, *args, option, str(file))
            assert done.returncode == code, done.stdout + done.stderr
            return done

        run.file = file
        return run

    def edit(self, lock, fact: str, value: object) -> None:
        text = json.loads(lock.file.read_text())
        for facts in text["entries"].values():
            facts[fact] = value
        lock.file.write_text(json.dumps(text))

    def test_only_what_got_worse_fails(self, lock):
        lock("lock", f"{GATHER}:wide", "--arch", "9.0")
        assert "0 facts worse" in lock("inspect-sass", "--locked").stdout
        self.edit(lock, "registers", 255)  # ours is better now
        self.edit(lock, "instructions_sha256", "other")
        assert (
            "1 entries with other code that is no worse" in lock("inspect-sass", "--locked").stdout
        )
        self.edit(lock, "gather.min_bytes", 32)
        found = lock("inspect-sass", "--locked", code=1).stdout
        assert "gather.min_bytes was 32, is 16" in found

    def test_gathers_that_are_gone_are_worse(self, lock):
        lock("lock", f"{SCALE}:plain", "--arch", "9.0")
        self.edit(lock, "gather.min_bytes", 16)
        found = lock("inspect-sass", "--locked", code=1).stdout
        assert "gather.min_bytes was 16, is not there any more" in found

    def test_accepting_keeps_the_reason(self, lock):
        lock("lock", f"{GATHER}:wide", "--arch", "9.0")
        self.edit(lock, "registers", 1)
        lock("inspect-sass", "--locked", code=1)
        lock("inspect-sass", "--locked", "--accept", "the index is 64-bit now")
        (accepted,) = json.loads(lock.file.read_text())["accepted"]
        assert accepted["fact"] == "registers"
        assert accepted["from"] == 1
        assert accepted["reason"] == "the index is 64-bit now"
        lock("inspect-sass", "--locked")
        lock("lock", f"{GATHER}:wide", "--arch", "9.0")
        assert json.loads(lock.file.read_text())["accepted"] == [accepted]

    def test_what_the_lock_has_not_is_said(self, lock):
        lock("lock", f"{GATHER}:wide", "--arch", "8.0;9.0")
        more = lock("inspect-sass", GATHER, "--arch", "9.0", "--locked").stdout
        assert "not in the lock" in more
        assert "in the lock and not made" not in more  # sm_80 was not asked for
        text = json.loads(lock.file.read_text())
        made = next(iter(text["entries"]))
        text["entries"][made.replace("] ", "] gone_", 1)] = text["entries"][made]
        other = made.replace(":wide", ":none", 1)
        text["entries"][other] = text["entries"][made]
        lock.file.write_text(json.dumps(text))
        named = lock("inspect-sass", f"{GATHER}:wide", "--arch", "8.0;9.0", "--locked").stdout
        assert "in the lock and not made: " in named
        assert "gone_" in named
        assert other not in named
        assert other in lock("inspect-sass", "--locked").stdout
        none = lock("inspect-sass", f"{GATHER}:narrow", "--arch", "9.0", "--locked", code=2)
        assert "so nothing was checked" in none.stderr

    def test_files_that_are_no_lock(self, lock):
        assert "sparsekit lock writes it" in lock("inspect-sass", "--locked", code=2).stderr
        lock.file.write_text('{"schema": 7}')
        assert "does not read" in lock("inspect-sass", "--locked", code=2).stderr

    def test_accept_needs_locked(self, run_cli):
        done = run_cli("inspect-sass", f"{GATHER}:wide", "--arch", "9.0", "--accept", "why not")
        assert done.returncode == 2


class TestOurLock:
    """codegen.lock.json of the repository against what is built here."""

    def locked(self, run_shipped, *args: str, **env: str) -> dict:
        done = run_shipped(
            "inspect-sass", "--locked", *args, "--format", "json", timeout=1800, **env
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        data = json.loads(done.stdout)
        assert data["lock"]["unknown"] == []
        assert data["lock"]["missing"] == []
        return data

    @pytest.mark.parametrize(
        "archs", ["9.0;12.0", pytest.param("8.0;9.0;10.0;12.0", marks=pytest.mark.slow)]
    )
    def test_the_installed_compilers(self, run_shipped, archs):
        listed = json.loads(run_shipped("toolchain", "list", "--format", "json").stdout)[
            "toolchains"
        ]
        installed = [t["id"] for t in listed if not t["added"]]
        data = self.locked(run_shipped, "--toolchain", ",".join(installed), "--arch", archs)
        assert {e["toolchain"] for e in data["entries"]} == set(installed)
        assert len({e["arch"] for e in data["entries"]}) >= len(archs.split(";"))

    @pytest.mark.toolchains
    @pytest.mark.parametrize(
        ("archs", "entries"),
        [("9.0", 40), pytest.param("8.0;9.0;10.0;12.0", 160, marks=pytest.mark.slow)],
    )
    def test_the_other_tritons(self, run_shipped, toolchain_data_dir, archs, entries):
        data = self.locked(
            run_shipped, "--toolchain", "triton-3.6.0,triton-3.8.0", "--arch", archs,
            SPARSEKIT_DATA_DIR=str(toolchain_data_dir),
        )  # fmt: skip
        assert len(data["entries"]) == entries


def ledger(toolchain: str, arch: str = "sm_90", **resources: int) -> Ledger:
    known = dict.fromkeys(Resources.__dataclass_fields__, 0) | resources
    name = Name("k", "v", "", arch, toolchain, "entry")
    return Ledger(name, Resources(**known), None, None)


def test_the_first_bad_release_is_named_by_arch():
    found = [
        ledger("triton-3.10.0", registers=70), ledger("triton-3.6.0", registers=32),
        ledger("triton-3.8.0", registers=64), ledger("triton-3.6.0", "sm_80", registers=32),
        ledger("triton-3.8.0", "sm_80", registers=40),
    ]  # fmt: skip
    toolchains, made = rows(found)
    assert toolchains == ["triton-3.6.0", "triton-3.8.0", "triton-3.10.0"]
    assert [(r.some.name.arch, r.first_bad, r.worst) for r in made] == [
        ("sm_90", "triton-3.8.0", ("triton-3.10.0",)), ("sm_80", None, ()),
    ]  # fmt: skip
    assert made[0].reasons == ("registers 32 -> 64",)
    assert made[1].cells["triton-3.10.0"] is None


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"gather.min_bytes": 16}, {"gather.min_bytes": 2}, ("gather.min_bytes 16 -> 2",)),
        ({"registers": 40}, {"registers": 79}, ()),
        ({"spills": 0}, {"spills": 8}, ("spills 0 -> 8",)),
        ({"spills": 8}, {"spills": 8}, ()),
        ({"loops.min_load_bytes": 32}, {"loops.min_load_bytes": 8},
         ("loops.min_load_bytes 32 -> 8",)),
        ({}, {"gather.min_bytes": 2}, ()),
    ],
)  # fmt: skip
def test_bad(before, now, found):
    assert bad(before, now) == found


def test_worse_has_a_direction():
    assert is_worse("gather.min_bytes", 16, 8)
    assert not is_worse("gather.min_bytes", 8, 16)
    assert is_worse("registers", 32, 33)
    assert not is_worse("instructions", 100, 200)
    assert not is_worse("registers", None, 33)


def test_every_fact_of_an_entry_is_in_the_vocabulary(inspect):
    (entry,) = inspect(f"{GATHER}:wide")["entries"]
    for name in entry["facts"]:
        kind_of(name)
    assert len({k.form for k in KINDS}) == len(KINDS)


def test_every_fact_is_documented():
    text = (ROOT / "docs" / "inspect.md").read_text()
    assert [k.form for k in KINDS if k.about not in text] == []


def test_a_requirement_that_some_entries_lack_says_so():
    has = ledger("t-1", spill_store_bytes=8)
    lacks = ledger("t-1", spill_store_bytes=None)
    findings, remarks = check([parse_requirement("spill_store_bytes==0")], [has, lacks])
    assert [f.message for f in findings] == ["required spill_store_bytes==0, found 8"]
    assert "says nothing of 1 entries" in remarks[0]
    with pytest.raises(UsageError, match="nothing was checked"):
        check([parse_requirement("spills==0")], [lacks])


def test_unknown_figures_stay_unknown():
    assert facts_of(ledger("t-1", spill_store_bytes=None))["spills"] is None
