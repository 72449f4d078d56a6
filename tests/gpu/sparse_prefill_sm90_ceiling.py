"""What the wgmma mix of the Hopper sparse prefill kernel reaches beside its gather.

    python tests/gpu/sparse_prefill_sm90_ceiling.py -o docs/results/sparse_prefill_ceiling-h200.json

The kernel's own code without softmax (`ordered`: every wait stays) and the kernel itself
(`kernel`), on random data, for pools of 1k to 128k rows: what lies between the two is the softmax.
The pool of 1k rows stands for a gather that costs little. Interleaved; medians.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from sparse_prefill_sm90 import (
    D_V,
    EXPECTED_MATMUL_MS,
    KERNEL,
    Inputs,
    Row,
    Subjects,
    alternatives_folder,
)

import sparsekit
from sparsekit.cli.device import gpu_of
from sparsekit.runtime.environment import environment

MIXES = {
    "kernel": {},
    "ordered": {"SOFTMAX": 0},
    "ordered_no_fence": {"SOFTMAX": 0, "PROXY_FENCE": 0},
}
POOLS = (1024, 8192, 32768, 65536, 131072)
SHAPES = ((64, 576, 2048), (64, 512, 2048), (64, 512, 512), (128, 576, 2048))
S_Q, ROUNDS, WARM_S = 4096, 15, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    data: dict[str, Any] = {"schema": 1, "environment": environment(gpu_of("cuda")[1])}
    subjects, inputs = Subjects(), Inputs()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = [alternatives_folder(Path(folder), MIXES)]
        reference = f"cu/{KERNEL}_alternatives"
        mixes = {n: sparsekit.load(f"{reference}:{n}", kernels=kernels) for n in MIXES}
        for h_q, d_qk, topk in SHAPES:
            names = ["matmul"]
            for pool in POOLS:
                width = min(topk, pool)
                row = Row(f"{pool}", S_Q, pool, h_q, d_qk, width, None, None, None)
                arguments = inputs.of(row)
                for mix, operator in mixes.items():
                    name = f"{pool} {mix}"
                    subjects.calls[name] = lambda o=operator, a=arguments: o(**a)
                    subjects.calls[name]()
                    names.append(name)
            torch.cuda.synchronize()
            subjects.warm(names[1:], WARM_S)
            samples = subjects.rounds(names, ROUNDS)
            matmul_ms = statistics.median(samples["matmul"])
            for name in names[1:]:
                pool, mix = name.split()
                width, ms = min(topk, int(pool)), statistics.median(samples[name])
                tflops = 2 * S_Q * h_q * width * (d_qk + D_V) / ms / 1e9
                rows.append(
                    {"mix": mix, "pool_rows": int(pool), "h_q": h_q, "d_qk": d_qk, "topk": width,
                     "ms": ms, "tflops": tflops, "matmul_ms": matmul_ms}
                )  # fmt: skip
                print(f"h{h_q} d{d_qk} k{width:5} {name:24} {ms:.4f} ms {tflops:.0f} TFLOP/s",
                      flush=True)  # fmt: skip
                del subjects.calls[name]
            data |= {"expected_matmul_ms": EXPECTED_MATMUL_MS, "rows": rows}
            asked.output.write_text(json.dumps(data, indent=1) + "\n")
        shutil.rmtree(kernels[0])


if __name__ == "__main__":
    main()
