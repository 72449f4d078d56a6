"""The README's figures, from the result files of this folder.

python docs/results/summary.py          what README.md shows
python docs/results/summary.py OP       every timing of an op, for its kernel's README.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
_BATCHES = re.compile(r"in batches of [\d, ]+")
SHOWN = (
    "v32_kv32768", "h64_k512", "h16_d576", "seed1_full", "seed1_ramp", "prefill_r4_s8192",
    "decode_r4_b8", "b8_r8_d512", "b8_r128_d512",
)  # fmt: skip


def read(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return data


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(columns)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def checks() -> str:
    """What was verified: cases and launches per kernel variant, and the sanitizer's reports."""
    rows = []
    for what in ("verify", "bitwise"):
        files = sorted(FOLDER.glob(f"{what}-*-h200.json"))
        results = [r for file in files for r in read(file.name)["results"]]
        for kernel, variant in dict.fromkeys((r["kernel"], r["variant"]) for r in results):
            own = [r for r in results if (r["kernel"], r["variant"]) == (kernel, variant)]
            against = dict.fromkeys(_BATCHES.sub("in other batches", r["against"]) for r in own)
            base = "float64" if what == "verify" else f"bits of {', '.join(against)}"
            rows.append((
                f"`{kernel}:{variant}`", base,
                len({r["case"] for r in own if not r["skipped"]}), sum(r["runs"] for r in own),
                sum(r["ok"] is True for r in own), sum(r["ok"] is False for r in own),
            ))  # fmt: skip
    rows.sort(key=lambda row: row[0])
    return table(("variant", "against", "cases", "launches", "ok", "failed"), rows)


def sanitizer() -> str:
    findings = read("sanitizer-h200.json")["findings"]
    clean = [f for f in findings if not f["expected"]]
    planted = [f for f in findings if f["expected"]]
    tools = ", ".join(dict.fromkeys(f["tool"] for f in clean))
    missed = sum(not f["ok"] for f in planted)
    return (
        f"compute-sanitizer ({tools}) over {len({f['subject'] for f in clean})} ops: "
        f"{sum(f['reports'] for f in clean)} reports; of {len(planted)} kernels with a planted "
        f"fault it misses {missed}."
    )


def milliseconds(time_ms: float) -> str:
    return f"{time_ms * 1e3:.1f} us" if time_ms < 0.2 else f"{time_ms:.3f} ms"


def times(op: str | None) -> str:
    """Medians by case and variant; those of SHOWN without an op."""
    results = read("timings-h200.json")["results"]
    chosen = [r for r in results if r["op"] == op or (op is None and r["case"] in SHOWN)]
    rows = []
    for name, case in dict.fromkeys((r["op"], r["case"]) for r in chosen):
        own = [r for r in chosen if (r["op"], r["case"]) == (name, case)]
        best = max(r["tflops"] for r in own)
        rows.append((
            *([f"`{name}`"] if op is None else []), f"`{case}`",
            ", ".join(f"{r['variant']} {milliseconds(r['time_ms'])}" for r in own),
            f"{best:.0f}" if best >= 1 else "",
        ))  # fmt: skip
    return table((*(["op"] if op is None else []), "case", "times", "TFLOP/s"), rows)


def machine() -> str:
    told = read("timings-h200.json")["environment"]
    versions = told["versions"]
    return (
        f"{told['gpu']}, driver {told['driver_version']}, {told['power.limit']} limit; Triton "
        f"{versions['triton']}, NVRTC {versions['nvidia-cuda-nvrtc']}, torch {versions['torch']}."
    )


def summary() -> str:
    return "\n\n".join([machine(), checks(), sanitizer(), times(None)])


if __name__ == "__main__":
    print(times(sys.argv[1]) if len(sys.argv) > 1 else summary())
