"""Detection power on the project's kernels: each synchronisation that runs, taken away in turn."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from own_kernel import EditingDriver

from sparsekit import settings as settings_module
from sparsekit.aot.plan import Planner
from sparsekit.check.placement import place_inputs
from sparsekit.check.subject import arguments_of
from sparsekit.discover import Catalog
from sparsekit.emulator import FaultError, Report
from sparsekit.model.arch import parse_arch
from sparsekit.operators.operator import Operator
from sparsekit.store.open import open_store
from sparsekit.toolchain.find import Toolchains

PATTERNS = {
    "barrier": (r"\bbar\.(?:sync|arrive)[^;]*;", ""),
    "wait": (r"cp\.async\.wait_group[^;]*;", ""),
    "commit": (r"cp\.async\.commit_group;", ""),
    "weaker wait": (r"cp\.async\.wait_group\s+0;", "cp.async.wait_group 1;"),
}
STEP = 2  # every second mutant, for the time it takes
SUBJECTS = {
    "sparse_prefill:skip": ("sm_90", "small_512", {"s_q": 1, "s_kv": 200, "h_q": 64, "topk": 170}),
    "sparse_attn_paged:hint16": (
        "sm_80", "prefill_small",
        {"m": 2, "d": 64, "n_win": 90, "n_cmp": 200, "topk": 170, "n_window": 40},
    ),
}  # fmt: skip


def mutants(text: str) -> list[tuple[str, int, str]]:
    """(what, line, text) of every mutant."""
    found = []
    for what, (pattern, instead) in PATTERNS.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            found.append((what, line, text[: match.start()] + instead + text[match.end() :]))
    return found


def why_redundant(what: str, line: int, text: str) -> str | None:
    """Why a kernel is right without the instruction; None where it needs it."""
    lines = text.splitlines()
    later = "\n".join(lines[line:])
    following = re.search(r"cp\.async\.(commit_group|wait_group)", later)
    if what == "commit" and following and following[1] == "commit_group":
        return "the next commit closes the group too"
    if "wait_group" not in later and "mma.sync" not in later:
        return "Triton drains behind its loop, where nothing is in flight or read any more"
    return None


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("mutated-store")


@pytest.mark.parametrize("reference", SUBJECTS)
def test_every_mutant_that_runs_is_reported(reference, store):
    arch, name, dims = SUBJECTS[reference]
    op_name = reference.partition(":")[0]
    (choice,) = Catalog().resolve([reference])
    case = next(c for c in choice.op.cases if c.name == name)
    case = replace(case, dims={**case.dims, **dims})
    inputs = import_module(f"sparsekit.ops.{op_name}.reference").make_inputs(case, "random")
    inputs = place_inputs(inputs, case, torch.device("cpu"))
    planner = Planner(Toolchains(settings_module.load(cache_dir=store)))
    texts: list[str] = []

    def run(edit) -> list[Report]:
        target = parse_arch(arch)
        driver = EditingDriver(target.compute_capability, target)
        driver.edit = edit
        operator = Operator(choice.op, [choice], planner, open_store(store, print), driver=driver)
        wanted = tuple(
            o.name
            for o in choice.op.outputs
            if not o.optional or case.options.get(f"return_{o.name}")
        )
        arguments = replace(arguments_of(choice.op, inputs, {}), outputs=wanted)
        with contextlib.suppress(FaultError):
            operator.run(arguments)
        return [launched.report for launched in driver.launched]

    (report,) = run(lambda text: texts.append(text) or text)
    assert report.ok
    executed = 0
    for what, line, mutant in mutants(texts[0])[::STEP]:
        if any(u.line <= line <= u.last_line for u in report.uncovered):
            continue
        executed += 1
        if not any(r.faults for r in run(lambda _, mutant=mutant: mutant)):
            assert why_redundant(what, line, texts[0]), f"line {line}: {what} is not missed"
            assert reference != "sparse_prefill:skip"
    assert executed >= 5
