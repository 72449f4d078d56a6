"""The shipped kernels on a GPU and in the emulator: the cubin of an artifact and its PTX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import kernel_cases
import numpy as np
import torch
from kernel_cases import INTEGRAL, LN2, RANDOM
from tile_compare import bf16_ulps

from sparsekit.check.emulated import LAZY, EmulatedSubject
from sparsekit.check.emulated_campaign import EmulationPlan
from sparsekit.check.placement import place_inputs
from sparsekit.check.reference import asked, load_reference
from sparsekit.check.subject import OperatorSubject, Ran
from sparsekit.check.workload import Workload
from sparsekit.discover import Catalog, Choice
from sparsekit.errors import NoKernelError
from sparsekit.model.arch import Arch, parse_arch
from sparsekit.model.op import Case, Op
from sparsekit.operators.operator import Operator
from sparsekit.runtime.tensors import synchronize
from sparsekit.settings import Settings

CPU = torch.device("cpu")
MOST_BF16_ULP = 2
# What tells which outputs were written; `verify` has all the others.
_CHECKS = frozenset({"uninitialised"})
_BF16_MANTISSA_BITS = 7
_NEAR_ZERO = 1e-8


@dataclass(frozen=True)
class KernelTask:
    """A kernel variant on one case with both data sets."""

    reference: str
    variant: str
    target: str
    case: Case
    flop: int

    def __str__(self) -> str:
        return f"{self.reference} {self.case.name}"


def kernel_tasks(choices: Sequence[Choice], targets: Mapping[str, Arch]) -> list[KernelTask]:
    """All variants on all cases of the kernels that have a target. targets: by their names."""
    return [
        KernelTask(
            f"{choice.kernel.folder}:{variant}", variant, str(targets[choice.kernel.name]), case,
            kernel_cases.cost_flop(choice.op, case),
        )
        for choice in choices
        if choice.kernel.name in targets
        for variant in choice.variants
        for case in kernel_cases.cases_of(choice.op)
    ]  # fmt: skip


class KernelWork:
    """Compares; kernels are found and loaded once. gpu: whether there is one, else the reference
    takes its place."""

    def __init__(self, settings: Settings, gpu: bool) -> None:
        plan = EmulationPlan(settings, True, False, False, _CHECKS, (LAZY,))
        self._emulation = plan.open(lambda text: None)
        self._catalog = Catalog(settings.kernel_dirs, settings.kernels_origin)
        self._gpu = gpu
        self._known: dict[str, tuple[Op, EmulatedSubject, OperatorSubject]] = {}

    def __call__(self, task: KernelTask) -> list[dict[str, Any]]:
        return [self._compared(task, data) for data in (INTEGRAL, RANDOM)]

    def _compared(self, task: KernelTask, data: str) -> dict[str, Any]:
        op, emulated, on_gpu = self._subjects(task)
        finding: dict[str, Any] = {
            "what": "kernel", "subject": f"{emulated.kernel}:{task.variant}",
            "case": task.case.name, "data": data,
        }  # fmt: skip
        inputs = dict(
            asked(op, task.case, load_reference(op), "make_inputs", task.case, op.probes[0])
        )
        if data == INTEGRAL:
            inputs = kernel_cases.make_integral(inputs, task.case.seed)
        try:
            ran, there, problems = _outputs(emulated, op, task.case, inputs, CPU)
            if self._gpu:
                device = torch.device("cuda", 0)
                ran_here, here, more = _outputs(on_gpu, op, task.case, inputs, device)
                problems += more
            else:
                ran_here, here = ran, _reference(op, task.case, inputs, there)
                there = {name: tensor + 0.0 for name, tensor in there.items()}
        except NoKernelError as error:
            return {**finding, "skipped": str(error).splitlines()[-1].strip(), "ok": None}
        finding |= {"artifact": ran.key, "instance": self._instance(ran.key)}
        told = {
            name: compare_output(
                here[name], there[name],
                data == INTEGRAL and kernel_cases.must_be_equal(op, task.case, name),
                bounded=self._gpu,
            )
            for name in there
        }  # fmt: skip
        problems += [f"{f.check} in the emulator: {f.message}" for f in ran.findings]
        if ran.key != ran_here.key:
            problems.append(f"the GPU ran {ran_here.key}, the emulator {ran.key}")
        problems += [f"{name}: {t['problem']}" for name, t in told.items() if t["problem"]]
        return {**finding, "outputs": told, "problems": problems, "ok": not problems}

    def _instance(self, key: str | None) -> str | None:
        artifact = self._emulation.store.get(key) if key else None
        return str(artifact.manifest.identity["instance"]) if artifact else None

    def _subjects(self, task: KernelTask) -> tuple[Op, EmulatedSubject, OperatorSubject]:
        if task.reference not in self._known:
            (choice,) = self._catalog.resolve([task.reference])
            emulation, target = self._emulation, parse_arch(task.target)
            emulated = emulation.subject(choice, task.variant, target)
            operator = Operator(
                choice.op, [replace(choice, variants=(task.variant,))], emulation.planner,
                emulation.store, build=True, note=lambda text: None,
            )  # fmt: skip
            on_gpu = OperatorSubject(choice.kernel.name, task.variant, operator)
            self._known[task.reference] = (choice.op, emulated, on_gpu)
        return self._known[task.reference]


def _outputs(
    subject: EmulatedSubject | OperatorSubject, op: Op, case: Case, inputs: dict[str, Any],
    device: torch.device,
) -> tuple[Ran, dict[str, torch.Tensor], list[str]]:  # fmt: skip
    """What the subject computes, on the CPU, and what is wrong with the memory after it."""
    workload = Workload(op, case, op.probes[0], device, place_inputs(inputs, case, device))
    guarded = workload.outputs()
    ran = subject.compute(workload.inputs, {name: g.view for name, g in guarded.items()})
    synchronize(device)
    problems = [f"{name} on {device}: {p}" for name, g in guarded.items() if (p := g.problem())]
    return ran, {name: g.view.cpu().clone() for name, g in guarded.items()}, problems


def _reference(
    op: Op, case: Case, inputs: dict[str, Any], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Float64 in a GPU's place; what is nearly 0 is 0, which sums of doubles seldom are."""
    exact = {n: math.log(2) if v == LN2 else v for n, v in inputs.items() if n.endswith("_scale")}
    expected = asked(op, case, load_reference(op), "reference", {**inputs, **exact})
    found = {}
    for name, tensor in like.items():
        near_zero = expected[name].abs() < _NEAR_ZERO
        found[name] = torch.where(near_zero, 0.0, expected[name]).to(tensor.dtype)
    return found


def compare_output(
    here: torch.Tensor, there: torch.Tensor, must_be_equal: bool, *, bounded: bool = True
) -> dict[str, Any]:
    """A GPU's output against the emulator's. bounded: whether MOST_BF16_ULP counts.

    Units in the last place are bf16's, at each element's own size, and at no less than the root
    mean square of its row, which is what the bound counts in: a sum that nearly cancels has no more
    correct places than its terms.
    """
    g, e = here.double().numpy(), there.double().numpy()
    nan = np.isnan(g) & np.isnan(e)
    both = np.isfinite(g) & np.isfinite(e)
    same_class = nan | both | (g == e)
    different = _bits_of(here) != _bits_of(there)
    different &= ~nan
    ulp, beyond = bf16_ulps(g, e, both)
    in_row = _in_row_ulps(g, e, both)
    at_row = float(in_row.max()) if in_row.size else 0.0
    told: dict[str, Any] = {
        "elements": int(g.size), "different_bits": int(different.sum()),
        "other_class": int((~same_class).sum()), "worst_bf16_ulp": ulp,
        "beyond_2_bf16_ulp": beyond, "worst_bf16_ulp_of_row": at_row,
        "must_be_equal": must_be_equal, "problem": None,
    }  # fmt: skip
    if told["other_class"]:
        told["problem"] = f"NaN or inf in {told['other_class']} elements on one side only"
    elif must_be_equal and told["different_bits"]:
        told["problem"] = f"{told['different_bits']} of {g.size} elements differ"
    elif bounded and at_row > MOST_BF16_ULP:
        told["problem"] = f"{at_row:.3g} bf16 ulp apart"
    if told["problem"]:
        apart = ~same_class | (different if must_be_equal else in_row > MOST_BF16_ULP)
        at = tuple(int(i) for i in np.argwhere(apart)[0])
        told["problem"] += f"; at {list(at)} {g[at]:.9g} on the GPU, {e[at]:.9g} emulated"
    return told


def _bits_of(tensor: torch.Tensor) -> np.ndarray:
    cells = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    found: np.ndarray = tensor.contiguous().view(cells).numpy()
    return found


def _in_row_ulps(g: np.ndarray, e: np.ndarray, both: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        squares = np.where(both, e * e, 0.0)
        count = np.maximum(both.sum(axis=-1, keepdims=True), 1)
        row = np.sqrt(squares.sum(axis=-1, keepdims=True) / count)
        size = np.maximum(np.maximum(np.abs(g), np.abs(e)), row)
        exponent = np.frexp(np.where(both, size, 1.0))[1] - 1
        step = np.ldexp(1.0, np.maximum(exponent, -126) - _BF16_MANTISSA_BITS)
        found: np.ndarray = np.where(both, np.abs(g - e) / step, 0.0)
    return found


def summed(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per kernel variant, instance, data and output: how many cases, and the worst of each."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for finding, name, told in _told_outputs(findings):
        key = (finding["subject"], finding["instance"], finding["data"], name)
        entry = found.setdefault(key, {
            "subject": key[0], "instance": key[1], "data": key[2], "output": name, "cases": 0,
            "elements": 0, "different_bits": 0, "beyond_2_bf16_ulp": 0, "worst_bf16_ulp": 0,
            "worst_bf16_ulp_of_row": 0.0, "worst_case": None,
        })  # fmt: skip
        entry["cases"] += 1
        for count in ("elements", "different_bits", "beyond_2_bf16_ulp"):
            entry[count] += told[count]
        entry["worst_bf16_ulp"] = max(entry["worst_bf16_ulp"], told["worst_bf16_ulp"])
        if told["worst_bf16_ulp_of_row"] > entry["worst_bf16_ulp_of_row"]:
            entry["worst_bf16_ulp_of_row"] = told["worst_bf16_ulp_of_row"]
            entry["worst_case"] = finding["case"]
    return list(found.values())


def _told_outputs(
    findings: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], str, Mapping[str, Any]]]:
    for finding in findings:
        for name, told in finding.get("outputs", {}).items():
            yield finding, name, told
