"""Tensors in safetensors files: the user's inputs, and outputs to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sparsekit.digest import file_sha256
from sparsekit.errors import UsageError
from sparsekit.files import replace_file
from sparsekit.model.op import REQUIRED, Op, Scalar, Tensor
from sparsekit.runtime.tensors import dtype_argument


def load_inputs(
    file: Path, op: Op, scalars: Mapping[str, str], device: torch.device
) -> tuple[dict[str, Any], str]:
    """The op's tensors from the file, and the file's sha256.

    Scalars come from `scalars` (typed by the user), else from the file's metadata, else from the
    op's defaults. Raises UsageError for what is missing or not the op's.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{file} cannot be read as safetensors: {error}") from error
    wanted = {t.name: t for t in op.inputs if isinstance(t, Tensor)}
    if strangers := sorted(set(tensors) - set(wanted)):
        raise UsageError(f"{file} holds {strangers[0]!r}, and {op.name} takes {', '.join(wanted)}")
    if missing := [n for n, t in wanted.items() if not t.optional and n not in tensors]:
        raise UsageError(f"{file} lacks {', '.join(missing)}; {op.name} takes {', '.join(wanted)}")
    inputs: dict[str, Any] = dict.fromkeys(wanted)
    inputs |= {name: tensor.to(device) for name, tensor in tensors.items()}
    known = [s.name for s in op.scalars]
    if unknown := sorted(set(scalars) - set(known)):
        raise UsageError(
            f"--set {unknown[0]}: with --inputs it gives a scalar of {op.name}, which takes "
            f"{', '.join(known) or 'none'}"
        )
    for scalar in op.scalars:
        inputs[scalar.name] = _scalar(scalar, {**metadata, **scalars}, file)
    return inputs, file_sha256(file)


def _scalar(scalar: Scalar, given: Mapping[str, str], file: Path) -> Any:
    if scalar.name not in given:
        if scalar.default is REQUIRED:
            raise UsageError(
                f"{file} gives no {scalar.name}: put it into the file's metadata, or add "
                f"--set {scalar.name}=VALUE"
            )
        return scalar.default
    text = given[scalar.name]
    kinds: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "dtype": _element_type}
    try:
        return kinds[scalar.type](text)
    except ValueError:
        raise UsageError(f"{scalar.name} must be a {scalar.type}, found {text!r}") from None


def _element_type(text: str) -> str:
    name = dtype_argument(text)
    if name is None:
        raise ValueError(text)
    return name


def save_tensors(file: Path, tensors: Mapping[str, torch.Tensor], note: Mapping[str, str]) -> None:
    """Write the tensors and the note to a safetensors file, whole or not at all."""
    from safetensors.torch import save_file

    compact = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    replace_file(file, lambda path: save_file(compact, path, metadata=dict(note)))
