"""Results of several GPUs on one page: each row and figure says of which it is."""

from __future__ import annotations

import json
import re

import pytest
from test_report import (
    CONTROL,
    PROFILED,
    SEED2,
    TOLD,
    TRIED,
    VERIFIED,
    bench_data,
    checked,
    replace,
)

from sparsekit.model.bench import Ceilings
from sparsekit.model.profile import Count
from sparsekit.report.profile import profile_document
from sparsekit.report.verify import verify_document

H200, B200 = "NVIDIA H200", "NVIDIA B200"
ROOFS = {H200: Ceilings(663.0, 4256.0), B200: Ceilings(1700.0, 7000.0)}
TIMED = replace(SEED2, timings=SEED2.timings[:2], flop=10**9, bytes=10**7)


def benched(gpu):
    data = bench_data(replace(TIMED, gpu=gpu, timings=TIMED.timings))
    ceilings = {"matmul_tflops": ROOFS[gpu].matmul_tflops, "copy_gbps": ROOFS[gpu].copy_gbps}
    return {**data, "environment": {**TOLD, "gpu": gpu}, "ceilings": ceilings}


def profiled(gpu, factor):
    results = [
        replace(r, gpu=gpu, flop=10**12, bytes=10**8, counts={
            name: Count(c.value * factor, c.source) for name, c in r.counts.items()
        })
        for r in PROFILED
    ]  # fmt: skip
    return profile_document(results, {**TOLD, "gpu": gpu}, ROOFS[gpu]).data


def sanitized(reports):
    finding = {"subject": "op", "tool": "memcheck", "reports": reports, "expected": False,
               "ok": True}  # fmt: skip
    return {"schema": 1, "kind": "sanitizer", "findings": [finding]}


def on(gpu, data):
    return {**data, "environment": {**TOLD, "gpu": gpu}}


def distances(plain, new):
    return {
        "schema": 1, "kind": "verify",
        "results": [checked("op", "plain", "a", out=plain), checked("op", "new", "a", out=new)],
    }  # fmt: skip


PAIRS = {
    "times": (benched(H200), benched(B200)), "rates": (benched(H200), benched(B200)),
    "overview": (benched(H200), benched(B200)), "conditions": (benched(H200), benched(B200)),
    "checks": (
        verify_document(VERIFIED, TOLD).data, verify_document(VERIFIED, {**TOLD, "gpu": B200}).data,
    ),
    "accuracy": (on(H200, distances(0.5, 0.25)), on(B200, distances(2.0, 4.0))),
    "control": (on(H200, CONTROL), on(B200, CONTROL)),
}  # fmt: skip


@pytest.fixture
def page(tmp_path, run_cli):
    def made(pair, *words):
        for name, data in zip(("one", "two"), pair, strict=True):
            (tmp_path / f"{name}.json").write_text(json.dumps(data))
        done = run_cli("report", "one.json", "two.json", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return made


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("section", PAIRS)
def test_every_row_names_its_gpu_where_there_are_several(section, page):
    lines = [x for x in page(PAIRS[section], "--section", section).splitlines() if x[:1] == "|"]
    at = cells(lines[0]).index("GPU")
    rows = [cells(line) for line in lines[2:]]
    gpus = [row[at] for row in rows]
    assert sorted(gpus) == sorted([H200, B200] * (len(rows) // 2))
    assert len(set(map(tuple, rows))) == len(rows)


@pytest.mark.parametrize("section", PAIRS)
def test_one_gpu_needs_no_column(section, page):
    assert "GPU" not in page(PAIRS[section][:1] * 2, "--section", section)


def test_a_check_is_counted_on_each_gpu_for_itself(page):
    text = page(PAIRS["checks"], "--section", "checks")
    assert len(re.findall(r"\|\s+43 \|\s+86 \|\s+43 \|\s+0 \|\s+0 \|", text)) == 2
    assert f"Bit for bit on {H200}: 43 of 43 comparisons" in text
    assert f"Bit for bit on {B200}: 43 of 43 comparisons" in text


def test_distances_are_held_against_those_on_the_same_gpu(page):
    text = page(PAIRS["accuracy"], "--section", "accuracy")
    assert "0.25 (0.50)" in text
    assert "4 (2.00)" in text
    assert f"The most for out on {H200}: new 0.50 (a)." in text
    assert f"The most for out on {B200}: new 2.00 (a)." in text


def test_counts_are_compared_within_one_gpu(page):
    text = page((profiled(H200, 1), profiled(B200, 10)), "--section", "profile")
    for gpu in (H200, B200):
        assert f"sparse_prefill seed1_ramp on {gpu}: one launch" in text
        assert f"Stalls on {gpu}, %" in text
    heads = [cells(x) for x in text.splitlines() if x.startswith("| count")]
    assert heads == [["count", "noskip", "skip", "skip / noskip", "how"]] * 2
    assert text.count(" 0.827 ") == 2


def test_each_gpu_has_its_own_roof(page):
    pair = (benched(H200), benched(B200))
    text = page(pair, "--format", "html")
    figures = re.findall(r"<h2>Roofline on ([^<]*)</h2>(<svg.*?</svg>)", text)
    assert [gpu for gpu, _ in figures] == [H200, B200]
    for gpu, svg in figures:
        assert f"matmul {ROOFS[gpu].matmul_tflops:.0f} TFLOP/s" in svg
        assert svg.count("<title>") == 2
    assert text.count(f"<h3>gated_pool b1_r128_d512 on {B200}</h3>") == 1


def test_profiled_points_stand_under_the_roof_of_their_gpu(page):
    text = page((profiled(H200, 1), profiled(B200, 10)), "--format", "html")
    assert [len(re.findall("<title>", svg)) for svg in re.findall(r"<svg.*?</svg>", text)] == [2, 2]


def test_lines_and_titles_name_the_gpu_too(page):
    text = page((on(H200, sanitized(0)), on(B200, sanitized(3))), "--section", "sanitizer")
    assert f"compute-sanitizer on {H200} (memcheck) over 1 ops: 0 reports" in text
    assert f"compute-sanitizer on {B200} (memcheck) over 1 ops: 3 reports" in text
    text = page((on(H200, TRIED), on(B200, TRIED)), "--section", "tried")
    assert f"Tried on {H200}" in text
    assert f"Tried on {B200}" in text


def test_ops_on_different_gpus_are_told_apart_too(page):
    other = benched(B200)
    other["results"] = [{**r, "op": "other"} for r in other["results"]]
    text = page((benched(H200), other), "--section", "times")
    assert text.count("| GPU ") == 2


def test_problems_name_the_gpu(page):
    one, two = benched(H200), benched(B200)
    for data in (one, two):
        timings = data["results"][0]["timings"]
        data["results"][0]["timings"] = [timings[0], {**timings[1], "problem": "differs"}]
    lines = page((one, two), "--section", "problems").splitlines()
    assert {cells(x)[1] for x in lines if x.startswith("| bench")} == {H200, B200}
