"""What went wrong is on the page, whatever else is left out, and gives no ratio."""

from __future__ import annotations

import json

import pytest
from test_report import PROFILED, SEED2, TOLD, bench_data, checked, replace, section_of

from sparsekit.report.profile import profile_document
from sparsekit.report.sections import PAGE, shortened
from sparsekit.report.stored import Wanted, bench_results, read_stored

CHANGED = "out differ after the timing from before it"
BASE, GOOD, BAD, GONE = SEED2.timings
FAULTY = replace(SEED2, timings=(
    BASE, GOOD, replace(BAD, problem=CHANGED, verdict="same"),
    replace(GONE, time_s=None, ratio=None, ratio_interval=None, verdict=None, problem="refused"),
))  # fmt: skip
SKIPPED = replace(SEED2, case="huge", timings=(), mode=None, reason="needs 300 GB")


def verified(kernel, case, **more):
    return {**checked(kernel, "v", case, out=0.5), **more}


def failed(case, reason, **more):
    output = {"ok": False, "sha256": "0", "max_abs": 9.0, "problem": "off by 9"}
    return verified("k", case, ok=False, reason=reason, outputs={"out": output}, **more)


def verify_data(*results, **environment):
    return {
        "schema": 1, "kind": "verify", "environment": {**TOLD, **environment},
        "results": list(results),
    }  # fmt: skip


def test_every_kind_of_problem_is_on_the_page_with_its_case_and_reason(tmp_path, run_cli):
    bench = bench_data(FAULTY, SKIPPED)
    bench["environment"] = {**TOLD, "others": ["prog (7)"], "watch": "no NVML: clocks unknown"}
    skip = verified("k", "d", ok=None, skipped=True, reason="no kernel\n  too many heads")
    inspect = {
        "schema": 1, "kind": "inspect", "entries": [],
        "failed": [{"job": "k:v sm_90", "error": "ptxas says no"}],
    }  # fmt: skip
    data = {"bench": bench, "verify": verify_data(failed("a", None), failed("b", "a fault"), skip),
            "inspect": inspect}  # fmt: skip
    for name, told in data.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
    page = run_cli("report", *(f"{n}.json" for n in data), cwd=tmp_path).stdout
    assert page.startswith("### Problems")
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines()]
    for row in (
        ["bench", "bench.json", "–", "other processes on the GPU: prog (7)"],
        ["bench", "bench.json", "–", "no NVML: clocks unknown"],
        ["bench", BAD.label, FAULTY.case, CHANGED],
        ["bench", GONE.label, FAULTY.case, "refused"],
        ["verify", "k:v against float64", "a", "out: off by 9"],
        ["verify", "k:v against float64", "b", "a fault"],
        ["inspect", "k:v sm_90", "–", "ptxas says no"],
        ["bench", "gated_pool", "huge", "needs 300 GB"],
        ["verify", "k:v", "d", "no kernel; too many heads"],
        ["k:v", "float64", "2", "6", "0", "2", "1"],
    ):
        assert row in rows


@pytest.mark.parametrize("data", [bench_data(SEED2), verify_data(verified("k", "a"))])
def test_a_run_that_was_ended_early_is_told(data, tmp_path, run_cli):
    rows, _ = section_of({**data, "partial": True}, "problems", tmp_path, run_cli)
    assert [row[-1] for row in rows] == ["not whole: the run was ended before its last case"]


def test_a_sound_page_has_no_problems(tmp_path, run_cli):
    (tmp_path / "bench.json").write_text(json.dumps(bench_data(SEED2)))
    assert "Problems" not in run_cli("report", "bench.json", cwd=tmp_path).stdout


def test_alike_problems_share_a_row(tmp_path, run_cli):
    results = [failed(f"c{n}", "a fault") for n in range(11)]
    rows, _ = section_of(verify_data(*results), "problems", tmp_path, run_cli)
    assert [r[2] for r in rows] == ["c0, c1, c2, c3, c4, c5, c6, c7 and 3 more"]


def test_very_many_problems_leave_room_for_the_page(tmp_path, run_cli):
    results = [failed(f"c{n}", f"fault {n}") for n in range(2000)]
    rows, text = section_of(verify_data(*results), "problems", tmp_path, run_cli)
    assert len(rows) == 100
    assert "Problems: and 1900 more; the result files have all." in text


def test_a_page_that_is_too_long_keeps_its_problems():
    names = PAGE
    while fewer := shortened(names):
        names = fewer
    assert "problems" in names
    assert len(names) < len(PAGE)


def test_a_candidate_with_a_problem_has_no_ratio_and_no_rate(tmp_path, run_cli):
    (row, *_), _ = section_of(bench_data(FAULTY), "times", tmp_path, run_cli)
    assert row[3].endswith(", problem")
    assert row[4] == "failed"
    assert row[5].endswith("faster")
    assert row[6:] == ["problem", "problem"]
    rows, _ = section_of(bench_data(FAULTY), "rates", tmp_path, run_cli)
    assert [r[3:7] for r in rows if r[1] == BAD.label] == [["problem", "–", "–", "–"]]
    (row, *_), _ = section_of(bench_data(FAULTY), "overview", tmp_path, run_cli)
    assert f"{BAD.label} 36.89 us (problem)" in row[1]
    assert "17.03 us," in row[1]


def test_nothing_is_compared_with_a_base_that_has_a_problem(tmp_path, run_cli):
    base = replace(SEED2, timings=(replace(BASE, problem=CHANGED), GOOD))
    (row, *_), _ = section_of(bench_data(base), "times", tmp_path, run_cli)
    assert row[3:] == ["base has a problem"]
    file = tmp_path / "base.json"
    file.write_text(json.dumps(bench_data(base)))
    (only,) = bench_results([read_stored(file)], Wanted(candidates=(GOOD.label,)))
    assert only.timings[0].ratio is None
    assert only.timings[0].verdict is None


def test_a_problem_is_marked_in_html_and_draws_no_point_under_the_roof(tmp_path, run_cli):
    both = replace(FAULTY, flop=10**9, bytes=10**7, timings=FAULTY.timings[:3])
    (tmp_path / "bench.json").write_text(json.dumps(bench_data(both)))
    page = run_cli("report", "bench.json", "--format", "html", cwd=tmp_path).stdout
    assert "36.89 us, problem</text>" in page
    assert f"<title>{both.case} {GOOD.label}: " in page
    assert f"<title>{both.case} {BAD.label}: " not in page


def test_other_bits_than_the_base_are_told_beside_the_times(tmp_path, run_cli):
    other = replace(SEED2, timings=(replace(BASE, same_bits=None), replace(GOOD, same_bits=False)))
    again = replace(other, case="more", timings=(BASE, replace(GOOD, same_bits=True)))
    _, text = section_of(bench_data(other, again), "times", tmp_path, run_cli)
    assert f"Other bits than the base: {GOOD.label} in 1 of 2 cases." in text


@pytest.mark.parametrize("told", ["counters are not allowed"])
def test_a_profile_says_why_nothing_was_counted(told, tmp_path, run_cli):
    data = profile_document([replace(PROFILED[0], problem=told)], TOLD, None).data
    _, text = section_of(data, "profile", tmp_path, run_cli)
    assert told in text
