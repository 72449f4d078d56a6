"""Seed 2's story in generated code: 16-byte gathers that become 2-byte ones under Triton 3.8.

The figures are those of the seed's own kernel with its own specialisation; ours follows its
tile. The trailing skip, which the seed has not, adds one 4-byte load in a loop of its own.
"""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from sparsekit.codegen.sass import SassInstruction, access_bytes

ARCHS = "8.0;8.6;8.9;9.0;10.0;12.0"
SKIP_LOADS = 1
_NARROW = ({"16": 12, "4": 2 + SKIP_LOADS, "2": 64}, {"4": 2})
EXPECTED = {
    ("triton-3.6.0", "plain"): (({"16": 4, "4": 18 + SKIP_LOADS}, {"16": 16, "8": 2}), 67968),
    ("triton-3.6.0", "hint16"): (({"16": 4, "4": 18 + SKIP_LOADS}, {"16": 16, "8": 2}), 67968),
    ("triton-3.8.0", "plain"): (_NARROW, 82048),
    ("triton-3.8.0", "hint16"): (({"16": 4, "4": 18 + SKIP_LOADS}, {"16": 16, "4": 2}), 67968),
}
TILE_LOOPS = {
    ("triton-3.6.0", "plain"): {"LDG:4": 8, "LDGSTS:8": 1, "LDGSTS:16": 8},
    ("triton-3.6.0", "hint16"): {"LDG:4": 8, "LDGSTS:8": 1, "LDGSTS:16": 8},
    ("triton-3.8.0", "plain"): {"LDG:16": 8, "LDG:2": 64, "LDGSTS:4": 1},
    ("triton-3.8.0", "hint16"): {"LDG:4": 8, "LDGSTS:4": 1, "LDGSTS:16": 8},
}
# Loads in one step of the loop that finds the largest score.
MAX_LOOPS = {
    ("triton-3.6.0", "plain"): 4, ("triton-3.6.0", "unroll2"): 8,
    ("triton-3.8.0", "plain"): 1, ("triton-3.8.0", "unroll2"): 8,
}  # fmt: skip
pytestmark = pytest.mark.toolchains
_LISTED = re.compile(r"/\*([0-9a-f]+)\*/\s+(@\S+)?\s*(\S+)\s?(.*)")


@pytest.fixture(scope="module")
def inspected(toolchain_data_dir, tmp_path_factory):
    """Entries of a kernel under a toolchain, with their SASS; each pair is inspected once."""
    known: dict[tuple[str, str], list[dict]] = {}
    store = str(tmp_path_factory.mktemp("seed2-store"))

    def get(run_cli, kernel: str, toolchain: str) -> list[dict]:
        if (kernel, toolchain) not in known:
            done = run_cli(
                "inspect-sass", f"triton/{kernel}@{toolchain}", "--arch", ARCHS, "--dump", "sass",
                "--format", "json", SPARSEKIT_DATA_DIR=str(toolchain_data_dir),
                SPARSEKIT_CACHE_DIR=store, timeout=1200,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            known[kernel, toolchain] = json.loads(done.stdout)["entries"]
        return known[kernel, toolchain]

    return get


def loops(listing: list[str]) -> list[Counter[str]]:
    """Global loads by width in each loop: what lies between a backward branch and its target."""
    code = []
    for line in listing:
        match = _LISTED.fullmatch(line.strip())
        assert match, line
        code.append(SassInstruction(int(match[1], 16), match[2] or "", match[3], match[4]))
    found = []
    for instruction in code:
        target = re.search(r"0x([0-9a-f]+)\s*$", instruction.operands)
        if instruction.base == "BRA" and target and int(target[1], 16) < instruction.offset:
            body = [i for i in code if int(target[1], 16) <= i.offset <= instruction.offset]
            loads = [i for i in body if i.base in ("LDG", "LDGSTS")]
            found.append(Counter(f"{i.base}:{access_bytes(i.opcode)}" for i in loads))
    return found


def prefill(entries: list[dict], variant: str) -> list[dict]:
    chosen = [
        e
        for e in entries
        if e["variant"] == variant
        and e["entry"] == "sparse_attn_paged_prefill"
        and "has_cmp_counts0" in e["instance"]
    ]
    assert len(chosen) == len(ARCHS.split(";"))
    return chosen


@pytest.mark.parametrize(("toolchain", "variant"), EXPECTED)
def test_load_widths_and_shared_bytes_of_the_prefill(run_cli, inspected, toolchain, variant):
    (ld_global, cp_async), shared = EXPECTED[toolchain, variant]
    for entry in prefill(inspected(run_cli, "sparse_attn_paged", toolchain), variant):
        assert entry["ptx_loads"]["ld.global"] == ld_global, entry["arch"]
        assert entry["ptx_loads"]["cp.async"] == cp_async, entry["arch"]
        assert entry["shared_bytes"] == shared, entry["arch"]
        assert TILE_LOOPS[toolchain, variant] in loops(entry["listing"]), entry["arch"]


def test_the_hint_changes_no_sass_under_3_6(run_cli, inspected):
    entries = inspected(run_cli, "sparse_attn_paged", "triton-3.6.0")
    plain = [e["text_sha256"] for e in prefill(entries, "plain")]
    assert plain == [e["text_sha256"] for e in prefill(entries, "hint16")]


@pytest.mark.parametrize("toolchain", ["triton-3.6.0", "triton-3.8.0"])
def test_no_prefill_spills_with_the_hint(run_cli, inspected, toolchain):
    entries = prefill(inspected(run_cli, "sparse_attn_paged", toolchain), "hint16")
    assert [e["arch"] for e in entries if e["spill_store_bytes"]] == []
    assert max(e["registers"] for e in entries) <= 128


@pytest.mark.parametrize(("toolchain", "variant"), MAX_LOOPS)
def test_loads_in_the_max_loop_of_gated_pool(run_cli, inspected, toolchain, variant):
    entries = inspected(run_cli, "gated_pool", toolchain)
    for entry in [e for e in entries if e["variant"] == variant]:
        first = loops(entry["listing"])[0]
        assert sum(first.values()) == MAX_LOOPS[toolchain, variant], entry["arch"]
