"""An operator bound to the kernels that may compute it: what `sparsekit.load` returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparsekit.aot.plan import Planner
from sparsekit.discover import Choice
from sparsekit.errors import ArgumentError, GpuError
from sparsekit.model.call import Call, Device
from sparsekit.model.kernel import Kernel, Launch, passed_args
from sparsekit.model.op import Op
from sparsekit.operators.acquire import Acquirer, Prepared
from sparsekit.operators.arguments import Arguments, bind, checked_call, output_dtype, shape_of
from sparsekit.runtime import tensors as torch_tensors
from sparsekit.runtime.driver import Driver
from sparsekit.runtime.launcher import launch
from sparsekit.runtime.loader import Loader
from sparsekit.runtime.select import Candidate, Decision, argument_number
from sparsekit.store.local import Store

_KEPT_CALLS = 4096  # prepared calls by their facts; the oldest goes first


class Operator:
    """One operator as a callable with the op's own signature.

    Calling it checks the arguments, chooses a kernel, and launches on the tensors' device and
    current stream. Outputs are returned as one tensor, or a tuple of them. Raises TypeError for an
    element type, ValueError for shapes, strides, devices and values, GpuError for the driver.
    """

    def __init__(
        self, op: Op, choices: Sequence[Choice], planner: Planner, store: Store, *,
        build: bool = True, note: Callable[[str], None] = warnings.warn,
    ) -> None:  # fmt: skip
        self.op = op
        self._acquirer = Acquirer(choices, planner, store, build=build, note=note)
        self._largest_assumed = max((_largest_assumed(c.kernel) for c in choices), default=1)
        self._loader: Loader | None = None
        self._devices: dict[int, Device] = {}
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self.__name__, self.__doc__ = op.name, op.summary

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = self.bind(*args, **kwargs)
        outputs = self.run(arguments)
        results = tuple(outputs[name] for name in arguments.outputs)
        return results[0] if len(results) == 1 else results

    def bind(self, *args: Any, **kwargs: Any) -> Arguments:
        """The arguments by name, for `run`, `decisions` and `prepared`."""
        return bind(self.op, args, kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Choose, build and load what such a call needs, without launching: for graph capture."""
        self.prepared(self.bind(*args, **kwargs))

    def prepared(self, arguments: Arguments) -> Prepared | None:
        """What the call would run, loaded; None when it has nothing to compute."""
        call, _ = self._checked(arguments)
        return None if self._is_empty(call, arguments) else self._prepare(call)

    def decisions(self, arguments: Arguments) -> list[Decision]:
        """Every selection decision for the call, up to the one that is taken."""
        call, _ = self._checked(arguments)
        return list(self._acquirer.decisions(call))

    def run(self, arguments: Arguments) -> dict[str, Any]:
        """Launch; returns the outputs by name, those that the caller gave among them."""
        call, outputs = self._checked(arguments)
        if self._is_empty(call, arguments):
            return outputs
        device = _device(self.op, arguments)
        with torch_tensors.current(device):
            if torch_tensors.capturing() and self._key(call) not in self._prepared:
                raise GpuError(
                    f"{self.op.name} is being captured into a CUDA graph and was not loaded for "
                    "such a call before; call prepare() with the same arguments first"
                )
            self._launch(self._prepare(call), call, {**arguments.inputs, **outputs}, device)
        return outputs

    def _checked(self, arguments: Arguments) -> tuple[Call, dict[str, Any]]:
        """The call's facts, and its outputs allocated where the caller gave none."""
        device = _device(self.op, arguments)
        call = checked_call(self.op, arguments, self._device(device.index))
        outputs = {
            t.name: arguments.given[t.name]
            if t.name in arguments.given
            else torch_tensors.empty(
                shape_of(t, call.dims), output_dtype(t, arguments.scalars), device
            )
            for t in self.op.outputs
            if t.name in arguments.outputs
        }
        known = torch_tensors.facts(outputs)
        return replace(
            call,
            dtypes={**call.dtypes, **known["dtypes"]},
            strides={**call.strides, **known["strides"]},
            alignments={**call.alignments, **known["alignments"]},
        ), outputs

    def _device(self, index: int) -> Device:
        if index not in self._devices:
            torch_tensors.initialise(index)
            self._devices[index] = self.loader.driver.device(index)
        return self._devices[index]

    @property
    def loader(self) -> Loader:
        if self._loader is None:
            self._loader = Loader(Driver())
        return self._loader

    def _is_empty(self, call: Call, arguments: Arguments) -> bool:
        first = next(t for t in self.op.outputs if t.name in arguments.outputs)
        return 0 in shape_of(first, call.dims)

    def _key(self, call: Call) -> tuple[Any, ...]:
        """All of a call that a choice may look at, as a dictionary key.

        An address counts up to the largest multiple that some kernel assumes of one.
        """
        assert call.device is not None
        known = tuple((n, min(a, self._largest_assumed)) for n, a in call.alignments.items())
        return (
            tuple(call.dims.items()), tuple(call.dtypes.items()), tuple(call.strides.items()),
            known, tuple(call.scalars.items()), call.device.index,
        )  # fmt: skip

    def _prepare(self, call: Call) -> Prepared:
        key = self._key(call)
        if key not in self._prepared:
            if len(self._prepared) >= _KEPT_CALLS:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = self._acquirer.prepare(call, self.loader)
        return self._prepared[key]

    def _launch(
        self, prepared: Prepared, call: Call, tensors: Mapping[str, Any], device: Any
    ) -> None:
        candidate = prepared.candidate
        buffers = {
            s.name: torch_tensors.empty(s.shape, s.dtype, device)
            for step in candidate.launches
            for s in step.scratch
        }
        stream = torch_tensors.stream_of(device)
        for step in candidate.launches:
            loaded = prepared.entries[step.entry]
            values = _values(candidate, step, call, {**tensors, **buffers})
            per_block = loaded.record.global_scratch_bytes
            scratch = torch_tensors.empty((per_block * _blocks(step),), "u8", device)
            values["global_scratch"] = torch_tensors.address(scratch)
            values["profile_scratch"] = 0
            launch(self.loader.driver, loaded, step.grid, values, stream)


def _values(
    candidate: Candidate, step: Launch, call: Call, tensors: Mapping[str, Any]
) -> dict[str, int | float]:
    """Every argument of the launch by name, addresses for pointers (0 for what was not given)."""
    values: dict[str, int | float] = {}
    for arg in passed_args(candidate.kernel.entry(step.entry), candidate.instance):
        if arg.is_pointer:
            tensor = tensors.get(arg.bound_to)
            values[arg.name] = 0 if tensor is None else torch_tensors.address(tensor)
        else:
            values[arg.name] = argument_number(arg, step, call)
    return values


def _blocks(step: Launch) -> int:
    x, y, z = step.grid
    return x * y * z


def _device(op: Op, arguments: Arguments) -> Any:
    """The one device of all tensors. Raises ArgumentError before anything else looks at them."""
    found: dict[Any, str] = {}
    for name, tensor in {**arguments.inputs, **arguments.given}.items():
        if tensor is not None:
            found.setdefault(tensor.device, name)
    if len(found) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in found.items())
        raise ArgumentError(f"{op.name}: all tensors must be on one device, found {places}")
    (device,) = found
    if device.type != "cuda":
        (name,) = found.values()
        raise ArgumentError(
            f"{op.name}: tensors must be on a CUDA device, found {name} on {device}"
        )
    return device


def _largest_assumed(kernel: Kernel) -> int:
    """The largest multiple of bytes that an instance of the kernel assumes of an address."""
    promises = [
        (entry, promise)
        for entry in kernel.entries
        for instance in kernel.instances
        for promise in kernel.promises(entry, instance)
    ]
    pointers = {(e.name, a.name) for e in kernel.entries for a in e.args if a.is_pointer}
    return max((p.divisible_by for e, p in promises if (e.name, p.arg) in pointers), default=1)
