"""Tables on terminals: every character of every cell is there, whatever the width."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sparsekit.report.document import Document, Lines, Table
from sparsekit.report.text import render_text

BUILD = Table(
    "Built",
    ("kernel", "variant", "instance", "arch", "toolchain", "regs", "status"),
    [
        ("gated_pool", variant, "kv_fp32,score_fp32,out_bf16,aligned", arch, "triton-3.7.1", n, s)
        for variant in ("plain", "unroll2")
        for arch, n, s in (("sm_80", 32, "built"), ("sm_90a", None, "failed"))
    ],
    frozenset({"regs"}),
)  # fmt: skip
REASONS = Table(
    "", ("folder", "reason"),
    [("/" + "deep/" * 30, "expected a spec.py " * 9), ("/here", "x" * 300)],
)  # fmt: skip
ONE = Table("One", ("", "a"), [("LDG 4x147, LDGSTS 16x41, LDS 16x22", "y" * 50)])
MANY = Table(
    "", tuple(f"c{i}" for i in range(30)), [tuple(range(100, 130)), tuple(range(200, 230))]
)
SAME = Table("", ("kernel", "arch"), [("sparse_prefill" * 9, "sm_90")] * 2)
WIDTHS = (12, 20, 40, 60, 80, 100, 120, 200)


def shown(*parts: Table | Lines, columns: int | None) -> str:
    text = render_text(Document({}, parts), terminal_columns=columns)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return "\n".join(line.rstrip() for line in plain.splitlines())


def characters(*texts: object) -> Counter[str]:
    return Counter(c for text in texts for c in str(text) if not c.isspace() and c not in "─·")


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("table", [BUILD, REASONS, ONE, MANY, SAME])
def test_no_character_is_lost(table, columns):
    """A column that all rows share may stand once: then it is no more in the rows."""
    text = shown(table, columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    found = characters(text)
    for row in table.rows:
        wanted = characters(*("–" if cell is None else cell for cell in row))
        assert wanted <= found, (columns, wanted - found)
    shared = [i for i, cells in enumerate(zip(*table.rows, strict=True)) if len(set(cells)) == 1]
    rows = [c for row in table.rows for i, c in enumerate(row) if i not in shared and c is not None]
    assert characters(*table.columns, *rows, *(table.rows[0][i] for i in shared)) <= found


def test_what_all_rows_share_stands_above_them_once():
    assert shown(BUILD, columns=80).splitlines() == [
        "Built",
        "kernel gated_pool · instance kv_fp32,score_fp32,out_bf16,aligned",
        "variant   arch     toolchain      regs   status",
        "───────────────────────────────────────────────",
        "plain     sm_80    triton-3.7.1     32   built",
        "plain     sm_90a   triton-3.7.1      –   failed",
        "unroll2   sm_80    triton-3.7.1     32   built",
        "unroll2   sm_90a   triton-3.7.1      –   failed",
    ]


def test_what_does_not_fit_is_folded():
    table = Table("", ("arch", "reason"), [("sm_80", "no such target here")])
    assert shown(table, columns=20).splitlines() == [
        "arch   reason",
        "────────────────────",
        "sm_80  no such",
        "       target here",
    ]


def test_a_table_of_too_many_columns_has_a_paragraph_for_each_row():
    text = shown(MANY, columns=40)
    assert "\n\nc0 200 · c1 201 · c2 202 · c3 203\nc4 204 · " in text


def test_what_fits_and_what_goes_to_a_pipe_stays_a_table():
    piped = shown(BUILD, columns=None).splitlines()
    assert piped == shown(BUILD, columns=200).splitlines()
    assert piped[1].split() == list(BUILD.columns)
    assert all("gated_pool" in line and "triton-3.7.1" in line for line in piped[3:])
