"""What is verified: something that computes an op into given outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sparsekit.model.op import Op
from sparsekit.operators.arguments import Arguments, bind
from sparsekit.operators.operator import Operator


@dataclass(frozen=True)
class Ran:
    """What ran: the exact arch, toolchain and artifact key; None where there is none to tell."""

    arch: str | None = None
    toolchain: str | None = None
    key: str | None = None


class Subject(Protocol):
    """One kernel variant; variant bears `@TOOLCHAIN` where one was named.

    compute() fills the outputs and returns what ran; it may raise ArgumentError when it does not
    take the call, GpuError when the launch failed.
    """

    @property
    def kernel(self) -> str: ...
    @property
    def variant(self) -> str: ...
    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Ran: ...


@dataclass(frozen=True)
class OperatorSubject:
    """A kernel variant through the operator that users call."""

    kernel: str
    variant: str
    operator: Operator

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Ran:
        arguments = arguments_of(self.operator.op, inputs, outputs)
        prepared = self.operator.prepared(arguments)
        self.operator.run(arguments)
        if prepared is None:
            return Ran()
        manifest = prepared.artifact.manifest
        return Ran(manifest.arch, manifest.toolchain, manifest.key)


def arguments_of(
    op: Op, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]
) -> Arguments:
    """The call's arguments from inputs by name, scalars among them, into the given outputs."""
    return bind(op, (), {**inputs, **outputs})
