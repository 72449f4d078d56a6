"""Warm times of every kernel variant on the ops' perf cases, interleaved on the same buffers.

    python tests/gpu/timings.py [OP...] -o docs/results/timings-h200.json

Each variant's calls are captured in a CUDA graph of about 3 ms, and the graphs replayed in shuffled
order, every round once each; a variant's time is the median over the rounds. L2 is as the previous
replay left it. TFLOP/s counts every valid column once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import sparsekit
from sparsekit.check.campaign import load_reference
from sparsekit.check.subject import arguments_of
from sparsekit.check.verify import Workload, make_workload
from sparsekit.cli.device import gpu_of
from sparsekit.discover import Catalog
from sparsekit.errors import NoKernelError
from sparsekit.model.call import Device
from sparsekit.operators.operator import Operator
from sparsekit.runtime.environment import environment

ROUNDS, WARM_ROUNDS = 31, 5
REPLAY_S = 3e-3
LOAD_S = 0.3  # before and while the clock is read


class Replay:
    """One variant's calls as a graph, several in a row where they are short."""

    def __init__(self, operator: Operator, workload: Workload) -> None:
        outputs = {name: g.view for name, g in workload.outputs().items()}
        arguments = arguments_of(operator.op, workload.inputs, outputs)
        operator.run(arguments)
        torch.cuda.synchronize()
        once_ms = timed(lambda: operator.run(arguments))
        self.calls = max(1, round(REPLAY_S * 1e3 / once_ms)) if once_ms < REPLAY_S * 1e3 else 1
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(self.calls):
                operator.run(arguments)
        self._kept = outputs  # the graph writes into them

    def enqueue(self) -> None:
        self._graph.replay()

    def time_ms(self) -> float:
        return timed(self.enqueue) / self.calls


def timed(work: Any) -> float:
    """Milliseconds between two events around the work."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def rounds(replays: dict[str, Replay], order: random.Random) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in replays}
    for number in range(WARM_ROUNDS + ROUNDS):
        for name in order.sample(list(replays), len(replays)):
            sample = replays[name].time_ms()
            if number >= WARM_ROUNDS:
                samples[name].append(sample)
    return samples


def under_load(replays: dict[str, Replay], gpu: Device) -> dict[str, Any]:
    """Clock, power and temperature while the variants run."""
    deadline = time.monotonic() + LOAD_S
    while time.monotonic() < deadline:
        for replay in replays.values():
            replay.time_ms()
    for _ in range(round(LOAD_S / REPLAY_S / len(replays))):
        for replay in replays.values():
            replay.enqueue()
    told = environment(gpu)
    torch.cuda.synchronize()
    return {name: told[name] for name in ("clocks.sm", "power.draw", "temperature.gpu")}


def timings(name: str, gpu: Device) -> list[dict[str, Any]]:
    (choice,) = Catalog().resolve([name])
    reference, op = choice.kernel.qualified_name, choice.op
    operators = {v: sparsekit.load(f"{reference}:{v}") for v in choice.variants}
    inputs_of, results = load_reference(op), []
    for case in (c for c in op.cases if "perf" in c.tags):
        workload = make_workload(op, inputs_of, case, op.probes[0], torch.device("cuda"))
        replays: dict[str, Replay] = {}
        for variant, operator in operators.items():
            try:
                replays[variant] = Replay(operator, workload)
            except NoKernelError:
                print(f"{case.name} {variant}: does not take the call", flush=True)
        flop, load = op.work(case).flop, under_load(replays, gpu)
        for variant, samples in rounds(replays, random.Random(case.seed)).items():
            time_ms = statistics.median(samples)
            result = {
                "op": name, "variant": variant, "case": case.name, "calls": replays[variant].calls,
                "time_ms": time_ms, "least_ms": min(samples), "largest_ms": max(samples),
                "tflops": flop / time_ms / 1e9, **load,
            }  # fmt: skip
            results.append(result)
            print(f"{case.name} {variant}: {time_ms:.4f} ms, {result['tflops']:.1f} TFLOP/s")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", default=list(Catalog().ops))
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    _, gpu = gpu_of("cuda")
    results = [result for name in asked.ops for result in timings(name, gpu)]
    told = {**environment(gpu), "command": f"python tests/gpu/timings.py {' '.join(asked.ops)}"}
    data = {"schema": 1, "environment": told, "rounds": ROUNDS, "results": results}
    asked.output.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
