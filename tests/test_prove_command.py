"""`prove` from its options to its commands, files and exit codes; what it runs is told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sparsekit.cli.prove_command import command
from sparsekit.model.call import Device
from sparsekit.operators.own_process import Ended, run_again

BLACKWELL = Device((10, 0), 148, 232448, 0, "Told GPU")
STEPS = ("verify", "bitwise", "bench")


def name_of(arguments) -> str:
    return "bitwise" if "--bitwise" in arguments else arguments[0]


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """invoke(arguments, codes by step) -> (the result, the commands that ran)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sparsekit.runtime.probe.probe_devices",
        lambda: SimpleNamespace(devices=(BLACKWELL,), problem=None),
    )

    def run(*arguments: str, codes: dict[str, int | None] | None = None):
        ran: list[tuple[str, ...]] = []

        def told(arguments, limit_s, *, talks):
            assert (limit_s, talks) == (1800, True)
            ran.append(tuple(arguments))
            code = (codes or {}).get(name_of(arguments), 0)
            if code in (0, 1):
                Path(arguments[arguments.index("-o") + 1]).write_text("{}")
            return Ended(code)

        monkeypatch.setattr("sparsekit.operators.own_process.run_again", told)
        done = CliRunner().invoke(
            command, [*arguments, "--cache-dir", str(tmp_path / "store"), "--format", "json"]
        )
        return done, ran

    return run


def test_one_command_verifies_times_and_reports(invoke):
    done, ran = invoke("cu/sparse_prefill_sm100", "--folder", "b200")
    assert done.exit_code == 0, done.output
    assert [name_of(c) for c in ran] == [*STEPS, "report"]
    assert all(c[1] == "cu/sparse_prefill_sm100" for c in ran[:3])
    assert ran[2][2:4] == ("--against", "cu/sparse_prefill")
    files = [f"b200/{step}-sparse_prefill.json" for step in STEPS]
    assert ran[3] == ("report", *files, "-o", "b200/page.md")
    assert [s["file"] for s in json.loads(done.stdout)["steps"]] == [*files, "b200/page.md"]


def test_without_a_name_what_has_not_run_on_such_a_gpu(invoke):
    _, ran = invoke()
    prefill = next(c for c in ran if "proof/verify-sparse_prefill.json" in c)
    assert {"cu/sparse_prefill", "cu/sparse_prefill_sm100"} <= set(prefill)
    assert not any("sm90" in name for name in prefill)
    bench = next(c for c in ran if "proof/bench-sparse_prefill.json" in c)
    assert "--against" not in bench  # the one that would stand in is among them


@pytest.mark.parametrize(
    ("codes", "exit_code", "reported"),
    [
        ({"verify": 1}, 1, 3), ({"bench": 6}, 6, 2), ({"bitwise": None}, 6, 2),
        ({"verify": -11, "bitwise": 1}, 6, 2), (dict.fromkeys(STEPS, 6), 6, None),
    ],
)  # fmt: skip
def test_what_fails_is_told_and_the_rest_runs(invoke, codes, exit_code, reported):
    Path("proof").mkdir()
    Path("proof/bench-sparse_prefill.json").write_text("of another day")
    done, ran = invoke("cu/sparse_prefill_sm100:skip", codes=codes)
    assert done.exit_code == exit_code
    assert [name_of(c) for c in ran][:3] == list(STEPS)
    of_page = [c for c in ran if c[0] == "report"]
    assert [len(c) - 3 for c in of_page] == ([] if reported is None else [reported])
    told = {name_of(s["command"].split()[1:]): s for s in json.loads(done.stdout)["steps"]}
    assert {name: told[name]["exit_code"] for name in codes} == codes
    assert all(told[name]["ended"] == (code is None) for name, code in codes.items())


def test_the_commands_can_be_looked_at_without_a_gpu(run_cli, tmp_path):
    done = run_cli("prove", "-n", "cu/sparse_prefill_sm100:skip*", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.strip().startswith("sparsekit ")]
    assert len(lines) == 3
    names = "cu/sparse_prefill_sm100:skip_pair cu/sparse_prefill_sm100:skip "
    assert all(names in line for line in lines)
    assert not (tmp_path / "proof").exists()


def test_without_a_gpu_nothing_is_proven(run_cli, tmp_path):
    done = run_cli("prove", "cu/sparse_prefill_sm100", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 6
    assert "look at the commands with -n" in done.stderr


def test_a_process_that_takes_too_long_is_ended():
    assert run_again(["--help"], 0.01) == Ended(None)
    assert run_again(["--help"], 60).code == 0
    wrong = run_again(["no-such-command"], 60)
    assert (wrong.code, "no-such-command" in wrong.stderr) == (2, True)
