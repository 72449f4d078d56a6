"""What is verified: something that computes an op into given outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sparsekit.model.op import Op
from sparsekit.model.results import Coverage, Finding
from sparsekit.operators.arguments import Arguments, bind
from sparsekit.operators.operator import Operator


@dataclass(frozen=True)
class Ran:
    """What ran: the exact arch, toolchain and artifact key; None where there is none to tell.

    Of an emulated run: findings, coverage, how many launches it made and how many of them were
    known; stopped: a fault ended it, so that its outputs are none.
    """

    arch: str | None = None
    toolchain: str | None = None
    key: str | None = None
    findings: tuple[Finding, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    launches: int = 0
    reused: int = 0
    stopped: bool = False


class Subject(Protocol):
    """One kernel variant; variant bears `@TOOLCHAIN` where one was named.

    turns(repeat): by name, the subjects whose runs are to have the same bytes; itself, so many
    times, or under several schedules. arch: that it is for, if it is for one. compute() fills the
    outputs and returns what ran; it may raise ArgumentError when it does not take the call,
    GpuError when the launch failed.
    """

    @property
    def kernel(self) -> str: ...
    @property
    def variant(self) -> str: ...
    @property
    def arch(self) -> str | None: ...
    def turns(self, repeat: int) -> Sequence[tuple[str, Subject]]: ...
    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Ran: ...


@dataclass(frozen=True)
class OperatorSubject:
    """A kernel variant through the operator that users call."""

    kernel: str
    variant: str
    operator: Operator
    arch: str | None = None

    def turns(self, repeat: int) -> Sequence[tuple[str, Subject]]:
        return repeated(self, repeat)

    def compute(self, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]) -> Ran:
        arguments = arguments_of(self.operator.op, inputs, outputs)
        prepared = self.operator.prepared(arguments)
        self.operator.run(arguments)
        if prepared is None:
            return Ran()
        manifest = prepared.artifact.manifest
        return Ran(manifest.arch, manifest.toolchain, manifest.key)


def named(variant: str, toolchain: str | None) -> str:
    """The variant's name in results: with `@TOOLCHAIN` where one was named."""
    return f"{variant}@{toolchain}" if toolchain else variant


def repeated(subject: Subject, count: int) -> Sequence[tuple[str, Subject]]:
    """So many runs of one subject, numbered."""
    return [(f"run {i + 1}", subject) for i in range(count)]


def arguments_of(
    op: Op, inputs: Mapping[str, Any], outputs: Mapping[str, torch.Tensor]
) -> Arguments:
    """The call's arguments from inputs by name, scalars among them, into the given outputs."""
    return bind(op, (), {**inputs, **outputs})
