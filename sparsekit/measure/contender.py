"""What is timed: a kernel through its operator, or a Python callable with the op's signature."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sparsekit.check.subject import arguments_of
from sparsekit.errors import GpuError, SparsekitError, UsageError, first_line
from sparsekit.model.bench import Timing
from sparsekit.model.op import Op, Scalar
from sparsekit.model.reference import CALLABLE_PREFIX
from sparsekit.operators.operator import Operator
from sparsekit.runtime.tensors import current, dtype_of

Tensors = Mapping[str, torch.Tensor]


class Contender(Protocol):
    """Something that computes an op on a GPU.

    compute() fills the outputs once and tells what ran. caller() gives what is timed: calls of it
    do the whole work on the current stream. Both may raise NoKernelError for a call that it does
    not take, GpuError for a launch that failed.
    """

    @property
    def label(self) -> str: ...
    def compute(self, inputs: Mapping[str, Any], outputs: Tensors) -> Timing: ...
    def caller(self, inputs: Mapping[str, Any], outputs: Tensors) -> Callable[[], object]: ...


@dataclass(frozen=True)
class KernelContender:
    """A reference's kernel: the named variant, or the one that selection picks for the call."""

    label: str
    operator: Operator

    def compute(self, inputs: Mapping[str, Any], outputs: Tensors) -> Timing:
        arguments = arguments_of(self.operator.op, inputs, outputs)
        prepared = self.operator.prepared(arguments)
        self.operator.run(arguments)
        if prepared is None:
            return Timing(self.label, self.operator.op.name, "nothing to compute")
        manifest, candidate = prepared.artifact.manifest, prepared.candidate
        return Timing(
            self.label, candidate.kernel.name, candidate.variant.name, manifest.toolchain,
            manifest.arch, manifest.key,
        )  # fmt: skip

    def caller(self, inputs: Mapping[str, Any], outputs: Tensors) -> Callable[[], object]:
        arguments = arguments_of(self.operator.op, inputs, outputs)
        self.operator.prepared(arguments)
        return lambda: self.operator.run(arguments)


@dataclass(frozen=True)
class CallableContender:
    """An installed function that takes the op's arguments by name and returns its outputs."""

    label: str
    op: Op
    function: Callable[..., Any]

    def compute(self, inputs: Mapping[str, Any], outputs: Tensors) -> Timing:
        returned = self._call(self._arguments(inputs))
        results = returned if isinstance(returned, tuple | list) else (returned,)
        if len(results) < len(outputs):
            raise GpuError(
                f"{self.label} returned {len(results)} results, and {self.op.name} has "
                f"{', '.join(outputs)}"
            )
        for (name, output), result in zip(outputs.items(), results, strict=False):
            if not isinstance(result, torch.Tensor) or result.numel() != output.numel():
                raise GpuError(
                    f"{self.label} returned no {name} of shape {list(output.shape)} in its place"
                )
            output.copy_(result.reshape(output.shape))
        return Timing(self.label, self.label, "callable")

    def caller(self, inputs: Mapping[str, Any], outputs: Tensors) -> Callable[[], object]:
        arguments = self._arguments(inputs)
        return lambda: self._call(arguments)

    def _arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs by name; what is optional and absent is left to the function's default."""
        types = {s.name for s in self.op.inputs if isinstance(s, Scalar) and s.type == "dtype"}
        return {
            name: dtype_of(value) if name in types else value
            for name, value in inputs.items()
            if value is not None
        }

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        tensor = next(v for v in arguments.values() if isinstance(v, torch.Tensor))
        try:
            with current(tensor.device) if tensor.is_cuda else nullcontext():
                return self.function(**arguments)
        except SparsekitError:
            raise
        except (Exception, SystemExit) as error:  # whatever somebody else's function raises
            told = f"{type(error).__name__}: {first_line(error)}"
            raise GpuError(f"{self.label} raised {told}") from error


def callable_contender(text: str, op: Op) -> CallableContender:
    """The contender of `py:package.module:function`. Raises UsageError when there is no such."""
    module_name, colon, name = text.removeprefix(CALLABLE_PREFIX).partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{text!r}: expected py:package.module:function")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # whatever somebody else's module raises
        told = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{text!r}: {told}; it must be installed for this Python") from error
    if not callable(found):
        raise UsageError(f"{text!r} is a {type(found).__name__}, not a function")
    return CallableContender(text, op, found)
