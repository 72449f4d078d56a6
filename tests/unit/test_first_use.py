"""A kernel where it never ran: checked once, and not used where it failed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

from sparsekit.discover import Catalog
from sparsekit.errors import EXIT_CHECK_FAILED, SpecError
from sparsekit.model.arch import parse_arch
from sparsekit.model.call import Call, Device
from sparsekit.operators.acquire import Acquirer
from sparsekit.operators.first_use import FirstUse, Outcome, _judged
from sparsekit.runtime.select import Candidate
from sparsekit.store.notes import Notes

SCALE = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"
GPU = Device((9, 0), 132, 232448, 0, "Told GPU", uuid="ab" * 16, driver="580.1")
CALL = Call(
    {"rows": 2, "columns": 64}, {"x": "fp32", "out": "fp32"}, {"x": (2, 64), "out": (2, 64)},
    {"x": (64, 1), "out": (64, 1)}, {"x": 256, "out": 256}, {"alpha": 2.0}, GPU,
)  # fmt: skip


def artifact(*digests: str):
    entries = [SimpleNamespace(cubin_sha256=d) for d in digests]
    return SimpleNamespace(manifest=SimpleNamespace(entries=entries))


@dataclass
class Told(FirstUse):
    """What a first use comes to is told by the test, which counts how often it is asked."""

    notes: Notes
    outcome: Outcome
    asked: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(self.notes)

    def _tried(self, candidate, device):
        self.asked.append(candidate.kernel.name)
        return self.outcome


@pytest.fixture
def kernels(tmp_path) -> Path:
    """A portable kernel, and one for one target that has run nowhere."""
    folder = tmp_path / "kernels"
    shutil.copytree(SCALE, folder / "scale_cu")
    shutil.copytree(SCALE, folder / "scale_new", ignore=shutil.ignore_patterns("op.py", "ref*"))
    spec = folder / "scale_new" / "spec.py"
    text = spec.read_text().replace("targets=PORTABLE_CUDA_TARGETS", "targets=('sm_90',)")
    spec.write_text(text.replace("launches=lambda", "proven_on=(), launches=lambda"))
    return folder


class Prepares(Acquirer):
    """Takes any job for built and loaded: its artifact is the name of its kernel."""

    def _job(self, candidate, *, ptx=False):
        return SimpleNamespace(
            key=candidate.kernel.name, toolchain=SimpleNamespace(lacks=lambda arch: None)
        )

    def _artifact(self, job):
        self._artifacts[job.key] = artifact(job.key)
        return self._artifacts[job.key]


@pytest.fixture
def prepared(kernels, tmp_path, monkeypatch):
    """prepared(outcome, reference) -> (names of what would run and of what was tried, notes)."""
    monkeypatch.setattr(
        "sparsekit.operators.acquire._loaded",
        lambda candidate, artifact, call, loader, ptx: candidate.kernel.name,
    )

    def run(outcome: Outcome, reference: str = "scale", call: Call = CALL, **options: bool):
        notes: list[str] = []
        first_use = Told(Notes(tmp_path), outcome)
        store = SimpleNamespace(get=lambda key: artifact(key))
        choices = Catalog((kernels,)).resolve([reference])
        acquirer = Prepares(
            choices, None, store, build=False, note=notes.append, first_use=first_use, **options
        )
        names = [acquirer.prepare(call, None) for _ in range(2)]
        assert names[0] == names[1]
        return names[0], first_use.asked, notes

    return run


def test_one_that_passes_is_used_and_checked_once(prepared):
    assert prepared(Outcome(True, "2 cases right")) == ("scale_new", ["scale_new"], [])
    assert prepared(Outcome(False, "never asked")) == ("scale_new", [], [])  # another process


def test_one_that_fails_is_not_used_and_it_is_said_once(prepared):
    name, asked, notes = prepared(Outcome(False, "1 of 2 cases wrong"))
    assert (name, asked) == ("scale_cu", ["scale_new"])
    (note,) = notes
    assert "cu/scale_new:plain has never run on a Told GPU before" in note
    assert "1 of 2 cases wrong" in note
    assert "send what this prints: sparsekit verify" in note
    assert "scale_new:plain --tag smoke --device cuda:0 --kernels" in note
    assert prepared(Outcome(True, "never asked"))[:2] == ("scale_cu", [])


def test_what_is_of_the_moment_is_not_kept(prepared):
    moment = Outcome(False, "exit code 6: no memory", lasting=False)
    assert prepared(moment)[:2] == ("scale_cu", ["scale_new"])
    assert prepared(Outcome(True, "2 cases right"))[:2] == ("scale_new", ["scale_new"])


def test_another_device_driver_or_code_is_another_first_use(tmp_path):
    first_use = Told(Notes(tmp_path), Outcome(True, "all right"))
    (choice,) = Catalog().resolve([str(SCALE)])
    kernel = choice.kernel
    candidate = Candidate(kernel, kernel.variants[0], parse_arch("sm_90"), kernel.instances[0], ())
    others = [
        (artifact("a"), GPU), (artifact("b"), GPU), (artifact("a"), replace(GPU, uuid="cd" * 16)),
        (artifact("a"), replace(GPU, driver="590.1")),
    ]  # fmt: skip
    for code, device in others * 2:
        assert first_use.refusal(candidate, code, device) is None
    assert len(first_use.asked) == len(others)
    assert first_use.outcomes(GPU) == {"cu/scale_cu:plain": Outcome(True, "all right")}
    assert first_use.outcomes(replace(GPU, uuid="ef" * 16)) == {}


def test_one_that_prefers_the_call_is_checked_though_it_stands_last(kernels, prepared):
    spec = kernels / "scale_cu" / "spec.py"
    prefer = 'prefer=lambda call: "it is faster", proven_on=(), launches=lambda'
    spec.write_text(spec.read_text().replace("launches=lambda", prefer))
    failing = Outcome(False, "1 of 2 cases wrong", lasting=False)
    assert prepared(failing)[:2] == ("scale_cu", ["scale_new"])
    by_batch = prepared(Outcome(True, "all right"), batch_invariant=False)
    assert by_batch[:2] == ("scale_cu", ["scale_cu"])


def test_a_kernel_that_is_named_runs_unchecked(prepared):
    assert prepared(Outcome(False, "never asked"), "cu/scale_new")[:2] == ("scale_new", [])


def test_where_it_has_run_nothing_is_checked(prepared, kernels):
    spec = kernels / "scale_new" / "spec.py"
    spec.write_text(spec.read_text().replace("proven_on=()", "proven_on=('9.0',)"))
    assert prepared(Outcome(False, "never asked"))[:2] == ("scale_new", [])


def test_the_last_kernel_has_nobody_to_stand_in(prepared, kernels):
    spec = kernels / "scale_cu" / "spec.py"
    spec.write_text(spec.read_text().replace("launches=lambda", "proven_on=(), launches=lambda"))
    blackwell = replace(CALL, device=replace(GPU, compute_capability=(10, 0)))
    assert prepared(Outcome(False, "never asked"), call=blackwell)[:2] == ("scale_cu", [])


@pytest.mark.parametrize(
    ("code", "results", "passed", "told"),
    [
        (0, [(True, False), (None, True)], True, "1 cases right"),
        (0, [(None, True)], False, "0 of 1 cases wrong"),
        (EXIT_CHECK_FAILED, [(True, False), (False, False)], False, "1 of 2 cases wrong, c1 first"),
        (6, None, False, "exit code 6: last line"),
        (-9, None, False, "exit code -9: last line"),
    ],
)
def test_only_what_ran_and_was_right_passes(tmp_path, code, results, passed, told):
    file = tmp_path / "verify.json"
    if results is not None:
        rows = [{"ok": o, "skipped": s, "case": f"c{i}"} for i, (o, s) in enumerate(results)]
        file.write_text(json.dumps({"results": rows}))
    found = _judged(code, file, "first line\nlast line\n")
    assert (found.passed, found.told) == (passed, told)
    assert found.lasting == (code in (0, EXIT_CHECK_FAILED, -9) and (passed or code != 0))


def test_the_process_that_checks_is_ended_when_it_hangs(tmp_path):
    (choice,) = Catalog().resolve([str(SCALE)])
    kernel = choice.kernel
    candidate = Candidate(kernel, kernel.variants[0], parse_arch("sm_90"), kernel.instances[0], ())
    first_use = FirstUse(Notes(tmp_path), ("--cache-dir", str(tmp_path)), limit_s=0.02)
    found = first_use._tried(candidate, GPU)
    assert (found.passed, found.lasting) == (False, True)
    assert "did not end within" in found.told


def test_a_spec_says_where_it_has_run_by_compute_capability(kernels):
    spec = kernels / "scale_new" / "spec.py"
    spec.write_text(spec.read_text().replace("proven_on=()", "proven_on=('sm_90',)"))
    with pytest.raises(SpecError, match=r"proven_on: expected compute capabilities .* 'sm_90'"):
        Catalog().resolve([str(kernels / "scale_new")])
