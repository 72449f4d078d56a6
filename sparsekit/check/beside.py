"""What a kernel is held to beside another: its rows by themselves, and several streams at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from sparsekit.check.compare import compare_bits, tensor_sha256
from sparsekit.check.subject import Subject
from sparsekit.check.verify import (
    Run,
    blank_result,
    finished,
    guarded_run,
    steady,
    stopped,
    with_problem,
)
from sparsekit.check.workload import Workload
from sparsekit.errors import OF_ONE_KERNEL
from sparsekit.kernel_folders import check_case
from sparsekit.model.op import Case, Op, Tensor
from sparsekit.model.results import OutputCheck, VerifyResult
from sparsekit.runtime.tensors import on_streams

BATCHES = (1, 2, 3, 7, 64, 132, 133)
STREAMS = 4
ON_STREAMS = f"itself on {STREAMS} streams at once"
ENDS = "its middle and its last row, each alone"
_ALIGNMENT_BYTES = 64  # what a row that is copied keeps of its tensor's place
Check = Callable[[Workload, Subject], VerifyResult]


@dataclass(frozen=True)
class Beside:
    """The checks beside the pairs: each with name and case. left_out: which are not, and why."""

    checks: Sequence[tuple[str, Case, Check]]
    left_out: tuple[str, ...] = ()


def beside_pairs(
    op: Op, cases: Sequence[Case], *, named: bool = False, across: bool = False,
    emulated: bool = False,
) -> Beside:  # fmt: skip
    """The checks of the smoke cases; of all where they were named one by one.

    A case gets as many rows as the largest of BATCHES; where it is emulated and named, which takes
    long, it keeps its own. across: toolchains are compared, and nothing else.
    """
    if across:
        told = (
            "rows by themselves and streams: toolchains are compared with one another; sparsekit "
            "verify --bitwise KERNEL@TOOLCHAIN looks at one of them"
        )
        return Beside((), (f"{op.name}: {told}",))
    chosen = [c for c in cases if named or "smoke" in c.tags]
    left_out: list[str] = []
    if others := len(cases) - len(chosen):
        left_out.append(
            f"rows by themselves and streams, of {others} cases without the tag smoke; --case "
            "takes those that it names"
        )
    if chosen and emulated:
        left_out.append("streams, which an emulated run does not have")
    if chosen and emulated and op.batch:
        left_out.append("the middle and the last row alone: emulating takes long; row 0 is alone")
    if chosen and not op.batch:
        left_out.append("rows by themselves: the op names no batch")
    checks: list[tuple[str, Case, Check]] = []
    for case in chosen:
        if not emulated:
            checks.append((ON_STREAMS, case, verify_streams))
        if not op.batch:
            continue
        grown = case if emulated and named else _grown(op, case)
        count = grown.dims[op.batch]
        if problem := check_case(op, grown):
            left_out.append(f"rows of {case.name} by themselves: it takes no {count}: {problem}")
        elif count < 2:
            left_out.append(f"rows of {case.name} by themselves: emulated it has {count}")
        else:
            checks.append((rows_of(count), grown, verify_rows))
            checks += [] if emulated else [(ENDS, grown, verify_ends)]
    return Beside(checks, tuple(f"{op.name}: {text}" for text in left_out))


def _grown(op: Op, case: Case) -> Case:
    """The case with as many rows as the largest batch, or more if it has them."""
    if case.dims[op.batch] >= BATCHES[-1]:
        return case
    dims = {**case.dims, op.batch: BATCHES[-1]}
    return replace(case, name=f"{case.name}[{op.batch}={BATCHES[-1]}]", dims=dims)


def _smaller(count: int) -> list[int]:
    return [n for n in BATCHES if n < count]


def rows_of(count: int) -> str:
    """The name of `verify_rows` on so many rows."""
    return f"row 0 in batches of {', '.join(map(str, (*_smaller(count), count)))}"


def verify_rows(workload: Workload, subject: Subject) -> VerifyResult:
    """Row 0 alone, and in batches of other rows: the same bits each time.

    The workload has the largest batch; smaller ones are its first rows.
    """
    count = workload.case.dims[workload.op.batch]
    sizes = _smaller(count)
    blank = blank_result(workload, subject, rows_of(count))
    try:
        whole = guarded_run(subject, workload)
        parts = [guarded_run(subject, _first_rows(workload, n)) for n in sizes]
    except OF_ONE_KERNEL as error:
        return stopped(blank, error)
    named = [(f"in a batch of {n}", 0, part) for n, part in zip(sizes, parts, strict=True)]
    return _like_the_whole(blank, whole, named)


def verify_ends(workload: Workload, subject: Subject) -> VerifyResult:
    """The middle and the last row, each in a batch of its own: the bits that the whole gives it.

    The first is in `verify_rows`.
    """
    count = workload.case.dims[workload.op.batch]
    blank = blank_result(workload, subject, ENDS)
    try:
        whole = guarded_run(subject, workload)
        parts = [
            (f"row {row} alone", row, guarded_run(subject, _one_row(workload, row)))
            for row in dict.fromkeys((count // 2, count - 1))
        ]
    except OF_ONE_KERNEL as error:
        return stopped(blank, error)
    return _like_the_whole(blank, whole, parts)


def _like_the_whole(
    blank: VerifyResult, whole: Run, parts: Sequence[tuple[str, int, Run]]
) -> VerifyResult:
    """parts: the name of each, and which row of the whole its first row is."""
    result = steady(blank, [whole])
    checks: dict[str, OutputCheck] = {}
    for name, actual in whole.outputs.items():
        checks[name] = OutputCheck(ok=True, sha256=tensor_sha256(actual))
        for place, row, part in parts:
            check = compare_bits(part.outputs[name][:1], actual[row : row + 1])
            problem = part.problems.get(name) or whole.problems.get(name)
            if not check.ok or problem:
                text = problem or f"{place}: {check.problem}"
                checks[name] = replace(check, ok=False, problem=text)
                break
    return finished(replace(result, runs=len(parts) + 1), checks)


def verify_streams(workload: Workload, subject: Subject) -> VerifyResult:
    """The subject on several streams at once, into buffers of its own on each: the same bits as
    alone."""
    blank = blank_result(workload, subject, ON_STREAMS)
    try:
        alone = guarded_run(subject, workload)
        guarded = [workload.outputs() for _ in range(STREAMS)]
        calls = [
            partial(subject.compute, workload.inputs, {n: g.view for n, g in own.items()})
            for own in guarded
        ]
        on_streams(workload.device, calls)
    except OF_ONE_KERNEL as error:
        return stopped(blank, error)
    blank = steady(blank, [alone])
    checks: dict[str, OutputCheck] = {}
    for name, base in alone.outputs.items():
        for number, own in enumerate(guarded):
            checks[name] = with_problem(compare_bits(own[name].view, base), own[name].problem())
            if not checks[name].ok:
                text = f"on stream {number + 1}: {checks[name].problem}"
                checks[name] = replace(checks[name], problem=text)
                break
    return finished(replace(blank, runs=STREAMS + 1), checks)


def _first_rows(workload: Workload, count: int) -> Workload:
    """The workload cut to its first rows along the op's batch dim; views of the same memory."""
    return _cut(workload, count, lambda tensor, axis: tensor.narrow(axis, 0, count))


def _one_row(workload: Workload, row: int) -> Workload:
    """The workload of one row, which lies as the first one does: its batch is all that differs."""
    return _cut(workload, 1, lambda tensor, axis: _copied(tensor, axis, row))


def _cut(
    workload: Workload, count: int, cut: Callable[[torch.Tensor, int], torch.Tensor]
) -> Workload:
    batch = workload.op.batch
    inputs = dict(workload.inputs)
    for tensor in workload.op.inputs:
        if isinstance(tensor, Tensor) and batch in tensor.shape and inputs[tensor.name] is not None:
            inputs[tensor.name] = cut(inputs[tensor.name], tensor.shape.index(batch))
    case = replace(workload.case, dims={**workload.case.dims, batch: count})
    return replace(workload, case=case, inputs=inputs)


def _copied(tensor: torch.Tensor, axis: int, row: int) -> torch.Tensor:
    """The row, with the strides and the alignment of the tensor."""
    found = tensor.narrow(axis, row, 1)
    if 0 in found.stride():  # its elements share memory
        return found
    span = 1 + sum((n - 1) * s for n, s in zip(found.shape, found.stride(), strict=True))
    shift = tensor.data_ptr() % _ALIGNMENT_BYTES // tensor.element_size()
    memory = torch.zeros(shift + max(span, 0), dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(found.shape, found.stride(), shift).copy_(found)
