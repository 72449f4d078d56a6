"""The upper rungs of verification: streams, ulp histograms and golden digests, on the CPU."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from click.testing import CliRunner

from sparsekit.check.beside import (
    ENDS,
    ON_STREAMS,
    STREAMS,
    beside_pairs,
    verify_ends,
    verify_streams,
)
from sparsekit.check.campaign import Pair, against_bits
from sparsekit.check.compare import compare_bits
from sparsekit.check.golden import read_golden, write_golden
from sparsekit.check.reference import load_reference
from sparsekit.check.subject import Ran, repeated
from sparsekit.check.workload import make_workload
from sparsekit.cli.verify_command import command
from sparsekit.discover import Catalog
from sparsekit.errors import UsageError
from sparsekit.model.call import Device
from sparsekit.model.results import OutputCheck, VerifyResult
from sparsekit.report.verify import verify_document
from sparsekit.runtime.probe import Probe

CPU = torch.device("cpu")
OP = Catalog().ops["gated_pool"]
NAN = float("nan")


@dataclass
class Kernel:
    """The reference, with one ulp more in call number `wrong`."""

    wrong: int | None = None
    kernel: str = "fake"
    variant: str = "plain"
    arch: str | None = None
    calls: int = field(default=0, compare=False)

    def turns(self, repeat):
        return repeated(self, repeat)

    def compute(self, inputs, outputs):
        self.calls += 1
        right = importlib.import_module("sparsekit.ops.gated_pool.reference").reference(inputs)
        outputs["out"].copy_(right["out"].to(outputs["out"].dtype))
        if self.calls == self.wrong:
            outputs["out"].view(torch.int16)[1, 0, 7] += 1
        return Ran("sm_00", "none-0", "key0")


def workload():
    return make_workload(OP, load_reference(OP), OP.case("r8_d128"), "random", CPU)


def test_streams_that_agree():
    result = verify_streams(workload(), Kernel())
    assert result.ok
    assert (result.runs, result.against) == (STREAMS + 1, "itself on 4 streams at once")
    assert (result.arch, result.toolchain, result.key) == ("sm_00", "none-0", "key0")


def test_one_stream_that_differs_is_named_with_place_and_ulp():
    result = verify_streams(workload(), Kernel(wrong=3))
    assert result.ok is False
    assert "on stream 2" in result.outputs["out"].problem
    assert "[1, 0, 7]" in result.outputs["out"].problem
    assert result.outputs["out"].ulp_histogram["1"] == 1


def test_smoke_cases_climb_it_all():
    pair = Pair(Kernel(), Kernel())
    results = list(against_bits(OP, [pair], [OP.case("r8_d128")], CPU, 2))
    assert [r.against for r in results] == [
        "itself", f"itself on {STREAMS} streams at once",
        "row 0 in batches of 1, 2, 3, 7, 64, 132, 133", "its middle and its last row, each alone",
    ]  # fmt: skip
    assert all(r.ok for r in results)


SMALL, GROUPS = OP.case("r8_d128"), OP.case("no_groups")
CORNER = replace(SMALL, name="corner", tags=("corner",))
ROWS = "row 0 in batches of 1, 2, 3, 7, 64, 132, 133"
GPU_CHECKS = [ON_STREAMS, ROWS, ENDS]
BESIDE = {
    "smoke": ([SMALL, CORNER], {}, GPU_CHECKS, ["of 1 cases without the tag smoke"]),
    "named": ([SMALL, CORNER], {"named": True}, GPU_CHECKS * 2, []),
    "no smoke": ([CORNER], {}, [], ["of 1 cases without the tag smoke"]),
    "across": ([SMALL], {"across": True}, [], ["toolchains are compared"]),
    "emulated": ([SMALL], {"emulated": True}, [ROWS], ["streams, which", "the middle and the la"]),
    "emulated, no row": ([GROUPS], {"emulated": True, "named": True}, [],
                         ["streams, which", "the middle and", "no_groups by themselves: emulated"]),
    "no row": ([GROUPS], {"named": True}, GPU_CHECKS, []),
}  # fmt: skip


@pytest.mark.parametrize("kind", BESIDE)
def test_what_is_looked_at_beside_pairs_and_what_is_left_out(kind):
    cases, options, wanted, told = BESIDE[kind]
    beside = beside_pairs(OP, cases, **options)
    assert [name for name, _, _ in beside.checks] == wanted
    assert len(beside.left_out) == len(told)
    for part, line in zip(told, beside.left_out, strict=True):
        assert part in line


def test_an_op_without_a_batch_has_no_rows_by_themselves():
    beside = beside_pairs(replace(OP, batch=""), [SMALL])
    assert [name for name, _, _ in beside.checks] == [ON_STREAMS]
    assert "names no batch" in beside.left_out[0]


def test_rows_that_an_op_does_not_take_are_left_out():
    few = replace(OP, check_case=lambda case: "too many" if case.dims["B"] > 9 else None)
    beside = beside_pairs(few, [SMALL])
    assert [name for name, _, _ in beside.checks] == [ON_STREAMS]
    assert "it takes no 133: too many" in beside.left_out[0]


def test_a_case_with_more_rows_keeps_them():
    large = replace(SMALL, dims={**SMALL.dims, "B": 300})
    ((_, _, _), (rows, case, _), _) = beside_pairs(OP, [large]).checks
    assert (rows, case) == (f"{ROWS}, 300", large)


@pytest.mark.parametrize("wrong", [None, 2, 3])
def test_a_middle_or_last_row_that_differs_alone_is_named(wrong):
    """The whole is the first call; the middle row is the second, the last row the third."""
    case = replace(SMALL, dims={**SMALL.dims, "B": 5})
    loaded = make_workload(OP, load_reference(OP), case, "random", CPU)
    result = verify_ends(loaded, OfOneRow(wrong))
    assert result.ok is (wrong is None)
    assert (result.against, result.runs) == (ENDS, 3)
    if wrong:
        assert f"row {2 if wrong == 2 else 4} alone: 1 of" in result.reason


@dataclass
class OfOneRow(Kernel):
    """The wrong element in the only row; what it reads lies as the first row of the whole does."""

    places: list = field(default_factory=list)

    def compute(self, inputs, outputs):
        places = [(t.data_ptr() % 64, t.stride()) for t in (inputs["kv"], inputs["score"])]
        self.places.append(places)
        assert places == self.places[0]
        self.calls += 1
        right = importlib.import_module("sparsekit.ops.gated_pool.reference").reference(inputs)
        outputs["out"].copy_(right["out"].to(outputs["out"].dtype))
        if self.calls == self.wrong:
            outputs["out"].view(torch.int16)[0, 0, 7] += 1
        return Ran("sm_00", "none-0", "key0")


@pytest.mark.parametrize("offset", [0, 3])
def test_a_row_alone_lies_as_its_tensor_does(offset):
    options = {**SMALL.options, "kv_pad": 5, "kv_offset": offset, "score_offset": offset}
    case = replace(SMALL, dims={**SMALL.dims, "B": 4}, options=options)
    loaded = make_workload(OP, load_reference(OP), case, "random", CPU)
    assert verify_ends(loaded, OfOneRow()).ok


def bits_of(values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def test_ulp_histogram():
    base = bits_of([1.0] * 8 + [0.0, NAN])
    found = base.clone()
    steps = torch.tensor([0, 0, 0, 1, 2, 3, 4, 9, 0, 0], dtype=torch.int32)
    found.view(torch.int32)[:] += steps
    found[8] = -0.0
    found.view(torch.int32)[9] += 1
    check = compare_bits(found, base)
    assert check.ulp_histogram == {"0": 4, "1": 1, "2": 1, "3-4": 2, "9-16": 1, "special": 1}
    assert check.worst_index == (3,)
    assert check.max_ulp == 9
    assert sum(check.ulp_histogram.values()) == found.numel()
    assert compare_bits(base, base).ulp_histogram == {"0": 10}


def test_the_report_shows_the_histogram():
    check = compare_bits(bits_of([1.0, 1.5]), bits_of([1.0, 1.25]))
    result = VerifyResult(
        "op", "k", "v", None, None, "cpu", "case", "k:w", 2, {"out": check}, ok=False
    )
    lines = [
        x for p in verify_document([result], {"gpu": "X"}).parts for x in getattr(p, "lines", ())
    ]
    assert any("elements by ulp: 0: 1, " in line for line in lines)


RIGHT = VerifyResult(
    "op", "k", "v", "sm_90", "triton-3.6.0", "cuda:0", "case", "float64", 1,
    {"out": OutputCheck(True, "a" * 64, max_ulp=3)}, ok=True, key="f" * 64,
)  # fmt: skip
TOLD = {"gpu": "NVIDIA H200", "versions": {"torch": "2.11.0"}}


def test_golden_digests_come_back(tmp_path):
    file = tmp_path / "golden.json"
    assert read_golden(file) is None
    wrong = replace(RIGHT, case="other", ok=False)
    assert write_golden(file, [RIGHT, wrong], TOLD) == 1
    golden = read_golden(file)
    (same,) = golden.check([replace(RIGHT, toolchain="triton-3.8.0", key="0" * 64)])
    assert (same.ok, same.against, same.toolchain) == (True, "golden golden.json", "triton-3.8.0")
    assert list(golden.check([replace(RIGHT, outputs={}, skipped=True)])) == []


def test_golden_digests_that_differ_say_what_made_them(tmp_path):
    file = tmp_path / "golden.json"
    write_golden(file, [RIGHT], TOLD)
    changed = replace(RIGHT, outputs={"out": OutputCheck(True, "b" * 64)})
    (result,) = read_golden(file).check([changed])
    assert result.ok is False
    for part in ("out changed since triton-3.6.0 for sm_90", "NVIDIA H200", "torch 2.11.0", "ffff"):
        assert part in result.reason


def test_a_case_that_the_golden_file_lacks_is_skipped_with_the_reason(tmp_path):
    file = tmp_path / "golden.json"
    write_golden(file, [RIGHT], TOLD)
    (result,) = read_golden(file).check([replace(RIGHT, case="new")])
    assert result.skipped
    assert "holds no digests of k:v new" in result.reason


def test_the_toolchain_is_no_part_of_a_golden_name(tmp_path):
    """What one compiler made checks what the next one makes, named or not."""
    file = tmp_path / "golden.json"
    write_golden(file, [replace(RIGHT, variant="v@triton-3.6.0")], TOLD)
    for variant, digest, ok in (
        ("v@triton-3.8.0", "a", True), ("v", "a", True), ("v@triton-3.8.0", "b", False),
    ):  # fmt: skip
        outputs = {"out": OutputCheck(True, digest * 64)}
        (found,) = read_golden(file).check([replace(RIGHT, variant=variant, outputs=outputs)])
        assert (found.ok, found.variant) == (ok, variant)
        assert ok or "out changed since triton-3.6.0 for sm_90" in found.reason


def test_an_output_that_the_result_lacks_fails(tmp_path):
    file = tmp_path / "golden.json"
    two = {**RIGHT.outputs, "lse": OutputCheck(True, "c" * 64)}
    write_golden(file, [replace(RIGHT, outputs=two)], TOLD)
    (found,) = read_golden(file).check([RIGHT])
    assert found.ok is False
    assert found.reason.startswith("lse lacking since triton-3.6.0")


def test_no_golden_file_is_made_of_nothing(tmp_path):
    file = tmp_path / "golden.json"
    assert write_golden(file, [replace(RIGHT, ok=False)], TOLD) == 0
    assert not file.exists()


def golden_text(**changed):
    whole = {"schema": 1, "kind": "golden", "environment": TOLD,
             "entries": {"k:v case": ENTRY}}  # fmt: skip
    return json.dumps({**whole, **changed})


ENTRY = {"outputs": {"out": "a" * 64}, "toolchain": "t", "arch": "sm_90", "key": "f"}
NO_GOLDEN = {
    "empty": ("", "Expecting value"),
    "no kind": ("{}", "expected kind 'golden' and schema 1, found None and None"),
    "list": ("[]", "the file: expected an object, found"),
    "another kind": (golden_text(kind="bench"), "found 'bench' and 1"),
    "another schema": (golden_text(schema=2), "found 'golden' and 2"),
    "too deep": ("[" * 100_000, "nested too deeply"),
    "environment": (golden_text(environment=[1]), r"environment: expected an object, found \[1"),
    "versions": (golden_text(environment={"versions": 3}), "versions: expected an object, found 3"),
    "entries": (golden_text(entries=[]), r"entries: expected an object, found \[\]"),
    "no entries": (golden_text(entries={}), "expected entries, found none"),
    "null": (golden_text(entries={"a": None}), "entry 'a': expected an object, found null"),
    "no outputs": (golden_text(entries={"a": {}}), "outputs of 'a': expected an object, found nu"),
    "outputs": (golden_text(entries={"a": {"outputs": []}}), r"expected an object, found \[\]"),
    "outputs of none": (golden_text(entries={"a": {"outputs": {}}}), "expected digests by name"),
    "digest": (golden_text(entries={"a": {"outputs": {"o": 3}}}), "output o of 'a': expected a st"),
    "toolchain": (golden_text(entries={"a": {**ENTRY, "toolchain": 3}}), "toolchain of 'a': exp"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", NO_GOLDEN)
def test_a_file_that_is_no_golden_file(tmp_path, wrong):
    text, told = NO_GOLDEN[wrong]
    file = tmp_path / "golden.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"(?s)does not read as a golden file: .*{told}"):
        read_golden(file)


def test_a_golden_entry_without_what_made_it_still_checks(tmp_path):
    file = tmp_path / "golden.json"
    file.write_text(golden_text(environment={}, entries={"k:v case": {"outputs": {"out": "b"}}}))
    (found,) = read_golden(file).check([RIGHT])
    assert found.ok is False


def test_across_toolchains_pairs_every_other_toolchain_with_the_default(tmp_path, monkeypatch):
    """The pairs that the command makes; on the CPU the kernels themselves refuse the call."""
    store = tmp_path / "store"
    (store / "toolchains").mkdir(parents=True, mode=0o700)
    store.chmod(0o700)
    record = {"lang": "triton", "version": "9.9.9", "fingerprint": "ab" * 32, "overrides": {}}
    (store / "toolchains" / "triton-9.9.9.json").write_text(json.dumps(record))
    gpu = Device((9, 0), 132, 232448, 0, "Told GPU", "0000:00:00.0")
    monkeypatch.setattr("sparsekit.cli.verify_command.probe_devices", lambda: Probe((gpu,)))
    monkeypatch.setattr("sparsekit.cli.verify_command.gpu_of", lambda text, probe: (CPU, gpu))
    monkeypatch.setenv("SPARSEKIT_DATA_DIR", str(tmp_path / "none"))
    arguments = ["triton/gated_pool:plain", "--bitwise", "--across-toolchains", "--case", "r8_d128"]
    done = CliRunner().invoke(command, [*arguments, "--cache-dir", str(store), "--format", "json"])
    (result,) = json.loads(done.stdout)["results"]
    assert result["variant"] == "plain@triton-9.9.9"
    assert result["against"] == "gated_pool:plain"
    assert "CUDA device" in result["reason"]


def test_golden_and_toolchains_say_what_they_need():
    done = CliRunner().invoke(command, ["gated_pool", "--across-toolchains"])
    assert "go with --bitwise" in str(done.exception)
    done = CliRunner().invoke(command, ["gated_pool", "--golden", __file__])
    assert "does not read as a golden file" in str(done.exception)
