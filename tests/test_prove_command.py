"""`prove` from its options to its commands, files and exit codes; what it runs is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sparsekit.cli.prove_command import command
from sparsekit.errors import UsageError
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

        def told(arguments, limit_s, *, log):
            assert (limit_s, log.suffix) == (1800, ".log")
            ran.append(tuple(arguments))
            code = (codes or {}).get(name_of(arguments), 0)
            if code == -signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
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
    *checks, report = lines
    assert len(checks) == 3
    names = "cu/sparse_prefill_sm100:skip_pair cu/sparse_prefill_sm100:skip "
    assert all(names in line for line in checks)
    files = " ".join(f"proof/{step}-sparse_prefill.json" for step in STEPS)
    assert report.strip() == f"sparsekit report {files} -o proof/page.md"
    assert not (tmp_path / "proof").exists()


def test_without_a_gpu_nothing_is_proven(run_cli, tmp_path):
    done = run_cli("prove", "cu/sparse_prefill_sm100", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 6
    assert "look at the commands with -n" in done.stderr


def test_a_kernel_without_code_for_the_gpu_is_refused_before_anything_runs(invoke):
    done, ran = invoke("cu/sparse_prefill_sm100", "cu/sparse_prefill_sm120")
    assert (type(done.exception), ran) == (UsageError, [])
    text = "cu/sparse_prefill_sm120 has no code for 10.0; it is for sm_120, sm_121"
    assert text in str(done.exception)
    assert not Path("proof").exists()


def test_stopped_midway_it_says_what_there_is_and_leaves_no_old_result(invoke):
    Path("proof").mkdir()
    for old in ("bench-sparse_prefill.json", "page.md"):
        Path("proof", old).write_text("of another day")
    done, ran = invoke("cu/sparse_prefill_sm100", codes={"bitwise": -signal.SIGTERM})
    assert done.exit_code != 0
    assert [name_of(c) for c in ran] == ["verify", "bitwise"]
    assert "stopped; there are proof/verify-sparse_prefill.json" in done.stderr
    assert [f.name for f in Path("proof").iterdir()] == ["verify-sparse_prefill.json"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_process_that_takes_too_long_is_ended():
    assert run_again(["--help"], 0.01) == Ended(None)
    assert run_again(["--help"], 60).code == 0
    wrong = run_again(["no-such-command"], 60)
    assert (wrong.code, "no-such-command" in wrong.stderr) == (2, True)


def test_what_a_process_says_is_kept(tmp_path, capsys):
    log = tmp_path / "step.log"
    assert run_again(["no-such-command"], 60, log=log) == Ended(2)
    assert "no-such-command" in log.read_text()
    assert capsys.readouterr().err == log.read_text()
