"""The instruction counts of the bf16 kernel's page are those of the inspection that is stored."""

from __future__ import annotations

import json

from conftest import ROOT

FOLDER = ROOT / "kernels_triton" / "sparse_attn_paged_bf16"
STORED = ROOT / "docs" / "results" / "sparse_attn_paged_bf16-sass.json"
# Passes of the loop for 32 columns of 64 heads: four programs of hint16, or tiles of 16 columns.
PASSES = {
    ("hint16", "sm_80"): 4, ("heads64", "sm_80"): 2, ("heads64", "sm_90a"): 2,
    ("heads64", "sm_100a"): 1, ("heads64", "sm_120a"): 2,
}  # fmt: skip


def row(entry: dict, passes: int) -> str:
    loop = max(entry["loops"], key=lambda found: found["instructions"])
    products = {name: passes * n for name, n in entry["tensor"].items()}
    hmma = sum(n for name, n in products.items() if name.startswith("HMMA"))
    others = ", ".join(
        f"{n} {name.partition('.')[0]}"
        for name, n in products.items()
        if not name.startswith("HMMA")
    )
    gathers = passes * sum(widths.get("16", 0) for widths in loop["gathers"].values())
    name = f"`{entry['variant']}`, {entry['arch'].rstrip('a')}"
    return f"| {name} | {passes * loop['instructions']} | {hmma} | {others} | {gathers} |"


def test_the_page_shows_what_is_stored():
    lines = (FOLDER / "README.md").read_text().splitlines()
    found = [
        row(entry, passes)
        for entry in json.loads(STORED.read_text())["entries"]
        if entry["entry"].endswith("_prefill") and "has_cmp_counts1" not in entry["instance"]
        if (passes := PASSES.get((entry["variant"], entry["arch"])))
    ]
    assert len(found) == len(PASSES)
    assert set(found) <= set(lines)
