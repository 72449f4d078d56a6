"""What a check or a timing works on: a case's data or a user's own, on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

import torch

from sparsekit.check.placement import Guarded, guarded_output, place_inputs, span_elements
from sparsekit.check.reference import asked
from sparsekit.errors import TooLargeError, UsageError
from sparsekit.model.kernel import ELEMENT_BYTES
from sparsekit.model.op import RETURN_PREFIX, Case, Op, Tensor, Work
from sparsekit.operators.arguments import output_dtype, shape_of
from sparsekit.runtime.tensors import dtype_of


@dataclass(frozen=True)
class Workload:
    """A case with one of its data sets, on a device. inputs: tensors and scalars by name."""

    op: Op
    case: Case
    probe: str
    device: torch.device
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        return (
            self.case.name if self.probe == self.op.probes[0] else f"{self.case.name}/{self.probe}"
        )

    def work(self) -> Work | None:
        """FLOP and bytes of the case; None for a user's own tensors, which do not tell it all."""
        try:
            return self.op.work(self.case)
        except KeyError:
            return None

    def outputs(self) -> dict[str, Guarded]:
        """Fresh poisoned outputs: the optional ones where the case asks for them."""
        scalars = {s.name: self.inputs.get(s.name, s.default) for s in self.op.scalars}
        dims = {**self.case.dims, **{n: v for n, v in scalars.items() if isinstance(v, int)}}
        return {
            t.name: guarded_output(
                shape_of(t, dims), dtype_of(output_dtype(t, scalars)), self.device
            )
            for t in self.op.outputs
            if not t.optional or self.case.options.get(f"return_{t.name}")
        }


def make_workload(
    op: Op, reference: ModuleType, case: Case, probe: str, device: torch.device
) -> Workload:
    """The case's data on the device; on the CPU that is for the emulator.

    Raises TooLargeError when it does not fit there, SpecError when it cannot be made.
    """
    if device.type == "cpu":
        from sparsekit.emulator import require_room  # not for those who have a GPU

        require_room(*least_bytes(op, case))
    inputs = asked(op, case, reference, "make_inputs", case, probe)
    try:
        return Workload(op, case, probe, device, place_inputs(inputs, case, device))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TooLargeError(f"not enough memory on {device} for this case") from error


def least_bytes(op: Op, case: Case) -> tuple[int, int]:
    """How many bytes the case's tensors hold at least, and how many they span, from the first
    element of each to its last; the former without the gaps that the emulator leaves out.

    Optional inputs are left out, and tensors of a size that the case does not tell; where it tells
    no element type, it is the smallest.
    """
    from sparsekit.emulator import is_wide

    dims = {**{s.name: s.default for s in op.scalars if isinstance(s.default, int)}, **case.dims}
    held = spanned = 0
    for tensor in op.tensors:
        is_output = tensor in op.outputs
        asked_for = is_output and case.options.get(f"{RETURN_PREFIX}{tensor.name}")
        if tensor.optional and not asked_for:
            continue
        if all(isinstance(n, int) or n in dims for n in tensor.shape):
            shape, size = shape_of(tensor, dims), _least_element_bytes(tensor, case)
            span = prod(shape) if is_output else span_elements(tensor.name, shape, case)
            lines = prod(shape[:-1])
            gaps = (span - prod(shape)) * size
            spanned += span * size
            held += span * size - (gaps if lines > 1 and is_wide(gaps // (lines - 1)) else 0)
    return held, spanned


def _least_element_bytes(tensor: Tensor, case: Case) -> int:
    told = case.options.get(f"{tensor.name}_dtype")
    return min(ELEMENT_BYTES.get(t, 1) for t in ([told] if told else tensor.dtypes))


def user_workload(op: Op, inputs: dict[str, Any], name: str, device: torch.device) -> Workload:
    """The user's tensors as a workload; optional outputs are asked for too."""
    options = {f"return_{o.name}": True for o in op.outputs if o.optional}
    for tensor in op.tensors:
        value = inputs.get(tensor.name)
        if value is not None and value.dim() != len(tensor.shape):
            wanted, found = ", ".join(map(str, tensor.shape)), list(value.shape)
            raise UsageError(f"{name}: {tensor.name} must be [{wanted}], found shape {found}")
    dims = {
        size: value.shape[axis]
        for tensor in op.tensors
        if (value := inputs.get(tensor.name)) is not None
        for axis, size in enumerate(tensor.shape)
        if isinstance(size, str)
    }
    return Workload(op, Case(name, dims, (), options), op.probes[0], device, inputs)
