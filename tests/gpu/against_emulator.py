"""An H200 against the emulator: the same PTX on the same inputs on both.

    python tests/gpu/against_emulator.py -o docs/results/emulator-h200.json

Every shipped kernel, variant and instance on the smoke and corner cases in the emulator's sizes, a
thousand tiles each of mma.sync and wgmma, and scalar instructions at the edges of their types.
Integers and what the ISA rounds exactly must give the same bits, random kernel outputs be within 2
bf16 ulp, random tiles within what the sums of their terms may lose. Exits 1 when a bound
is passed or something did not run. `--dry` runs the emulator's half without a GPU, against float64.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

from comparison_work import FunctionTask, TileTask, make_work
from function_forms import function_forms
from kernel_compare import KernelTask, kernel_tasks, summed
from tile_forms import mma_forms, wgmma_forms

from sparsekit.check.processes import run_in_processes
from sparsekit.cli.device import gpu_of
from sparsekit.cli.session import Session, open_session
from sparsekit.model.arch import Arch, ArchRequest, parse_arch
from sparsekit.runtime.environment import environment

H200 = (9, 0)
MMA_TILES, WGMMA_TILES = 32, 10  # of each form and data set: a thousand of either instruction
SAVE_EVERY_S = 2.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class OutOfTime(Exception):
    pass


def out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def instruction_tasks() -> list[TileTask | FunctionTask]:
    forms: list[Any] = [(form, MMA_TILES) for form in mma_forms()]
    forms += [(form, WGMMA_TILES) for form in wgmma_forms()]
    tiles = [TileTask(form, count) for form, count in forms]
    return [*tiles, *(FunctionTask(form) for form in function_forms())]


def built_kernel_tasks(session: Session) -> tuple[list[KernelTask], set[tuple[str, str]]]:
    """Everything that sm_90 runs, built: what is to be compared of it, and every variant and
    instance that there is."""
    plan, _ = session.planned([], [ArchRequest(H200, named=False)], every_instance=True)
    outcomes = session.built(plan, build=True)
    for outcome in outcomes:
        if outcome.artifact is None:
            raise SystemExit(f"{outcome.job} does not build: {outcome.error}")
    targets: dict[str, Arch] = {}
    instances = set()
    for outcome in outcomes:
        assert outcome.artifact is not None
        manifest = outcome.artifact.manifest
        kernel, variant = (str(manifest.identity[name]) for name in ("kernel", "variant"))
        targets[kernel] = parse_arch(manifest.arch)
        instances.add((f"{kernel}:{variant}", str(manifest.identity["instance"])))
    return kernel_tasks(session.catalog.resolve([]), targets), instances


class Record:
    """The findings so far, printed as they come and kept in the file."""

    def __init__(
        self, file: Path | None, told: dict[str, Any], tasks: int, instances: set[tuple[str, str]]
    ) -> None:  # fmt: skip
        self._file, self._told, self._tasks, self._instances = file, told, tasks, instances
        self._started, self._saved = time.monotonic(), 0.0
        self.findings: list[dict[str, Any]] = []
        self.done = 0

    def add(self, findings: Sequence[dict[str, Any]]) -> None:
        self.done += 1
        self.findings += findings
        for finding in findings:
            if finding["ok"] is False or finding["what"] != "kernel":
                print(line_of(finding), flush=True)
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()

    @property
    def ok(self) -> bool:
        failed = any(finding["ok"] is False for finding in self.findings)
        return not failed and self.done == self._tasks

    def save(self) -> None:
        self._saved = time.monotonic()
        if self._file is None:
            return
        kernels = [f for f in self.findings if f["what"] == "kernel"]
        data = {
            **self._told, "seconds": round(time.monotonic() - self._started, 1),
            "tasks": self._tasks, "done": self.done, "ok": self.ok,
            "skipped": sum("skipped" in f for f in self.findings),
            "instances_that_did_not_run": sorted(
                " ".join(i) for i in self._instances
                - {(f["subject"], f.get("instance")) for f in kernels}
            ),
            "kernels": summed(kernels), "failed": [f for f in kernels if f["ok"] is False],
            "tiles": [f for f in self.findings if f["what"] == "tile"],
            "functions": [f for f in self.findings if f["what"] == "function"],
        }  # fmt: skip
        beside = self._file.with_name(self._file.name + ".part")
        beside.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(beside, self._file)


def line_of(finding: dict[str, Any]) -> str:
    status = {True: "ok", False: "FAILED", None: "-"}[finding["ok"]]
    text = f"{status:6} {finding['subject']} {finding.get('case', '')} {finding.get('data', '')}: "
    if "error" in finding:
        return text + finding["error"]
    if "skipped" in finding:
        return text + f"skipped: {finding['skipped']}"
    if finding["what"] == "kernel":
        return text + "; ".join(finding["problems"])
    told = f"{finding['different_bits']} of {finding['elements']} differ"
    if finding["what"] == "function":
        return (
            text + told + f", {finding['other_class']} in class, worst {finding['worst_ulp']} ulp"
        )
    told += f", {finding['other_class']} in class, worst {finding['worst_relative']:.3g}"
    told += f" (bound {finding['bound']:.3g})"
    for model in finding.get("models", [])[:1]:
        told += f", model {model['bits']}/{model['group']}/{model['result_bits']}"
        told += f" gives {model['equal']} of {model['of']}"
    return text + told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=400.0, help="stop then, and save")
    parser.add_argument("--dry", action="store_true", help="no GPU: the emulator against float64")
    parser.add_argument("--keep", type=Path, help="a folder for some of the GPU's tiles")
    parser.add_argument("--only", default="*", help="subjects by pattern: '*gated_pool*', 'mma.*'")
    asked = parser.parse_args()
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    device = None if asked.dry else gpu_of("cuda")[1]
    if device is not None and device.compute_capability != H200:
        sys.exit(f"these comparisons are of sm_90; {device.name} is another")
    session = open_session(None, jobs=asked.jobs)
    tasks: list[Any] = [t for t in instruction_tasks() if fnmatchcase(str(t), asked.only)]
    instances: set[tuple[str, str]] = set()
    if asked.only == "*" or not tasks:
        kernels, instances = built_kernel_tasks(session)
        kernels.sort(key=lambda task: -task.flop)
        tasks += [t for t in kernels if fnmatchcase(str(t), asked.only)]
    told = {
        "schema": 1, "kind": "against-emulator",
        "environment": {
            **environment(device),
            "command": f"python tests/gpu/against_emulator.py{' --dry' if asked.dry else ''}",
        },
    }  # fmt: skip
    record = Record(asked.output, told, len(tasks), instances)
    work = (session.settings, not asked.dry, asked.keep)
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, asked.limit_s)
    try:
        for _, findings in run_in_processes(make_work, work, tasks, asked.jobs):
            record.add(findings)
    except OutOfTime:
        print(f"stopped after {asked.limit_s:g} s: {record.done} of {len(tasks)} tasks", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        record.save()
    counts = {s: sum(f["ok"] is s for f in record.findings) for s in (True, False, None)}
    print(f"{counts[True]} ok, {counts[False]} failed, {counts[None]} recorded or skipped; "
          f"{record.done} of {len(tasks)} tasks")  # fmt: skip
    sys.exit(0 if record.ok else 1)


if __name__ == "__main__":
    main()
