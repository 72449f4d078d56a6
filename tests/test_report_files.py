"""Result files that are not as they should be: one error that says where, never a traceback."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import fields

import pytest
from test_report import (
    CONTROL,
    EMULATOR,
    INSPECTED,
    PAGED,
    PROFILED,
    ROOF,
    ROWS,
    SEED2,
    TOLD,
    TRIED,
    bench_data,
    emulated_result,
    replace,
)

from sparsekit.errors import UsageError
from sparsekit.model.bench import BenchResult, Ceilings, Interval, Mode, Reading, Timing
from sparsekit.model.profile import Count, ProfileResult
from sparsekit.report import schemas
from sparsekit.report.document import Document
from sparsekit.report.html import render_html
from sparsekit.report.markdown import render_markdown
from sparsekit.report.profile import profile_document
from sparsekit.report.sections import SECTIONS, parts_of
from sparsekit.report.stored import (
    Wanted,
    bench_results,
    ceilings_of,
    profile_results,
    read_stored,
)

SKIPPED = emulated_result("v", "b", "2", 0, skipped=True, ok=None, reason="too large", arch=None)
FINDING = {"subject": "op", "tool": "racecheck", "reports": 0, "expected": False, "ok": True}
KINDS = {
    "bench": bench_data(replace(SEED2, timings=SEED2.timings[:2], flop=10**9, bytes=10**6)),
    "verify": {
        "schema": 1, "kind": "verify", "environment": {**TOLD, "emulated": True},
        "results": [emulated_result("v", "a", "1", 2), SKIPPED],
    },
    "inspect": {**INSPECTED, "failed": [{"job": "j", "error": "e"}]},
    "profile": json.loads(json.dumps(profile_document(PROFILED, TOLD, ROOF).data)),
    "run": {"schema": 1, "kind": "run", "environment": TOLD},
    "sanitizer": {"schema": 1, "kind": "sanitizer", "environment": TOLD, "findings": [FINDING]},
    "control": CONTROL, "against-emulator": EMULATOR, "prefill-rows": ROWS, "paged-rows": PAGED,
    "prefill-tried": TRIED,
}  # fmt: skip
OTHER = (
    None, True, 0, -1.5, "", "x", "|`<b>\n\0", "\ud800", [], [1], {}, {"a": 1}, float("nan"),
    float("inf"), 1e-320, 1e300, 10**400,
)  # fmt: skip


SHOWN = "shown"


def places(data, place=()):
    """The place of every value below the top."""
    inside = data.items() if isinstance(data, dict) else enumerate(data)
    for name, value in inside:
        yield (*place, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*place, name))


def changed(data, place, *value):
    """The data with another value at that place, or without one."""
    made = copy.deepcopy(data)
    inside = made
    for name in place[:-1]:
        inside = inside[name]
    if value:
        inside[place[-1]] = value[0]
    else:
        del inside[place[-1]]
    return made


def pages(file):
    """Everything that a report can show of a file."""
    stored = [read_stored(file)]
    parts = parts_of(list(SECTIONS), stored, Wanted())
    results, profiles = bench_results(stored, Wanted()), profile_results(stored, Wanted())
    html = render_html("Results", parts, results, profiles, ceilings_of(stored))
    return render_markdown(Document({}, tuple(parts))), html


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_a_file_is_shown_or_refused_with_its_place(kind, tmp_path):
    file, data = tmp_path / "file.json", json.loads(json.dumps(KINDS[kind]))
    file.write_text(json.dumps(data))
    pages(file)
    refused = 0
    for place in places(data):
        for value in [(), *((v,) for v in OTHER)]:
            file.write_text(json.dumps(changed(data, place, *value)))
            told = outcome(file)
            refused += told != SHOWN
            assert told == SHOWN or str(file) in told
    assert refused > len(OTHER)


def outcome(file):
    """SHOWN where the file makes pages that can be written, else why it is refused."""
    try:
        shown = pages(file)
    except UsageError as error:
        return str(error)
    "".join(shown).encode()
    return SHOWN


def test_the_kinds_here_are_all_kinds():
    assert set(KINDS) == set(schemas.SCHEMAS)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        (schemas.BENCH_RESULT, BenchResult), (schemas.TIMING, Timing), (schemas.MODE, Mode),
        (schemas.READING, Reading), (schemas.INTERVAL, Interval), (schemas.CEILINGS, Ceilings),
        (schemas.PROFILE_RESULT, ProfileResult), (schemas.PROFILE_COUNT, Count),
    ],
)  # fmt: skip
def test_every_field_of_what_is_read_has_a_shape(shape, kind):
    assert {*shape.required, *shape.optional} == {f.name for f in fields(kind)}


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("environment",), [1], "environment: expected an object, found a list"),
        (("results", 0, "timings", 1, "time_s"), "x",
         "results[0].timings[1].time_s: expected a finite number above 0, found 'x'"),
        (("results", 0, "timings", 1, "tflops"), float("nan"), "finite number, not negative, found"
         " nan"),
        (("ceilings",), [1], "ceilings: expected an object, found a list"),
        (("results", 0, "mode", "extra"), 1, "results[0].mode has 'extra', which is not known"),
        (("schema",), "1", "schema 1, found schema '1'"),
        (("schema",), True, "schema 1, found schema true"),
        (("environment", "versions", "triton"), 3, "environment.versions['triton']: expected text"),
    ],
)  # fmt: skip
def test_the_error_names_the_file_the_place_and_what_was_found(place, value, told, tmp_path):
    file = tmp_path / "file.json"
    file.write_text(json.dumps(changed(KINDS["bench"], place, value)))
    with pytest.raises(UsageError, match=re.escape(told)) as caught:
        read_stored(file)
    assert "file.json" in str(caught.value)


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_the_command_line_says_it_and_exits_2(form, tmp_path, run_cli):
    (tmp_path / "file.json").write_text(json.dumps({**KINDS["profile"], "ceilings": [1]}))
    done = run_cli("report", "file.json", "--format", form, cwd=tmp_path)
    assert done.returncode == 2
    assert "file.json is no profile result: ceilings: expected an object" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "\ufeff{}", "{", "nan"])
def test_what_is_no_json(text, tmp_path):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(UsageError, match=r"file\.json"):
        read_stored(tmp_path / "file.json")
