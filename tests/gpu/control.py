"""Whether `bench` can be believed on this GPU: A against A, and a planted slow-down.

    python tests/gpu/control.py -o docs/results/control-h200.json

Every mode times one kernel against itself 40 times, half of them from idle and half hot; at most 2
of 40 may be called different. A spin of 1.03 ms against one of 1 ms must be called slower 20 times
of 20. Exits 1 when a bound is passed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import sparsekit
from sparsekit.check.reference import load_reference
from sparsekit.check.workload import make_workload
from sparsekit.cli.device import gpu_of
from sparsekit.measure.bench import Setup, bench_workload
from sparsekit.measure.contender import KernelContender
from sparsekit.measure.protocol import PROTOCOLS
from sparsekit.measure.timer import CudaTimer
from sparsekit.model.bench import BenchResult, Timing
from sparsekit.runtime.environment import environment
from sparsekit.runtime.nvml import Watch

REPEATS, MOST_DIFFERENT, PLANTED = 40, 2, 20
IDLE_S, HOT_S = 0.3, 0.5
# Short and long, so that each method and each state of L2 comes up.
MODES = (
    ("sparsekit", "cold", "gated_pool", "b8_r8_d512"),
    ("sparsekit", "warm", "gated_pool", "b8_r8_d512"),
    ("sparsekit", "cold", "sparse_prefill", "h64_k512"),
    ("sparsekit", "warm", "sparse_prefill", "h64_k512"),
    ("seed1", "warm", "sparse_prefill", "h64_k512"),
    ("seed2", "warm", "gated_pool", "b8_r8_d512"),
)  # fmt: skip
SPIN_CYCLES, SLOWER = 1_800_000, 1.03  # about a millisecond


@dataclass(frozen=True)
class Spin:
    """A kernel that does nothing for so many clocks."""

    label: str
    cycles: int

    def compute(self, inputs: Any, outputs: Any) -> Timing:
        for output in outputs.values():
            output.zero_()
        return Timing(self.label, "spin", self.label)

    def caller(self, inputs: Any, outputs: Any) -> Callable[[], object]:
        return lambda: torch.cuda._sleep(self.cycles)


def heat() -> None:
    """Load the GPU, so that its clocks are those of work."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    deadline = time.monotonic() + HOT_S
    while time.monotonic() < deadline:
        torch.matmul(a, a)
        torch.cuda.synchronize()


def against_itself(setup: Setup, op_name: str, case_name: str) -> Iterator[BenchResult]:
    operator = sparsekit.load(op_name)
    op, device = operator.op, torch.device("cuda")
    first, second = (KernelContender(label, operator) for label in ("A", "A again"))
    workload = make_workload(op, load_reference(op), op.case(case_name), op.probes[0], device)
    for number in range(REPEATS):
        if number % 2:
            heat()
        else:
            time.sleep(IDLE_S)
        seeded = replace(workload, case=replace(workload.case, seed=number))
        yield bench_workload(seeded, [first, second], "", setup)


def planted(setup: Setup) -> Iterator[BenchResult]:
    op = sparsekit.load("gated_pool").op
    case = op.case("b1_r8_d128")
    workload = make_workload(op, load_reference(op), case, op.probes[0], torch.device("cuda"))
    spins = [Spin("1 ms", SPIN_CYCLES), Spin("1.03 ms", round(SLOWER * SPIN_CYCLES))]
    for number in range(PLANTED):
        seeded = replace(workload, case=replace(workload.case, seed=number))
        yield bench_workload(seeded, spins, "", setup)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    _, gpu = gpu_of("cuda")
    watch, timer = Watch(gpu.pci_bus_id), CudaTimer(torch.device("cuda"))
    findings: list[dict[str, Any]] = []
    started = time.monotonic()
    told = {**environment(gpu), "command": "python tests/gpu/control.py"}

    def found(finding: dict[str, Any]) -> None:
        """Write at once: a run that is cut keeps what it found."""
        findings.append(finding)
        print(finding, flush=True)
        data = {
            "schema": 1, "kind": "control", "environment": told,
            "seconds": time.monotonic() - started, "findings": findings,
        }  # fmt: skip
        asked.output.write_text(json.dumps(data, indent=1) + "\n")

    for name, l2, op, case in MODES:
        setup = Setup(timer, watch.read, PROTOCOLS[name], l2)
        results = list(against_itself(setup, op, case))
        verdicts = Counter(str(r.timings[1].verdict) for r in results)
        different = verdicts["faster"] + verdicts["slower"]
        ratios = sorted(r.timings[1].ratio or 0.0 for r in results)
        found({
            "what": f"{name} {l2} {case}", "method": results[0].mode and results[0].mode.method,
            "verdicts": dict(verdicts), "ratios": [ratios[0], ratios[-1]],
            "ok": different <= MOST_DIFFERENT,
        })  # fmt: skip
    setup = Setup(timer, watch.read, PROTOCOLS["sparsekit"], "warm")
    verdicts = Counter(str(r.timings[1].verdict) for r in planted(setup))
    ok = verdicts["slower"] == PLANTED
    found({"what": "planted 3 % of 1 ms", "verdicts": dict(verdicts), "ok": ok})
    sys.exit(0 if all(f["ok"] for f in findings) else 1)


if __name__ == "__main__":
    main()
