"""Pages from results: what the seeds' texts tell is on them, and marked tables are held."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest

from sparsekit.errors import UsageError
from sparsekit.model.bench import BenchResult, Ceilings, Interval, Mode, Reading, Timing
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.model.results import OutputCheck, VerifyResult
from sparsekit.report.bench import bench_document
from sparsekit.report.marked import blocks_in, updated
from sparsekit.report.plots import distribution, roofline
from sparsekit.report.profile import profile_document
from sparsekit.report.roof import Point
from sparsekit.report.verify import verify_document

TOLD = {
    "gpu": "NVIDIA H200", "driver_version": "580.1", "power.limit": "700 W",
    "clocks.sm": "1755 MHz", "clocks.max.sm": "1980 MHz", "commit": "c" * 40, "dirty": True,
    "command": "sparsekit bench", "time": "2026-11-30T00:00:00",
    "versions": {"triton": "3.6.0", "nvidia-cuda-nvrtc": "13.0.88", "torch": "2.11.0"},
    "ptxas": {"ptxas": "release 12.8"},
}  # fmt: skip


ROOF = Ceilings(663.0, 4256.0)


def timing(label, time_s, base_s=None, toolchain="triton-3.6.0", **more):
    samples = tuple((time_s * f,) for f in (0.99, 1.0, 1.01))
    compared = {}
    if base_s:
        ratio = time_s / base_s
        compared = {"ratio": ratio, "ratio_interval": Interval(ratio * 0.999, ratio * 1.001),
                    "verdict": "slower" if ratio > 1.01 else "faster"}  # fmt: skip
    return Timing(
        label, "k", label, toolchain, "sm_90a", "key", time_s,
        Interval(time_s * 0.999, time_s * 1.001), samples, tflops=100.0, gbps=50.0,
        matmul_share=0.15, copy_share=0.012, same_bits=True, **compared, **more,
    )  # fmt: skip


def result(case, *timings, gpu="NVIDIA H200", op="gated_pool"):
    mode = Mode("seed2", "graph", "warm", 64, 1, 2, 10)
    reading = Reading(1755, 400.0, 60, ("software power cap",))
    return BenchResult(
        op, case, gpu, timings[0].label, mode, 10**9, 10**7, timings, 1.0002,
        Interval(0.999, 1.001), (reading,), cautions=("power capped in 1 of 2 rounds",),
    )  # fmt: skip


def bench_data(*results):
    document = bench_document(
        results, TOLD, protocol="seed2", said="best of two medians", margin=0.01, ceilings=ROOF
    )
    return document.data


SEED2 = result(
    "b1_r128_d512", timing("plain@3.6", 21.09e-6), timing("unroll2@3.6", 17.03e-6, 21.09e-6),
    timing("plain@3.8", 36.89e-6, 21.09e-6, "triton-3.8.0"),
    timing("unroll2@3.8", 17.05e-6, 21.09e-6, "triton-3.8.0"),
)  # fmt: skip
VERIFIED = [
    VerifyResult("gated_pool", "gated_pool", "unroll2", "sm_90a", "triton-3.8.0", "cuda:0", f"c{i}",
                 "gated_pool:plain", 2, {"out": OutputCheck(True, "a" * 64)}, ok=True)
    for i in range(43)
]  # fmt: skip
PROFILED = [
    ProfileResult(
        "sparse_prefill", "seed1_ramp", "NVIDIA H200", label, "sparse_prefill",
        counts={
            "duration_s": Count(1.2e-3, "measured"), "tensor_cycles": Count(cycles, "measured"),
            "dram_read_bytes": Count(587.2e6, "measured"),
            "global_loads": Count(2.39e6, "measured"),
            "registers": Count(124, "static"),
        },
        stalls={"barrier": 31.0, "long scoreboard": 12.0},
    )
    for label, cycles in (("noskip", 1.020e6), ("skip", 0.844e6))
]  # fmt: skip
INSPECTED = {
    "schema": 1, "kind": "inspect",
    "entries": [{
        "kernel": "sparse_attn_paged", "variant": "plain", "arch": "sm_90a", "entry": "prefill",
        "toolchain": "triton-3.8.0", "registers": 124, "spill_store_bytes": 0,
        "shared_bytes": 82048, "ptx_loads": {"ld.global": {"16": 12, "2": 64}},
        "sass_loads": {"LDG": {"16": 8, "2": 64}},
    }],
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    made = {
        "bench.json": bench_data(SEED2),
        "verify.json": verify_document(VERIFIED, TOLD).data,
        "profile.json": profile_document(PROFILED, TOLD, None).data,
        "inspect.json": INSPECTED,
    }
    for name, data in made.items():
        (tmp_path / name).write_text(json.dumps(data))
    return tmp_path


# The kinds of figure in the seeds' texts, by heading, with what shows one on our page.
SEED_FIGURES = {
    ("seed 1", "Numbers: medians before, after, delta"): ("21.09 us", "17.03 us", "0.807"),
    ("seed 1", "Numbers: method of the medians"): ("best of two medians", "2x10"),
    ("seed 1", "Bitwise: dumps x tensors"): ("43 of 43 comparisons, 43 of 43 tensors",),
    ("seed 1", "ncu: tensor-pipe busy cycles per SM"): ("tensor pipe busy cycles", "0.827"),
    ("seed 1", "ncu: dram bytes read"): ("DRAM read, MB", "587.2"),
    ("seed 1", "ncu: sass global_ld instructions"): ("SASS global load instructions", "2390000"),
    ("seed 1", "ncu: one launch after 5 warmups"): ("one launch after 5 warm-ups",),
    ("seed 1", "Register/spill status"): ("124", "spills"),
    ("seed 2", "Changes: load widths and shared bytes"): ("2x64", "82048"),
    ("seed 2", "Kernel time: compilers and GPU"): ("triton-3.8.0", "NVIDIA H200", "580.1"),
    ("seed 2", "All shapes: four columns"): (
        "plain@3.6", "unroll2@3.6", "plain@3.8", "unroll2@3.8", "36.89 us",
    ),
    ("seed 2", "All shapes: ratio columns to old36"): (
        "unroll2@3.6 / plain@3.6", "plain@3.8 / plain@3.6", "1.749", "0.808",
    ),
    ("seed 2", "Correctness: bit-identical"): ("Bit for bit", "bits as base"),
}  # fmt: skip


@pytest.mark.parametrize("heading", SEED_FIGURES, ids=" ".join)
def test_every_kind_of_figure_of_the_seeds_is_on_the_page(heading, files, run_cli):
    done = run_cli("report", *map(str, sorted(files.glob("*.json"))))
    assert done.returncode == 0, done.stderr
    assert [part for part in SEED_FIGURES[heading] if part not in done.stdout] == []


CONTROL = {
    "schema": 1, "kind": "control", "environment": {**TOLD, "command": "tests/gpu/control.py"},
    "seconds": 1.0,
    "findings": [
        {"what": "seed2 warm b8_r8_d512", "method": "graph",
         "verdicts": {"same": 39, "slower": 1}, "ratios": [0.99812, 1.00377], "ok": True},
        {"what": "planted 3 % of 1 ms", "verdicts": {"slower": 19, "same": 1}, "ok": False},
    ],
}  # fmt: skip
TILE = {"what": "tile", "subject": "wgmma.mma_async.x", "elements": 4096, "tiles": 10}
EMULATOR = {
    "schema": 1, "kind": "against-emulator",
    "environment": {**TOLD, "command": "tests/gpu/against_emulator.py"}, "seconds": 1.0,
    "tasks": 9, "done": 8, "ok": False, "skipped": 3, "instances_that_did_not_run": ["k:v d576"],
    "kernels": [
        {"subject": "k:v", "instance": "d512", "data": data, "output": output, "cases": 46,
         "elements": 1000, "different_bits": bits, "worst_bf16_ulp_of_row": worst}
        for data, output, bits, worst in (
            ("integers", "out", 0, 0.0), ("random", "out", 7, 1.25), ("random", "lse", 1, 0.5)
        )
    ],
    "failed": [{"what": "kernel", "subject": "k:w", "ok": False, "problems": [], "error": "E: x"}],
    "tiles": [
        {**TILE, "data": "integers", "different_bits": 0, "worst_relative": 0.0, "bound": 0.0,
         "ok": True},
        {**TILE, "data": "random", "different_bits": 9, "worst_relative": 1e-6, "bound": 4e-6,
         "ok": True},
        {**TILE, "data": "special", "different_bits": 5, "worst_relative": 4e-6, "bound": 2e-6,
         "ok": None},
        {"what": "tile", "subject": "mma.sync.y", "ok": False, "problems": [], "error": "E: z"},
    ],
    "functions": [
        {"subject": "add.rn.f32", "elements": 100, "different_bits": 0, "worst_ulp": 0, "ok": True},
        {"subject": "cvt.x", "elements": 100, "different_bits": 2, "worst_ulp": 3, "ok": False},
        {"subject": "ex2.approx", "elements": 100, "different_bits": 4, "worst_ulp": 2, "ok": None},
    ],
}  # fmt: skip


ROWS = {
    "schema": 1, "kind": "prefill-rows", "environment": TOLD, "rounds": 60, "matmul_ms": 1.5,
    "scale_of_columns": 0.936,
    "rows": [
        {"name": "h64", "kernel": "k", "ms": 1.9512, "tflops": 551.4, "flashmla_ms": 2.21,
         "reach_ms": 2.05, "aim_ms": 1.8},
        {"name": "h8", "kernel": "few", "ms": 1.25, "tflops": 70.0, "flashmla_ms": None,
         "reach_ms": 1.55, "aim_ms": None},
    ],
}  # fmt: skip
PAGED = {
    "schema": 1, "kind": "paged-rows", "environment": TOLD,
    "rows": [
        {"name": "decode_r4_b1", "kernel": "k:v", "us": 7.284, "seed2_us": 17.7, "reach_us": 9.5,
         "aim_us": 7, "method": "graph", "l2": "warm"},
    ],
}  # fmt: skip
TRIED = {
    "schema": 1, "kind": "prefill-tried", "environment": TOLD,
    "designs": [
        {"name": "stream", "rows": {
            "matmul": {"ms": 1.6},
            "h64": {"skip": {"ms": 2.0, "cycles_a_tile": 3000},
                    "old": {"ms": 1.95, "cycles_a_tile": 2900},
                    "other": {"ms": 9.0, "cycles_a_tile": 9000}},
        }},
    ],
}  # fmt: skip


def section_of(data, name, folder, run_cli) -> tuple[list[list[str]], str]:
    """(the rows of the section's table, all of its text)."""
    (folder / "file.json").write_text(json.dumps(data))
    done = run_cli("report", str(folder / "file.json"), "--section", name)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return rows[2:], done.stdout


def test_paged_rows_are_shown_beside_the_seed(tmp_path, run_cli):
    rows, _ = section_of(PAGED, "rows", tmp_path, run_cli)
    assert rows == [["decode_r4_b1", "k:v", "7.28", "17.70", "9.50", "7.00"]]


def test_a_control_is_shown(tmp_path, run_cli):
    rows, _ = section_of(CONTROL, "control", tmp_path, run_cli)
    assert rows == [
        ["seed2 warm b8_r8_d512", "graph", "39 same, 1 slower", "0.9981 to 1.0038", "yes"],
        ["planted 3 % of 1 ms", "–", "19 slower, 1 same", "–", "no"],
    ]


def test_a_comparison_with_the_emulator_is_shown(tmp_path, run_cli):
    rows, text = section_of(EMULATOR, "emulator", tmp_path, run_cli)
    assert "Emulator against NVIDIA H200" in text
    assert rows == [
        ["outputs of kernels", "integers", "46", "1000", "0", "0 bf16 ulp of the row", "0"],
        ["outputs of kernels", "random", "92", "2000", "8", "1.25 bf16 ulp of the row", "0"],
        ["outputs of kernels", "–", "0", "0", "0", "–", "1"],
        ["mma tiles", "–", "0", "0", "0", "–", "1"],
        ["wgmma tiles", "integers", "10", "4096", "0", "–", "0"],
        ["wgmma tiles", "random", "10", "4096", "9", "0.25 of the bound", "0"],
        ["wgmma tiles", "special", "10", "4096", "5", "2 of the bound", "–"],
        ["scalar instructions", "exact", "2", "200", "2", "3 ulp", "1"],
        ["scalar instructions", "approximate", "1", "100", "4", "2 ulp", "–"],
    ]
    assert "Tasks: 8 of 9 done; cases skipped: 3; instances that did not run: k:v d576." in text
    assert "Failed: k:w; mma.sync.y; cvt.x." in text


def checked(kernel, variant, case, against="float64", skipped=False, **distances):
    """A result of verify as a file has it; distances: the largest one of each output."""
    outputs = {n: asdict(OutputCheck(True, "0", max_abs=found)) for n, found in distances.items()}
    return {
        "op": "op", "kernel": kernel, "variant": variant, "arch": "sm_90a", "case": case,
        "against": against, "ok": None if skipped else True, "skipped": skipped, "reason": None,
        "runs": 2, "launches": 0, "schedules": [], "outputs": outputs,
    }  # fmt: skip


ACCURACY = {
    "schema": 1, "kind": "verify", "environment": TOLD,
    "results": [
        checked("op", "plain", "a", out=0.5, lse=0.25),
        checked("op", "plain", "a", against="op:other", out=9.0),
        checked("k", "new", "a", out=0.75, lse=0.125),
        checked("op", "plain", "b", out=0.25, lse=0.0),
        checked("k", "new", "b", out=0.625, lse=0.5),
        checked("k", "few", "b", skipped=True),
        checked("k", "few", "c", out=1.0, lse=None),
    ],
}  # fmt: skip


def test_distances_from_float64_are_shown_beside_those_of_the_first_kernel(tmp_path, run_cli):
    rows, text = section_of(ACCURACY, "accuracy", tmp_path, run_cli)
    assert rows == [
        ["a", "out", "0.5", "0.75 (1.50)", "–"],
        ["a", "lse", "0.25", "0.125 (0.50)", "–"],
        ["b", "out", "0.25", "0.625 (2.50)", "–"],
        ["b", "lse", "0", "0.5", "–"],
        ["c", "out", "–", "–", "1"],
    ]
    assert "| case | output | plain | k:new | k:few |" in re.sub(" +", " ", text)
    assert "The most for out: k:new 2.50 (b)." in text
    assert "The most for lse: k:new 0.50 (a)." in text
    assert "9" not in text.partition("The most")[0]


def test_accuracy_of_several_archs_is_told_apart(tmp_path, run_cli):
    other = [{**r, "arch": "sm_80"} for r in ACCURACY["results"][:1]]
    data = {**ACCURACY, "results": ACCURACY["results"][:1] + other}
    rows, text = section_of(data, "accuracy", tmp_path, run_cli)
    assert rows[0] == ["a", "out", "0.5", "0.5 (1.00)"]
    assert "| plain sm_90a | plain sm_80 |" in re.sub(" +", " ", text)


def emulated_result(variant: str, case: str, digest: str, random: int, **more) -> dict:
    schedules = ["lazy", "eager", *(f"random({n})" for n in range(random))]
    return {
        "op": "o", "kernel": "k", "variant": variant, "arch": "sm_100a", "case": case, "ok": True,
        "against": "float64", "runs": 1, "skipped": False, "reason": None,
        "launches": len(schedules), "schedules": schedules,
        "outputs": {"out": {"ok": True, "sha256": digest, "max_abs": None}}, **more,
    }  # fmt: skip


def test_what_was_emulated_is_counted_by_schedules_and_held_against_other_variants(
    tmp_path, run_cli
):
    idle = {"schedules": [], "outputs": {}, "ok": None, "skipped": True}
    results = [
        emulated_result("v", "a", "1", 20), emulated_result("w", "a", "1", 20),
        emulated_result("v", "b", "2", 0), emulated_result("w", "b", "3", 0),
        emulated_result("v", "c", "4", 0),
        emulated_result("v", "d", "", 0, reason="too large\nfor this", **idle),
        emulated_result("w", "c", "", 0, reason="no kernel takes this call\n  k:w", **idle),
    ]  # fmt: skip
    told = {"schema": 1, "kind": "verify", "environment": {"emulated": True}, "results": results}
    rows, text = section_of(told, "emulated", tmp_path, run_cli)
    assert rows == [
        ["k:v", "sm_100a", "lazy, eager", "2", "4", "2", "0", "w 0 of 1"],
        ["k:v", "sm_100a", "lazy, eager, 20 random", "1", "22", "1", "0", "w 1 of 1"],
        ["k:w", "sm_100a", "lazy, eager", "1", "2", "1", "0", "v 0 of 1"],
        ["k:w", "sm_100a", "lazy, eager, 20 random", "1", "22", "1", "0", "v 1 of 1"],
    ]
    assert text.count("Left out") == 1
    assert "Left out: d: too large." in text


def test_rows_of_a_kernel_are_shown_beside_what_was_asked_for(tmp_path, run_cli):
    rows, text = section_of(ROWS, "rows", tmp_path, run_cli)
    assert "Rows on NVIDIA H200" in text
    assert rows == [
        ["h64", "k", "1.951", "551", "2.210", "2.050", "1.800"],
        ["h8", "few", "1.250", "70", "–", "1.550", "–"],
    ]
    assert "60 interleaved rounds" in text
    assert "took 1.500 ms" in text
    assert "1.603 ms times 0.936" in text


def test_what_was_tried_is_shown_beside_the_kernel_before(tmp_path, run_cli):
    rows, _ = section_of(TRIED, "tried", tmp_path, run_cli)
    assert rows == [["stream", "h64", "2.000", "1.950", "3000", "2900"]]


def test_both_are_on_the_page_and_in_marked_tables(tmp_path, run_cli):
    for name, data in (("control.json", CONTROL), ("emulator.json", EMULATOR)):
        (tmp_path / name).write_text(json.dumps(data))
    page = run_cli("report", "control.json", "emulator.json", cwd=tmp_path).stdout
    assert "planted 3 % of 1 ms" in page
    assert "wgmma tiles" in page
    marked = "control.json emulator.json --section control --section emulator"
    (tmp_path / "page.md").write_text(MARKED.replace("bench.json --section overview", marked))
    assert run_cli("report", "--update", "page.md", cwd=tmp_path).returncode == 0
    assert run_cli("report", "--check", "page.md", cwd=tmp_path).returncode == 0
    assert "39 same, 1 slower" in (tmp_path / "page.md").read_text()


def test_files_that_are_no_results(tmp_path, run_cli):
    (tmp_path / "file.json").write_text(json.dumps({"schema": 1, "kind": "other"}))
    done = run_cli("report", "file.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "run or tests/gpu" in done.stderr
    assert "found kind 'other'" in done.stderr
    (tmp_path / "file.json").write_text(json.dumps({"schema": 1, "kind": "control"}))
    done = run_cli("report", "file.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "file.json is no control result: findings is missing" in done.stderr
    (tmp_path / "file.json").write_text(json.dumps({**CONTROL, "schema": 2}))
    done = run_cli("report", "file.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "expected a control result of schema 1, found schema 2" in done.stderr


def test_the_footer_says_where_it_was_made(files, run_cli):
    page = run_cli("report", str(files / "bench.json")).stdout
    for part in ("sparsekit bench", "c" * 12 + " with changes", "580.1", "1755 MHz of 1980 MHz",
                 "| Triton", "| 3.6.0", "release 12.8"):  # fmt: skip
        assert part in page
    assert "| sha256 of the samples" in page
    assert re.search(r"\| [0-9a-f]{64} \|", page)


def test_results_of_two_gpus_make_one_table_with_a_gpu_column(tmp_path, run_cli):
    other = replace(SEED2, gpu="NVIDIA B200")
    (tmp_path / "one.json").write_text(json.dumps(bench_data(SEED2)))
    (tmp_path / "two.json").write_text(json.dumps(bench_data(other)))
    page = run_cli("report", str(tmp_path / "one.json"), str(tmp_path / "two.json"),
                   "--section", "times").stdout  # fmt: skip
    rows = [line for line in page.splitlines() if line.startswith("| b1_r128_d512")]
    assert len(rows) == 2
    assert "NVIDIA H200" in rows[0]
    assert "NVIDIA B200" in rows[1]


def test_runs_of_one_case_by_several_methods_are_told_apart(tmp_path, run_cli):
    warm = replace(SEED2, mode=replace(SEED2.mode, protocol="seed2", l2="warm"))
    cold = replace(SEED2, mode=replace(SEED2.mode, protocol="sparsekit", l2="cold"))
    for name, one in (("warm", warm), ("cold", cold)):
        (tmp_path / f"{name}.json").write_text(json.dumps(bench_data(one)))
    for section in ("times", "rates", "overview"):
        page = run_cli(
            "report", "warm.json", "cold.json", "--section", section, cwd=tmp_path
        ).stdout
        assert "| b1_r128_d512 (seed2, L2 warm) " in page
        assert "| b1_r128_d512 (sparsekit, L2 cold) " in page
    page = run_cli("report", "warm.json", "cold.json", "--format", "html", cwd=tmp_path).stdout
    assert "<h3>gated_pool b1_r128_d512 (seed2, L2 warm)</h3>" in page


def test_only_the_candidates_that_are_asked_for(files, run_cli):
    page = run_cli("report", "bench.json", "--section", "times", "--candidate", "plain@*",
                   cwd=files).stdout  # fmt: skip
    assert "21.09 us" in page
    assert "36.89 us" in page
    assert "unroll2" not in page
    done = run_cli("report", "bench.json", "--section", "overview", "--candidate", "no", cwd=files)
    assert done.returncode == 2
    assert "nothing of what was asked for" in done.stderr


def test_a_page_that_is_too_long_for_github_leaves_out_and_says_so(tmp_path, run_cli):
    many = [replace(SEED2, case=f"case_{i}") for i in range(120)]
    (tmp_path / "many.json").write_text(json.dumps(bench_data(*many)))
    page = run_cli("report", str(tmp_path / "many.json")).stdout
    assert len(page) < 65_000
    assert "Left out, to stay within GitHub's length" in page
    assert page.count("| case_") == 120
    more = [replace(SEED2, case=f"case_{i}") for i in range(900)]
    (tmp_path / "more.json").write_text(json.dumps(bench_data(*more)))
    done = run_cli("report", str(tmp_path / "more.json"))
    assert done.returncode == 2
    assert "narrow it" in done.stderr


class Tags(HTMLParser):
    """Tags that are open, and whatever would reach out of the file."""

    def __init__(self):
        super().__init__()
        self.open, self.outside, self.seen = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)
        self.outside += [v for n, v in attributes if n in ("src", "href", "action")]

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_one_file_with_plots_for_both_themes(files, run_cli):
    out = files / "page.html"
    done = run_cli("report", *map(str, sorted(files.glob("*.json"))), "--format", "html",
                   "-o", str(out), "--title", "A < B")  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.outside == []
    assert "script" not in tags.seen
    assert {"table", "svg", "circle", "polyline"} <= tags.seen
    assert "prefers-color-scheme: dark" in text
    assert "<h1>A &lt; B</h1>" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not installed")
def test_html_is_drawn_by_a_browser_in_both_themes(files, run_cli):
    """The two pictures differ, and neither is blank."""
    page, sizes = files / "page.html", []
    run_cli("report", str(files / "bench.json"), "--format", "html", "-o", str(page))
    for scheme in ("0", "1"):  # dark, light
        picture = files / f"{scheme}.png"
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu",
             f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}",
             f"file://{page}"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        sizes.append(picture.read_bytes())
    assert sizes[0] != sizes[1]
    assert min(map(len, sizes)) > 10_000


def test_the_distribution_shows_every_sample_in_its_place():
    root = ElementTree.fromstring(distribution(SEED2))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    assert len(circles) == 4 * 3
    rows = {c.get("class"): [] for c in circles}
    for circle in circles:
        rows[circle.get("class")].append(float(circle.get("cx")))
    assert len(rows) == 4
    assert all(places == sorted(places) for places in rows.values())
    assert len({tuple(round(x) for x in places) for places in rows.values()}) == 1
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "plain@3.6, 21.09 us" in texts
    assert {"-1%", "0%", "+1%"} <= set(texts)
    assert distribution(replace(SEED2, timings=())) == ""


def test_the_roofline_holds_its_points_under_the_roof():
    points = [Point("low", 1.0, 2.0), Point("high", 400.0, 500.0)]
    root = ElementTree.fromstring(roofline(points, ROOF))
    circles = [e for e in root.iter() if e.tag.endswith("circle")]
    low, high = ((float(c.get("cx")), float(c.get("cy"))) for c in circles)
    assert low[0] < high[0]
    assert low[1] > high[1]
    assert roofline([], ROOF) == ""


def test_the_roofline_has_a_key_of_what_shares_a_colour():
    points = [Point("a", 1.0, 2.0, "x"), Point("b", 2.0, 3.0, "y"), Point("c", 3.0, 4.0, "x")]
    root = ElementTree.fromstring(roofline(points, ROOF))
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert texts.count("x") == texts.count("y") == 1
    drawn = [e.get("class") for e in root.iter() if e.tag.endswith("circle") and len(e)]
    assert drawn == ["series0", "series1", "series0"]


MARKED = """# Title

<!-- sparsekit report bench.json --section overview -->
<!-- /sparsekit report -->

text
"""


def test_marked_tables_are_made_and_held(files, run_cli):
    page = files / "page.md"
    page.write_text(MARKED)
    assert run_cli("report", "--check", "page.md", cwd=files).returncode == 1
    assert run_cli("report", "--update", "page.md", cwd=files).returncode == 0
    assert "plain@3.8 36.89 us" in page.read_text()
    assert page.read_text().endswith("\n\ntext\n")
    assert run_cli("report", "--check", "page.md", cwd=files).returncode == 0
    page.write_text(page.read_text().replace("36.89", "36.88"))
    done = run_cli("report", "--check", "page.md", cwd=files)
    assert done.returncode == 1
    assert "36.88 us" in done.stdout
    assert "36.89 us" in done.stdout
    assert "1 marked tables, 1 differ" in done.stdout


def test_a_result_that_changes_is_seen(files):
    page = files / "page.md"
    page.write_text(MARKED)
    page.write_text(updated(page, files))
    assert [b.first_difference for b in blocks_in(page, files)] == [None]
    page.write_text(MARKED.replace("overview", "overview --candidate '*@3.6'"))
    (block,) = blocks_in(page, files)
    assert "plain@3.6 21.09 us, unroll2@3.6 17.03 us" in block.derived
    assert "3.8" not in block.derived
    page.write_text(MARKED)
    page.write_text(updated(page, files))
    changed = replace(SEED2, timings=(replace(SEED2.timings[0], time_s=1.0), *SEED2.timings[1:]))
    (files / "bench.json").write_text(json.dumps(bench_data(changed)))
    assert [b.first_difference is None for b in blocks_in(page, files)] == [False]


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        ("bench.json", "at least one --section"), ("--section times", "names result files"),
        ("bench.json --section no", "no section is called"), ("none.json --section times", "none"),
        ("bench.json --section times --what x", "unknown option"),
        ("bench.json --section times --case no_such", "gives nothing"),
    ],
)  # fmt: skip
def test_markers_that_do_not_read(files, marker, told):
    page = files / "page.md"
    page.write_text(MARKED.replace("bench.json --section overview", marker))
    with pytest.raises(UsageError, match=told):
        list(blocks_in(page, files))


def test_a_marker_without_its_end(files):
    page = files / "page.md"
    page.write_text(MARKED.replace("<!-- /sparsekit report -->\n", ""))
    with pytest.raises(UsageError, match="marker"):
        list(blocks_in(page, files))
