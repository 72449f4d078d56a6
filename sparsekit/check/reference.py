"""An op's reference.py and what its functions give; what they raise is told as its fault."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from sparsekit.errors import SpecError
from sparsekit.model.op import Case, Op
from sparsekit.spec_file import ask, load_module


def load_reference(op: Op) -> ModuleType:
    """The op's reference.py: make_inputs, reference and tolerance. Raises SpecError."""
    file = _file(op)
    if not file.is_file():
        raise SpecError(f"op {op.name} has no {file}; nothing can be checked against it")
    module = load_module(file, f"sparsekit_reference_{op.name}")
    missing = [n for n in ("make_inputs", "reference", "tolerance") if not hasattr(module, n)]
    if missing:
        raise SpecError(f"{file} defines no {missing[0]}()")
    return module


def asked(
    op: Op, case: Case, reference: ModuleType, function: str, *args: Any
) -> Mapping[str, Any]:
    """What `make_inputs`, `reference` or `tolerance` gives for the case.

    Raises SpecError that names op, function and case for whatever it raises, but
    torch.OutOfMemoryError, which is the device's.
    """
    try:
        given: Mapping[str, Any] = ask(
            _file(op), _what(op, case, function), getattr(reference, function), *args,
            kind=Mapping[str, Any],
        )  # fmt: skip
    except SpecError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise error.__cause__ from None
        raise
    return given


def asked_of_outputs(
    op: Op, case: Case, reference: ModuleType, outputs: Mapping[str, torch.Tensor], function: str,
    *args: Any,
) -> Mapping[str, torch.Tensor]:  # fmt: skip
    """The same of a function that gives a tensor for each output, of its shape."""
    given = asked(op, case, reference, function, *args)
    for name, output in outputs.items():
        tensor = given.get(name)
        found = list(tensor.shape) if isinstance(tensor, torch.Tensor) else tensor
        if found != list(output.shape):
            raise SpecError(
                f"{_file(op)}: {_what(op, case, function)}: {name} must be a tensor "
                f"{list(output.shape)}, found {found}"
            )
    return given


def _what(op: Op, case: Case, function: str) -> str:
    return f"{function}() of op {op.name}, case {case.name!r}"


def _file(op: Op) -> Path:
    return op.folder / "reference.py"
