"""Archs: spellings, targets, and which device runs which cubin."""

from __future__ import annotations

import re

import pytest

from sparsekit.errors import UsageError
from sparsekit.model.arch import ALL_CAPABILITIES, Arch, ArchRequest, parse_arch, parse_archs
from sparsekit.model.toolchain import assembler_role

SPELLINGS = {
    "sm_90a": (9, 0, "a"), "sm90a": (9, 0, "a"), "90a": (9, 0, "a"), "9.0a": (9, 0, "a"),
    "SM_90A": (9, 0, "a"), "sm_80": (8, 0, ""), "8.0": (8, 0, ""), "86": (8, 6, ""),
    "sm103": (10, 3, ""), "sm103a": (10, 3, "a"), "sm100f": (10, 0, "f"), "10.3": (10, 3, ""),
    "sm110": (11, 0, ""), "sm121": (12, 1, ""), "sm_120": (12, 0, ""), "12.0a": (12, 0, "a"),
}  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_that_people_use(text):
    assert parse_arch(text) == Arch(*SPELLINGS[text])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8.0a", "8.0a"), ("sm_999", "sm_999"), ("sm101", "sm_110"), ("90f", "sm_90 sm_90a"),
        ("compute_90", "90+PTX"), ("sm_75", "sm_75"), ("hopper", "hopper"), ("9.0b", "9.0b"),
    ],
)  # fmt: skip
def test_an_unknown_arch_is_an_error_that_names_it(text, told):
    with pytest.raises(UsageError, match=told.replace("+", r"\+")) as error:
        parse_archs(f"sm_80;{text}")
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("9", "did you mean 9.0?"), ("9a", "did you mean 9.0a?"), ("sm_12", "did you mean 12.0?"),
        ("10", "did you mean 10.0?"), ("13.0", "the nearest is 12.1;"),
        ("13", "the nearest is 12.1;"), ("8.5", "the nearest is 8.6;"),
        ("10.5", "the nearest is 10.3;"), ("7.5", "the nearest is 8.0;"),
        ("9.1", "all are 8.0 8.6 8.9 9.0 10.0 10.3 11.0 12.0 12.1, and 8.7 8.8 10.7 for kernels"),
    ],
)  # fmt: skip
def test_an_unknown_arch_is_told_what_was_likely_meant(text, told):
    with pytest.raises(UsageError, match=re.escape(f"unknown arch {text!r}: ")) as error:
        parse_archs(text)
    assert told in str(error.value)


@pytest.mark.parametrize("text", ["sm80;sm120", "sm80,sm120", "sm80 sm120", " 8.0 ; 12.0 "])
def test_list_separators(text):
    assert parse_archs(text) == (ArchRequest((8, 0)), ArchRequest((12, 0)))


def test_ptx_mark_belongs_to_its_item():
    plain, marked = parse_archs("8.6;9.0+PTX")
    assert (plain.ptx, marked.ptx) == (False, True)
    assert str(marked) == "9.0+PTX"


def test_all_and_native():
    assert [r.capability for r in parse_archs("all")] == list(ALL_CAPABILITIES)
    assert not any(r.named for r in parse_archs("all"))
    assert [r.capability for r in parse_archs("native", lambda: [(12, 0), (8, 6), (8, 6)])] == [
        (8, 6), (12, 0),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no GPU"):
        parse_archs("native", tuple)


def test_nothing_is_not_an_arch():
    with pytest.raises(UsageError):
        parse_archs("")


RUNS = [
    ("sm_80", (8, 0), True), ("sm_80", (8, 6), True), ("sm_86", (8, 0), False),
    ("sm_80", (9, 0), False), ("sm_80", (8, 7), False), ("sm_90", (9, 0), True),
    ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False), ("sm_100", (10, 3), True),
    ("sm_100a", (10, 3), False), ("sm_100f", (10, 3), True), ("sm_103f", (10, 0), False),
    ("sm_100f", (11, 0), False), ("sm_120", (12, 1), True), ("sm_120f", (12, 1), True),
    ("sm_121", (12, 0), False), ("sm_110", (11, 0), True), ("sm_100", (11, 0), False),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "device", "expected"), RUNS)
def test_which_cubin_runs_where(arch, device, expected):
    assert parse_arch(arch).runs_on(device) is expected


def test_ptx_runs_on_later_devices_only_when_it_has_no_suffix():
    assert parse_arch("sm_80").ptx_runs_on((12, 0))
    assert not parse_arch("sm_90a").ptx_runs_on((10, 0))
    assert not parse_arch("sm_90").ptx_runs_on((8, 9))


def test_archs_compare_by_number_not_by_text():
    assert parse_arch("sm_103") > parse_arch("sm_100f") > parse_arch("sm_90a")


@pytest.mark.parametrize(
    ("triton", "capability", "blackwell"),
    [
        ("3.8.0", (9, 0), False), ("3.8.0", (10, 0), True), ("3.8.0+git1", (12, 1), True),
        ("3.9.0", (8, 9), False), ("3.9.0", (9, 0), True), ("3.10.0", (9, 0), True),
    ],
)  # fmt: skip
def test_the_assembler_that_triton_uses(triton, capability, blackwell):
    assert (assembler_role(triton, capability) == "ptxas-blackwell") is blackwell
