"""What seed 2's cases need under one Triton, built here for a GPU elsewhere. Needs no GPU.

    python tests/gpu/seed2_bundle.py triton-3.8.0 out.tar.zst

Builds, for sm_90a, the instances that selection takes for every case tagged seed, and no others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from sparsekit.aot.execute import execute
from sparsekit.check.reference import load_reference
from sparsekit.check.subject import arguments_of
from sparsekit.check.workload import make_workload
from sparsekit.cli.session import open_session
from sparsekit.discover import Choice
from sparsekit.model.arch import SHARED_BYTES_OPTIN
from sparsekit.model.call import Call, Device
from sparsekit.operators.plan import plan_call
from sparsekit.runtime.select import Candidate, decide
from sparsekit.store.bundle import export_bundle

KERNELS = ("triton/gated_pool", "triton/sparse_attn_paged")  # those of the seed
H200 = Device((9, 0), 132, SHARED_BYTES_OPTIN[9, 0])
FEW_TOKENS = 4  # the choice hangs on whether there is one, not on how many


def calls(choice: Choice) -> Iterator[Call]:
    """The facts of every seed case's call, from data on the CPU."""
    op, cpu = choice.op, torch.device("cpu")
    for case in op.cases:
        if "seed" not in case.tags:
            continue
        dims = dict(case.dims)
        if "m" in dims:
            dims["m"] = min(dims["m"], FEW_TOKENS)
        short = replace(case, dims=dims)
        workload = make_workload(op, load_reference(op), short, op.probes[0], cpu)
        outputs = {name: g.view for name, g in workload.outputs().items()}
        yield plan_call(op, arguments_of(op, workload.inputs, outputs), H200).call


def candidates(choice: Choice) -> Iterator[Candidate]:
    for call in calls(choice):
        for variant in choice.variants:
            taken = (d for d in decide([(choice.kernel, [variant])], call) if d.taken)
            decision = next(taken)
            assert decision.candidate is not None
            yield decision.candidate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("toolchain")
    parser.add_argument("file", type=Path)
    asked = parser.parse_args()
    session = open_session(None)
    jobs = {}
    for choice in session.catalog.resolve([f"{kernel}@{asked.toolchain}" for kernel in KERNELS]):
        for c in candidates(choice):
            job = session.planner.job(choice, c.variant.name, c.instance, c.arch)
            jobs[job.key] = job
    artifacts = []
    for outcome in execute(list(jobs.values()), session.store, workers=session.settings.jobs):
        print(outcome.status, outcome, flush=True)
        if outcome.artifact is None:
            raise SystemExit(str(outcome.error))
        artifacts.append(outcome.artifact)
    toolchains = {job.toolchain.id: job.toolchain for job in jobs.values()}
    digest = export_bundle(asked.file, artifacts, list(toolchains.values()))
    print(f"{asked.file}: {len(artifacts)} artifacts, sha256 {digest}")


if __name__ == "__main__":
    main()
