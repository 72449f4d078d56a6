"""`report --check` and `--update`: what they refuse, and what they say where nothing is marked."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from test_report import MARKED, SEED2, bench_data

from sparsekit.cli.report_command import command
from sparsekit.errors import UsageError
from sparsekit.report.marked import blocks_in


@pytest.mark.parametrize("marker", ["bench.json --case 'one", 'bench.json --case "x', "a\\"])
def test_a_marker_whose_quotes_do_not_match_is_named_by_its_line(tmp_path, marker):
    page = tmp_path / "page.md"
    page.write_text(MARKED.replace("bench.json --section overview", marker))
    with pytest.raises(UsageError, match=r"page\.md:3: the marker .* does not read: No "):
        list(blocks_in(page, tmp_path))


@pytest.mark.parametrize("kind", ["--check", "--update"])
@pytest.mark.parametrize(
    "more",
    [
        ["-o", "out.md"], ["--section", "times"], ["--format", "markdown"], ["--op", "x"],
        ["--case", "x"], ["--candidate", "x"], ["--title", "x"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_goes_unheard_is_refused(kind, more, tmp_path, invoke_report):
    (tmp_path / "page.md").write_text(MARKED)
    error = invoke_report(kind, str(tmp_path / "page.md"), *more)
    assert error.exit_code == 2
    assert kind in str(error)
    assert {"-o": "--output"}.get(more[0], more[0]) in str(error)
    assert (tmp_path / "page.md").read_text() == MARKED


@pytest.fixture
def invoke_report():
    """The error that the command ends with."""
    return lambda *words: CliRunner().invoke(command, words).exception


def test_check_and_update_do_not_go_together(invoke_report):
    assert "--check and --update do not go together" in str(invoke_report("--check", "--update"))


@pytest.mark.parametrize("kind", ["--check", "--update"])
def test_another_folder_is_told_with_what_was_looked_for(kind, tmp_path, run_cli):
    done = run_cli("report", kind, cwd=tmp_path)
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert str(tmp_path) in told
    assert "README.md, docs/**/*.md, kernels_*/*/README.md" in told


def test_a_file_without_a_marked_table_is_named(tmp_path, run_cli):
    (tmp_path / "page.md").write_text("text\n")
    done = run_cli("report", "--check", "page.md", cwd=tmp_path)
    assert done.returncode == 2
    assert "no marked table in page.md" in done.stderr


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_a_page_of_nothing_is_refused_in_each_form(form, tmp_path, run_cli):
    (tmp_path / "empty.json").write_text(json.dumps({**bench_data(SEED2), "results": []}))
    words = ["report", "empty.json", "--format", form, "-o", "page", "--section", "times"]
    done = run_cli(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing of what was asked for" in done.stderr
    assert not (tmp_path / "page").exists()
