"""Seed 2's story in generated code: 16-byte gathers that become 2-byte ones under Triton 3.8.

The figures are those of the seed's own kernel with its own specialisation; ours follows its
tile. The trailing skip, which the seed has not, adds one 4-byte load in a loop of its own.
"""

from __future__ import annotations

import json
import os

import pytest
from conftest import RUN_SLOW

TRITONS = ("triton-3.6.0", "triton-3.7.1", "triton-3.8.0", "triton-3.9.0")
GOOD, BAD = TRITONS[:2], TRITONS[2:]
TARGETS = {
    "9.0": ["sm_90a"],
    "8.0;8.6;8.9;9.0;10.0;12.0": ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"],
}
FEW, ALL = TARGETS
SKIP_LOADS = 1
# Widths of ld.global and cp.async in PTX, in bytes, of the prefill; and its shared bytes.
WIDE_LOADS = {"16": 4, "4": 18 + SKIP_LOADS}
WIDE = {
    "triton-3.6.0": (WIDE_LOADS, {"16": 16, "8": 2}),
    "triton-3.7.1": (WIDE_LOADS, {"16": 16, "4": 2}),
    "triton-3.8.0": (WIDE_LOADS, {"16": 16, "4": 2}),
    "triton-3.9.0": (WIDE_LOADS, {"16": 16, "4": 2}),
}
NARROW = ({"16": 12, "4": 2 + SKIP_LOADS, "2": 64}, {"4": 2})
WIDE_SHARED_BYTES, NARROW_SHARED_BYTES = 67968, 82048
# Gathers of one step of the loop over tiles, by class and width.
WIDE_GATHERS, NARROW_GATHERS = {"LDGSTS": {"16": 8}}, {"LDG": {"2": 64}}
# Loads in one step of the loop that finds the largest score.
MAX_LOOP = {
    "plain": {t: 4 if t in GOOD else 1 for t in TRITONS},
    "unroll2": dict.fromkeys(TRITONS, 8),
}
NEWEST = TRITONS[-1]  # which repeats what the one before it shows
EACH_TRITON = [*TRITONS[:-1], pytest.param(NEWEST, marks=pytest.mark.slow)]
pytestmark = pytest.mark.toolchains


@pytest.fixture(scope="module", params=[FEW, pytest.param(ALL, marks=pytest.mark.slow)])
def archs(request):
    return request.param


@pytest.fixture(scope="module")
def inspected(archs, toolchain_data_dir):
    """What the one command says of a kernel; each kernel is inspected once."""
    known: dict[str, dict] = {}
    tritons = [t for t in TRITONS if t != NEWEST or os.environ.get(RUN_SLOW)]

    def get(run_shipped, kernel: str) -> dict:
        if kernel not in known:
            done = run_shipped(
                "inspect-sass", f"triton/{kernel}", "--toolchain", ",".join(tritons),
                "--arch", archs, "--format", "json", SPARSEKIT_DATA_DIR=str(toolchain_data_dir),
                timeout=2400,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            known[kernel] = json.loads(done.stdout)
        return known[kernel]

    return get


def prefill(data: dict, variant: str, toolchain: str, archs: str) -> list[dict]:
    chosen = [
        e
        for e in data["entries"]
        if (e["variant"], e["toolchain"]) == (variant, toolchain)
        and e["entry"] == "sparse_attn_paged_prefill"
        and "has_cmp_counts0" in e["instance"]
    ]
    assert [e["arch"] for e in chosen] == TARGETS[archs]
    return chosen


@pytest.mark.parametrize("toolchain", EACH_TRITON)
@pytest.mark.parametrize("variant", ["plain", "hint16"])
def test_load_widths_and_shared_bytes_of_the_prefill(
    run_shipped, inspected, archs, toolchain, variant
):
    narrow = variant == "plain" and toolchain in BAD
    ld_global, cp_async = NARROW if narrow else WIDE[toolchain]
    for entry in prefill(inspected(run_shipped, "sparse_attn_paged"), variant, toolchain, archs):
        assert entry["ptx_loads"]["ld.global"] == ld_global, entry["arch"]
        assert entry["ptx_loads"]["cp.async"] == cp_async, entry["arch"]
        shared = NARROW_SHARED_BYTES if narrow else WIDE_SHARED_BYTES
        assert entry["shared_bytes"] == shared, entry["arch"]
        gathers = NARROW_GATHERS if narrow else WIDE_GATHERS
        assert [loop["gathers"] for loop in entry["loops"] if loop["gathers"]] == [gathers]
        assert entry["facts"]["gather.min_bytes"] == (2 if narrow else 16)


def test_the_hint_changes_no_sass_under_3_6(run_shipped, inspected, archs):
    data = inspected(run_shipped, "sparse_attn_paged")
    plain = [e["text_sha256"] for e in prefill(data, "plain", "triton-3.6.0", archs)]
    hinted = [e["text_sha256"] for e in prefill(data, "hint16", "triton-3.6.0", archs)]
    assert plain == hinted


@pytest.mark.parametrize("toolchain", EACH_TRITON)
def test_no_prefill_spills_with_the_hint(run_shipped, inspected, archs, toolchain):
    entries = prefill(inspected(run_shipped, "sparse_attn_paged"), "hint16", toolchain, archs)
    assert [e["arch"] for e in entries if e["spill_store_bytes"]] == []
    assert max(e["registers"] for e in entries) <= 128


@pytest.mark.parametrize("variant", MAX_LOOP)
def test_loads_in_the_max_loop_of_gated_pool(run_shipped, inspected, variant):
    entries = inspected(run_shipped, "gated_pool")["entries"]
    own = [e for e in entries if e["variant"] == variant]
    assert own
    for entry in own:
        expected = MAX_LOOP[variant][entry["toolchain"]]
        assert entry["facts"]["loop0.loads"] == expected, (entry["arch"], entry["toolchain"])
        assert entry["facts"]["loops.max_loads"] == 8
        assert entry["gathers"] == {}


def test_the_first_bad_release_is_3_8_0(run_shipped, inspected, archs):
    for kernel, variant, entry in (
        ("gated_pool", "plain", "gated_pool_fwd"),
        ("sparse_attn_paged", "plain", "sparse_attn_paged_prefill"),
    ):
        rows = [
            r for r in inspected(run_shipped, kernel)["matrix"]
            if (r["variant"], r["entry"]) == (variant, entry)
        ]  # fmt: skip
        assert {r["arch"] for r in rows} == set(TARGETS[archs])
        assert {r["first_bad"] for r in rows} == {"triton-3.8.0"}, kernel
        assert all(set(r["worst"]) <= set(BAD) for r in rows)


def test_the_fixed_variants_have_no_bad_release(run_shipped, inspected):
    rows = inspected(run_shipped, "gated_pool")["matrix"]
    rows += inspected(run_shipped, "sparse_attn_paged")["matrix"]
    bad = [(r["entry"], r["arch"], r["first_bad"], r["reasons"]) for r in rows
           if r["variant"] in ("unroll2", "hint16") and r["first_bad"]]  # fmt: skip
    assert bad == []
