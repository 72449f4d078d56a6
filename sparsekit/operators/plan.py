"""What one kind of call does, worked out once: its outputs, its kernel, its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparsekit.errors import SpecError
from sparsekit.model.call import Call, Device, packed_strides
from sparsekit.model.kernel import ELEMENT_BYTES, Arg, passed_args
from sparsekit.model.op import Op
from sparsekit.model.tensor_map import MapFacts, map_facts, map_type
from sparsekit.operators.acquire import Acquirer, Prepared
from sparsekit.operators.arguments import Arguments, checked_call, output_dtype, shape_of
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.runtime.device_driver import DeviceDriver
from sparsekit.runtime.launcher import BoundLaunch
from sparsekit.runtime.loader import Loader
from sparsekit.runtime.select import argument_number


@dataclass(frozen=True)
class Buffer:
    """A tensor to be allocated: an output, or scratch."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CallPlan:
    """A checked call. outputs: those to be allocated; empty: there is nothing to compute."""

    call: Call
    outputs: tuple[Buffer, ...]
    empty: bool


@dataclass(frozen=True)
class LaunchPlan:
    """A call's kernel with its launches, loaded and packed but for the addresses."""

    prepared: Prepared
    driver: DeviceDriver
    scratch: tuple[Buffer, ...]
    launches: tuple[BoundLaunch, ...]

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], device: Any) -> None:
        """Launch on the device's current stream."""
        buffers = {b.name: torch_tensors.scratch(b.shape, b.dtype, device) for b in self.scratch}
        present = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        written = {**outputs, **buffers}
        addresses = self.driver.addresses({**present, **written}, frozenset(written))
        stream = torch_tensors.stream_of(device)
        for launch in self.launches:
            launch(addresses, stream)
        self.driver.finish()


def plan_call(op: Op, arguments: Arguments, device: Device) -> CallPlan:
    """Check the arguments; the call's facts are complete, outputs to be allocated included."""
    call = checked_call(op, arguments, device)
    outputs = [t for t in op.outputs if t.name in arguments.outputs]
    made = tuple(
        Buffer(t.name, shape_of(t, call.dims), output_dtype(t, arguments.scalars))
        for t in outputs
        if t.name not in arguments.given
    )
    known = replace(
        call,
        dtypes={**call.dtypes, **{b.name: b.dtype for b in made}},
        shapes={**call.shapes, **{b.name: b.shape for b in made}},
        strides={**call.strides, **{b.name: packed_strides(b.shape) for b in made}},
        alignments={
            **call.alignments,
            **{b.name: torch_tensors.ALLOCATION_ALIGN_BYTES for b in made},
        },
    )
    return CallPlan(known, made, empty=0 in shape_of(outputs[0], call.dims))


def plan_launch(op: Op, call: Call, acquirer: Acquirer, loader: Loader) -> LaunchPlan:
    """Choose, build and load the call's kernel, and pack what does not change between calls.

    Raises ArgumentError when no kernel takes the call, SpecError when the one that does is wrong.
    """
    prepared = acquirer.prepare(call, loader)
    candidate = prepared.candidate
    scratch = {
        s.name: Buffer(s.name, s.shape, s.dtype)
        for step in candidate.launches
        for s in step.scratch
    }
    buffers, launches = {t.name for t in op.tensors} | set(scratch), []
    for step in candidate.launches:
        kernel = candidate.kernel
        args = passed_args(kernel.entry(step.entry), candidate.instance)
        numbers = {a.name: argument_number(kernel, a, step, call) for a in args if not a.is_tensor}
        pointers = {a.name: a.bound_to for a in args if a.is_tensor}
        maps = {a.name: _facts_of_map(a, call) for a in args if a.is_map}
        for name in sorted(set(pointers.values()) - buffers):
            raise SpecError(
                f"{kernel.spec_file}: {step.entry} takes a pointer to {name!r}, "
                f"which is no tensor of {op.name} and no scratch of the launch"
            )
        loaded = prepared.entries[step.entry]
        launches.append(BoundLaunch(loader.driver, loaded, step.grid, numbers, pointers, maps))
        if scratch_bytes := loaded.record.global_scratch_bytes * _product(step.grid):
            scratch["global_scratch"] = Buffer("global_scratch", (scratch_bytes,), "u8")
    return LaunchPlan(prepared, loader.driver, tuple(scratch.values()), tuple(launches))


def _facts_of_map(arg: Arg, call: Call) -> MapFacts | None:
    kind = map_type(arg.type)
    assert kind is not None, "the spec was checked"
    return map_facts(kind, call, arg.bound_to, ELEMENT_BYTES[call.dtypes[arg.bound_to]])


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
