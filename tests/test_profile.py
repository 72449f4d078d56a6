"""Profiling without a GPU: ncu's pages, its refusals, and what is told without it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase

import pytest

from sparsekit.measure.metrics import Metric, chip_of, known_metrics, metrics_for
from sparsekit.measure.ncu import Ncu, NotProfiled
from sparsekit.measure.ncu_page import Unreadable, joined, read_raw_page
from sparsekit.measure.profile import static_counts, with_counters
from sparsekit.model.arch import ALL_CAPABILITIES
from sparsekit.model.bench import Ceilings
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.report.markdown import render_markdown
from sparsekit.report.plots import roofline, standalone
from sparsekit.report.profile import TITLES, profile_document
from sparsekit.report.roof import Point, Roof
from sparsekit.report.roof_text import drawn

SM90 = metrics_for((9, 0))
ROOF = Ceilings(663.0, 4256.0)
# A raw page as ncu prints it: its own lines first, then names, units, and a row per launch.
RAW_PAGE = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
a line of the program, with, commas
"ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__bytes_read.sum","gpu__time_duration.sum","sm__pipe_tensor_cycles_active.avg",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__sass_inst_executed_op_global_ld.sum"
"","","","","","","","","","byte","ns","cycle","%","inst","inst","inst"
"0","4242","decode_split","1","7","(256, 1, 1)","(40, 1, 1)","0","9.0",\
"1,000","3000","400","50","3","1","120"
"1","4242","decode_merge","1","7","(128, 1, 1)","(64, 1, 1)","0","9.0",\
"500","1000","0","10","1","3","n/a"
"""


def test_the_raw_page_is_read_behind_the_talk():
    split, merge = read_raw_page(RAW_PAGE)
    assert (split.entry, merge.entry) == ("decode_split", "decode_merge")
    assert split.figures["dram__bytes_read.sum"] == 1000
    assert split.figures["gpu__time_duration.sum"] == pytest.approx(3e-6)
    assert "smsp__sass_inst_executed_op_global_ld.sum" not in merge.figures


@pytest.mark.parametrize(
    ("unit", "figure", "value"),
    [("us", "2.5", 2.5e-6), ("usecond", "2.5", 2.5e-6), ("Kbyte", "2", 2000), ("", "7", 7)],
)
def test_units(unit, figure, value):
    text = f'"ID","Kernel Name","a__b.sum"\n"","","{unit}"\n"0","k","{figure}"\n'
    (launch,) = read_raw_page(text)
    assert launch.figures["a__b.sum"] == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "==ERROR== nothing\n", "a,b\n1,2\n"])
def test_what_is_no_raw_page(text):
    with pytest.raises(Unreadable):
        read_raw_page(text)


def test_a_page_without_launches_is_empty():
    assert read_raw_page("\n".join(RAW_PAGE.splitlines()[:4])) == []


def test_launches_of_one_call_are_added_or_averaged_by_their_duration():
    counts, stalls = joined(read_raw_page(RAW_PAGE), SM90)
    assert counts["dram_read_bytes"] == Count(1500, "measured")
    assert counts["duration_s"].value == pytest.approx(4e-6)
    assert counts["tensor_cycles"].value == 400
    assert counts["tensor_percent"].value == pytest.approx((50 * 3 + 10) / 4)
    assert counts["global_loads"].value == 120
    assert sum(stalls.values()) == pytest.approx(100)
    assert stalls["barrier"] == pytest.approx(100 * (3 * 3 + 1) / 4 / 4)
    assert "occupancy_percent" not in counts


def test_names_differ_by_chip():
    assert SM90["dram_read_bytes"].name == "dram__bytes_read.sum"
    assert metrics_for((12, 0))["dram_read_bytes"].name == "dram__bytes_op_read.sum"
    assert "tma_loads" in SM90
    assert "tma_loads" not in metrics_for((8, 0))
    assert chip_of((9, 0)) == "gh100"
    for capability in ALL_CAPABILITIES:
        ours = {n for n in metrics_for(capability) if not n.startswith("stall ")}
        assert ours <= set(TITLES)


def test_metrics_that_the_chip_lacks_are_dropped_and_told():
    wanted = {"a": Metric("x__a.sum"), "b": Metric("x__b.avg.pct")}
    assert known_metrics(wanted, frozenset({"x__a"})) == ({"a": wanted["a"]}, ("b",))
    assert known_metrics(wanted, frozenset()) == (wanted, ())


@dataclass
class FakeNcu:
    """ncu's command line: what it prints, and the commands that it was given."""

    listed: str = ""
    profiling: tuple[int, str] = (0, "==PROF== Profiling\n")
    page: str = RAW_PAGE
    unknown: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)

    def __call__(self, command, limit_s):
        self.commands.append(list(command))
        if "--query-metrics" in command:
            return (0, self.listed) if self.listed else (1, "cannot")
        if "--import" in command:
            return 0, self.page
        asked = command[command.index("--metrics") + 1].split(",")
        if lost := self.unknown & set(asked):
            return 1, "".join(f"==ERROR== Failed to find metric {name}\n" for name in sorted(lost))
        if self.profiling[0] == 0:
            Path(command[command.index("--export") + 1]).write_bytes(b"report")
        return self.profiling


BASE = ProfileResult(
    "sparse_prefill", "seed1_ramp", "NVIDIA H200", "skip", "sparse_prefill",
    counts={"duration_s": Count(5e-6, "measured"), "registers": Count(124, "static")},
    flop=10**9, bytes=10**6,
)  # fmt: skip


def profiled(fake, tmp_path):
    ncu = Ncu(Path("/opt/ncu"), fake)
    return with_counters(BASE, ncu, ["python", "-m", "x"], (9, 0), tmp_path / "a.ncu-rep")


def test_counts_come_from_ncu_and_the_report_is_kept(tmp_path):
    fake = FakeNcu()
    result = profiled(fake, tmp_path)
    assert result.problem is None
    assert result.counts["dram_read_bytes"] == Count(1500, "measured")
    assert result.counts["duration_s"].value == pytest.approx(4e-6)
    assert result.counts["registers"] == Count(124, "static")
    assert result.entries == ("decode_split", "decode_merge")
    assert (tmp_path / "a.ncu-rep").is_file()
    command = fake.commands[1]
    for option, value in (("--clock-control", "none"), ("--profile-from-start", "off")):
        assert command[command.index(option) + 1] == value
    assert command[-3:] == ["python", "-m", "x"]


def test_what_the_chip_does_not_list_is_not_asked_for(tmp_path):
    counters = [m.counter for n, m in SM90.items() if n != "bank_conflicts"]
    fake = FakeNcu(listed="Device\n" + "\n".join(f"{c}   # of things" for c in counters))
    result = profiled(fake, tmp_path)
    assert result.dropped == ("bank_conflicts",)
    assert "bank_conflicts_pipe" not in " ".join(fake.commands[1])


def test_what_ncu_does_not_find_is_dropped_on_the_second_try(tmp_path):
    fake = FakeNcu(unknown={"lts__t_bytes.sum"})
    assert profiled(fake, tmp_path).dropped == ("l2_bytes",)
    assert len(fake.commands) == 4


@pytest.mark.parametrize(
    ("fake", "told"),
    [
        (FakeNcu(profiling=(1, "==ERROR== ERR_NVGPUCTRPERM - no permission")),
         "NVreg_RestrictProfilingToAdminUsers=0"),
        (FakeNcu(profiling=(0, "==WARNING== No kernels were profiled.")), "saw no launch"),
        (FakeNcu(profiling=(9, "it broke")), "exit code 9: it broke"),
        (FakeNcu(page="garbage"), "does not read"),
        (FakeNcu(page="\n".join(RAW_PAGE.splitlines()[:4])), "holds no launch"),
    ],
)  # fmt: skip
def test_without_counters_the_reason_is_told_and_the_rest_stays(fake, told, tmp_path):
    result = profiled(fake, tmp_path)
    assert told in result.problem
    assert result.counts == BASE.counts


def test_a_command_that_does_not_run():
    with pytest.raises(NotProfiled, match="exit code 127"):
        Ncu(Path("/no/such/ncu")).profile(["x"], SM90, None, Path("/tmp/none.ncu-rep"))


def test_static_counts_are_the_worst_entrys():
    @dataclass
    class Entry:
        registers: int
        shared_bytes: int
        spill_store_bytes: int | None

    found = static_counts([Entry(32, 100, 0), Entry(64, 50, 8)])
    assert {n: c.value for n, c in found.items()} == {
        "registers": 64, "shared_bytes": 100, "spill_bytes": 8,
    }  # fmt: skip
    assert "spill_bytes" not in static_counts([Entry(1, 1, None)])


def test_the_document_says_of_each_row_whether_it_was_measured():
    other = replace(
        BASE, label="noskip", problem="no permission",
        counts={"duration_s": Count(10e-6, "measured"), "registers": Count(120, "static")},
    )  # fmt: skip
    text = render_markdown(profile_document([other, BASE], {"gpu": "NVIDIA H200"}, None))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "0.500" in rows["duration, us"]
    assert "measured" in rows["duration, us"]
    assert "static" in rows["registers"]
    assert "noskip: no permission" in text


def test_the_document_places_each_candidate_under_the_roof():
    low = replace(BASE, label="low", bytes=10**9)
    told = Ceilings(400.0, 4000.0)
    text = render_markdown(profile_document([BASE, low], {"gpu": "X"}, told))
    assert "skip: 1e+03 FLOP per byte, 200 TFLOP/s, 50% of the roof of 400 TFLOP/s (matmul)" in text
    assert "low: 1 FLOP per byte, 200 TFLOP/s, 5000% of the roof of 4 TFLOP/s (copy)" in text


FIGURE = """\
TFLOP/s
        │
    400 ┤                                       ···················A·····
        │                                   ····
        │                                ···
    100 ┤                            ····
        │                        ····
        │                    ····
        │                ····
     10 ┤            ····
        │         ···
        │     ····
        │ ····*
        │·
      1 ┤
        └──────┬────────────────┬─────────────────┬─────────────────┬────
               1                10                100               1000  FLOP per byte
"""


def test_the_roofline_is_drawn_for_a_terminal():
    points = [Point("a", 900.0, 390.0), Point("b", 0.95, 2.4), Point("c", 0.96, 2.4)]
    *figure, a, b, c = drawn(points, Roof(Ceilings(400.0, 4000.0)))
    assert "\n".join(figure) + "\n" == FIGURE
    assert a == "A a: 900 FLOP per byte, 390 TFLOP/s, 98% of the roof of 400 TFLOP/s (matmul)"
    assert b == "B b: 0.95 FLOP per byte, 2.4 TFLOP/s, 63% of the roof of 3.8 TFLOP/s (copy)"
    assert c.startswith("C c: ")
    assert drawn([], Roof(ROOF)) == ()


def test_more_points_than_letters_are_all_told():
    lines = drawn([Point(f"p{n}", 10.0 + n, 20.0) for n in range(30)], Roof(ROOF))
    assert [line[:2] for line in lines[-30:]] == [*(f"{c} " for c in ascii_uppercase), *["+ "] * 4]


def test_results_survive_json():
    result = replace(BASE, stalls={"barrier": 1.0}, dropped=("l2_bytes",), entries=("a",))
    assert ProfileResult.from_json(result.to_json()) == result


def test_the_roofline_point_takes_counted_bytes_where_it_has_them():
    assert BASE.roofline_point == ("skip", 1000.0, pytest.approx(200.0))
    counts = {**BASE.counts, "dram_read_bytes": Count(3e6, "measured"),
              "dram_write_bytes": Count(1e6, "measured")}  # fmt: skip
    assert replace(BASE, counts=counts).roofline_point[1] == pytest.approx(250)
    assert replace(BASE, flop=None).roofline_point is None


def test_the_roofline_stands_alone():
    svg = standalone(roofline([Point("a", 10.0, 20.0)], ROOF))
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "--c0: #0969da" in svg
