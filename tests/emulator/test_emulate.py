"""`sparsekit emulate`: the worked example of docs/emulator.md, and what goes wrong in a file."""

from __future__ import annotations

import json
import re
import sys

import pytest
from conftest import ROOT

from sparsekit.__main__ import run as run_command

EXAMPLES = ROOT / "docs" / "examples"
PTX, ARGS = EXAMPLES / "reverse.ptx", EXAMPLES / "reverse_args.py"
PAGE = ROOT / "docs" / "emulator.md"


@pytest.fixture
def emulate(monkeypatch, capsys):
    """(exit code, JSON document or None, standard error)."""

    def run(ptx, args, *options):
        argv = ["emulate", str(ptx), "--args", str(args), "--format", "json", *options]
        monkeypatch.setattr(sys, "argv", ["sparsekit", *argv])
        code = run_command()
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    return run


@pytest.fixture
def without_barrier(tmp_path):
    file = tmp_path / "reverse.ptx"
    file.write_text(PTX.read_text().replace("\tbar.sync 0;\n", ""))
    return file


def test_the_example(emulate):
    code, told, _ = emulate(PTX, ARGS)
    assert code == 0
    assert told["ok"]
    assert told["findings"] == []
    assert told["schedules"] == ["lazy", "eager", "random(1)", "random(2)"]
    (coverage,) = told["coverage"]
    assert coverage["entry"] == "reverse"
    assert coverage["uncovered"] == []


def test_the_example_without_its_barrier(emulate, without_barrier):
    code, told, _ = emulate(without_barrier, ARGS)
    assert code == 1
    race = told["findings"][0]
    assert race["check"] == "race"
    assert race["instruction"] == "ld.shared.f32 %f2, [%r12];"
    assert (
        without_barrier.read_text().splitlines()[race["ptx_line"] - 1].strip()
        == (race["instruction"])
    )
    assert race["schedules"] == told["schedules"]


def test_the_page_shows_what_happens(emulate, without_barrier, monkeypatch, capsys):
    """The output that the page quotes, word for word."""
    page = PAGE.read_text()
    monkeypatch.setattr(
        sys, "argv", ["sparsekit", "emulate", str(without_barrier), "--args", str(ARGS)]
    )
    assert run_command() == 1
    out = capsys.readouterr().out
    quoted = re.search(r"```\n(race: warp 0 reads.*?)```", page, re.S)
    assert quoted is not None
    for line in quoted[1].splitlines():
        assert line in out
    for block in (ARGS.read_text().split("import numpy as np\n")[1],):
        assert block.strip() in page


def test_every_check_is_on_the_page():
    from sparsekit.emulator import CHECKS, STRICT_CHECKS

    page = PAGE.read_text()
    for name, what in CHECKS.items():
        assert f"| `{name}` | {what} |" in page
    for name, what in STRICT_CHECKS.items():
        assert f"| `{name}` | with `--strict`: {what} |" in page


def test_without_the_check_only_the_schedule_tells(emulate, without_barrier):
    code, told, _ = emulate(without_barrier, ARGS, "--without", "race,uninitialised")
    assert code == 1
    assert told["findings"] == []
    assert "not reversed (schedule random(" in told["problem"]


SCRIPTS = {
    "a wrong result": ("assert False, 'values differ'", 1, "the check failed: values differ"),
    "a bare assertion": ("assert 1 == 2", 1, "args.py:"),
    "nothing launched": ("pass", 1, "nothing was launched"),
    "an unknown entry": ("device.launch('other', 1, 128, [])", 2, "no entry 'other'"),
    "wrong arguments": ("device.launch('reverse', 1, 128, [1])", 2, "takes 3 parameters"),
    "wrong threads": ("device.launch('reverse', 1, 64, [0, 0, 0])", 2, "is for blocks of"),
    "an error of its own": ("undefined_name", 3, "NameError"),
    "no mapping": ("return 3", 3, "must return arrays by name"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_goes_wrong_in_the_script(emulate, tmp_path, name):
    body, wanted, text = SCRIPTS[name]
    script = tmp_path / "args.py"
    script.write_text(f"def run(device):\n    {body}\n")
    code, told, error = emulate(PTX, script, "--seeds", "0")
    assert code == wanted
    assert text in (told["problem"] if told else error)
    assert "Traceback" not in error


def test_a_fault_ends_the_run_and_what_follows_does_not_happen(emulate, tmp_path):
    script = tmp_path / "args.py"
    script.write_text(
        "def run(device):\n"
        "    x = device.allocate(4, 'tiny')\n"
        "    device.launch('reverse', 1, 128, [x, x, 128])\n"
        "    raise RuntimeError('never reached')\n"
    )
    code, told, _ = emulate(PTX, script)
    assert code == 1
    assert {f["check"] for f in told["findings"]} <= {"bounds", "uninitialised"}
    assert "tiny" in told["findings"][0]["message"]


def test_results_that_depend_on_the_schedule(emulate, tmp_path):
    script = tmp_path / "args.py"
    script.write_text(
        "import numpy as np\n"
        "def run(device):\n"
        "    x = device.allocate(np.ones(128, 'f4'))\n"
        "    device.launch('reverse', 1, 128, [x, x, 128])\n"
        "    return {'seed': np.array(device.schedule.seed), 'x': device.read(x, 'f4')}\n"
    )
    code, told, _ = emulate(PTX, script, "--seeds", "1")
    assert code == 1
    assert told["problem"] == "seed depends on the schedule: random(1) differs from lazy"


def test_files_that_are_none(emulate, tmp_path):
    assert emulate(tmp_path / "no.ptx", ARGS)[0] == 2
    assert emulate(PTX, tmp_path / "no.py")[0] == 2
    broken = tmp_path / "broken.ptx"
    broken.write_text(".version 8.0\n.target sm_80\nnonsense\n")
    code, _, error = emulate(broken, ARGS)
    assert code == 5
    assert "PTX line 3" in error
    empty = tmp_path / "empty.py"
    empty.write_text("x = 1\n")
    code, _, error = emulate(PTX, empty)
    assert code == 3
    assert "defines no run(device)" in error
