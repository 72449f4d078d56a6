"""`--device`: which GPU, or the CPU, and what goes with the latter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sparsekit.errors import GpuError, UsageError
from sparsekit.model.call import Device
from sparsekit.runtime.probe import Probe, probe_devices

F = TypeVar("F", bound=Callable[..., Any])
CPU = "cpu"


def device_option(default: str | None, told: str) -> Callable[[F], F]:
    return click.option(
        "--device", default=default, metavar="cuda[:N]|cpu",
        help=f"The GPU to run on, or cpu to emulate the PTX [default: {told}].",
    )  # fmt: skip


def gpu_option(command: F) -> F:
    """`--device` of the commands that time or count."""
    return click.option(
        "--device", default="cuda", show_default=True, metavar="cuda[:N]", callback=_gpu,
        help="The GPU to run on.",
    )(command)  # fmt: skip


def _gpu(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value == CPU:
        raise UsageError(f"{ctx.info_name} needs a GPU: --device must be cuda or cuda:N")
    cuda_index(value, or_cpu=False)
    return value


def emulation_options(command: F) -> F:
    """`--strict`, `--without` and `--lineinfo`."""
    return check_options(
        click.option(
            "--lineinfo", is_flag=True,
            help="Emulated: the artifacts with source lines, for findings.",
        )(command)
    )  # fmt: skip


def check_options(command: F) -> F:
    """`--strict` and `--without`."""
    command = click.option(
        "--without", metavar="CHECKS", callback=_names,
        help="Checks of the emulator to leave out, by name: bounds,race,...",
    )(command)  # fmt: skip
    return click.option(
        "--strict", is_flag=True, help="Emulated: check what hardware forgives, too."
    )(command)


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(n.strip() for n in value.split(",") if n.strip()) if value else ()


def _shown(probe: Probe) -> str:
    if count := len(probe.devices):
        return f"the driver shows {count} GPU{'s' if count > 1 else ''}"
    return probe.problem or "the driver shows no GPU"


def cuda_index(text: str, *, or_cpu: bool = True) -> int:
    """The number of the GPU. or_cpu: whether the command takes the CPU too."""
    match = re.fullmatch(r"cuda(?::(\d+))?", text)
    if not match:
        wanted = "cuda, cuda:N or cpu" if or_cpu else "cuda or cuda:N"
        raise UsageError(f"--device must be {wanted}, found {text!r}")
    return int(match[1] or 0)


def gpu_of(text: str, probe: Probe | None = None, *, or_cpu: bool = True) -> tuple[Any, Device]:
    """The torch device, and what is known of it. Raises GpuError when there is no such GPU.

    or_cpu: whether the command could take the CPU instead.
    """
    index = cuda_index(text)
    probe = probe or probe_devices()
    if index >= len(probe.devices):
        instead = ", or take --device cpu" if or_cpu else ""
        raise GpuError(f"--device {text}: {_shown(probe)}; see sparsekit doctor{instead}")
    import torch

    if not torch.cuda.is_available():
        raise GpuError(
            f"this torch ({torch.__version__}) has no CUDA; kernels need a CUDA build of torch"
        )
    return torch.device("cuda", index), probe.devices[index]
