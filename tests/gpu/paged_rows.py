"""Paged attention and pooling beside seed 2's kernels, in the same runs: a row a case.

    python tests/gpu/paged_rows.py -o docs/results/paged-h200.json

`sparsekit bench --protocol seed2` of the kernel that a call takes against the two variants of the
seed; a row's seed2_us is the better of these. Exits 1 when a case has no time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sparsekit.cli.device import gpu_of
from sparsekit.runtime.environment import environment

ROOT = Path(__file__).resolve().parents[2]
PREFILL, DECODE = "cu/sparse_attn_paged_sm90:skip", "cu/sparse_attn_paged_decode_sm90:folded"
POOL = "cu/gated_pool_staged:columns32"
SEEDS = {
    "sparse_attn_paged": ("triton/sparse_attn_paged:plain", "triton/sparse_attn_paged:hint16"),
    "gated_pool": ("triton/gated_pool:plain", "triton/gated_pool:unroll2"),
}
# case: what is to be reached and what is aimed at, us.
ROWS = {
    PREFILL: {
        "prefill_r4_s2048": (300, 200), "prefill_r4_s8192": (1350, 1000),
        "prefill_r4_s4096": (720, 560), "prefill_r128_s8192": (520, 380),
        "prefill_r0_s8192": (420, 310),
    },
    DECODE: {
        "decode_r4_b1": (9.5, 7), "decode_r128_b1": (9, 7), "decode_r0_b1": (7, 5.5),
        "decode_r4_b8": (12, 9), "decode_r128_b8": (10.5, 8), "decode_r0_b8": (7.5, 6),
        "decode_r4_b64": (36, 25),
    },
    POOL: {
        **{f"b{b}_r8_d{d}": (1.8, 1.6) for b in (1, 8) for d in (128, 512)},
        **{f"b{b}_r128_d{d}": (5, 3.8 if (b, d) == (8, 512) else 3.2)
           for b in (1, 8) for d in (128, 512)},
    },
}  # fmt: skip


def timed(reference: str, op: str, cases: list[str], output: Path) -> list[dict[str, Any]]:
    """The results of one run of bench, by case."""
    chosen = [part for case in cases for part in ("--case", case)]
    command = [sys.executable, "-m", "sparsekit", "bench", reference]
    for seed in SEEDS[op]:
        command += ["--against", seed]
    command += [*chosen, "--protocol", "seed2", "--format", "json", "-o", str(output)]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    return json.loads(output.read_text())["results"]


def row(result: dict[str, Any], reference: str) -> dict[str, Any]:
    us = {t["label"]: t["time_s"] * 1e6 for t in result["timings"] if t["time_s"]}
    own = reference.partition("/")[2]
    reach_us, aim_us = ROWS[reference][result["case"]]
    return {
        "name": result["case"], "kernel": own, "us": us.pop(own), "seed2_us": min(us.values()),
        "reach_us": reach_us, "aim_us": aim_us, "method": result["mode"]["method"],
        "l2": result["mode"]["l2"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    data = {
        "schema": 1, "kind": "paged-rows", "environment": environment(gpu_of("cuda")[1]),
        "rows": rows,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for reference, cases in ROWS.items():
            op = "gated_pool" if "gated_pool" in reference else "sparse_attn_paged"
            results = timed(reference, op, list(cases), Path(folder) / "bench.json")
            rows += [row(result, reference) for result in results]
            asked.output.write_text(json.dumps(data, indent=1) + "\n")
    for r in rows:
        print(f"{r['name']:20} {r['us']:8.2f} us  seed 2 {r['seed2_us']:8.2f}  "
              f"reach {r['reach_us']}  aim {r['aim_us']}")  # fmt: skip
    sys.exit(0 if len(rows) == sum(map(len, ROWS.values())) else 1)


if __name__ == "__main__":
    main()
