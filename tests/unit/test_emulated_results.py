"""The pages of the kernels that only the emulator has run name what it has not run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from conftest import ROOT
from emulated_code import FILE, emulated_entries, locked_code

from sparsekit.discover import Catalog
from sparsekit.model import Case

MOST_RANDOM = 20


def _of_heads(case: Case) -> bool:
    """Whether the number of heads is what the case is about; in others it may be set."""
    return case.name.startswith(("heads_", "layout_"))


# Variants that share what their cases are, by kernel; which cases these are.
FORMS: dict[str, dict[str, tuple[tuple[str, ...], Callable[[Case], bool]]]] = {
    "sparse_prefill_sm100": {
        "one block": (("skip", "noskip"), lambda c: not _of_heads(c) or c.dims["h_q"] <= 64),
        "a pair": (("skip_pair", "noskip_pair"), lambda c: not _of_heads(c) or c.dims["h_q"] > 64),
    },
    "sparse_prefill_sm120": {
        "64 heads": (("skip", "noskip"), lambda c: True),
        "32 heads": (("skip_heads32",), lambda c: c.dims["h_q"] <= 32),
    },
}


def emulated(kernel: str, variants: Iterable[str], random: int) -> set[str]:
    """The op's cases that all of the variants have run right, under so many random schedules, with
    the same bits. The sizes that the emulator takes stand in brackets behind a case's name."""
    file = ROOT / "docs" / "results" / f"{kernel}-emulated.json"
    bits: dict[str, dict[str, str]] = {}
    for r in json.loads(file.read_text())["results"]:
        enough = sum(s.startswith("random") for s in r["schedules"]) >= random
        counts = r["variant"] in variants and not r["case"].endswith("/zero_q")
        if counts and r["ok"] and (enough or not r["launches"]):
            name = r["case"].partition("[")[0]
            told = " ".join(o["sha256"] for o in r["outputs"].values())
            bits.setdefault(name, {})[r["variant"]] = told
    return {
        name for name, by_variant in bits.items()
        if set(by_variant) >= set(variants) and len(set(by_variant.values())) == 1
    }  # fmt: skip


def missing(kernel: str, form: str, tag: str, random: int) -> str:
    """Names of cases, those of one kind together where none of it has run."""
    variants, takes = FORMS[kernel][form]
    op = next(c.op for c in Catalog().resolve(["sparse_prefill"]))
    wanted: dict[str, set[str]] = {}
    for case in op.cases:
        if tag in case.tags and takes(case):
            wanted.setdefault(case.name.partition("_")[0], set()).add(case.name)
    ran = emulated(kernel, variants, random)
    told: list[str] = []
    for kind, names in wanted.items():
        left = names - ran
        told += [f"{kind}_*"] if left == names and len(names) > 1 else sorted(left)
    return ", ".join(f"`{name}`" for name in told) or "nothing"


@pytest.mark.parametrize(("kernel", "form"), [(k, f) for k, forms in FORMS.items() for f in forms])
def test_the_page_names_what_has_not_been_emulated(kernel, form):
    page = (ROOT / "kernels_cu" / kernel / "README.md").read_text()
    for tag, random, what in (
        ("smoke", MOST_RANDOM, "smoke cases, 20 random schedules"),
        ("corner", 0, "corner cases"),
    ):
        row = f"| {form}: {what} | {missing(kernel, form, tag, random)} |"
        assert row in page, row


def test_what_has_been_emulated_is_the_code_of_today():
    """By the lock, so that it needs no compiler; a comment in the sources changes no code."""
    of_key, today = json.loads(FILE.read_text()), locked_code()
    other: dict[str, list[str]] = {}
    for key, name, case in emulated_entries():
        if of_key.get(key) is None or of_key[key] != today[name]:
            other.setdefault(name, []).append(case)
    assert not other, f"run again, then tests/unit/emulated_code.py: {other}"
