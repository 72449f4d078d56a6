"""`--device`: which GPU, and that there is one."""

from __future__ import annotations

import re
from typing import Any

import click

from sparsekit.errors import GpuError, UsageError
from sparsekit.model.call import Device
from sparsekit.runtime.probe import Probe, probe_devices

device_option = click.option(
    "--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU to run on."
)


def _shown(probe: Probe) -> str:
    if probe.devices:
        return f"the driver shows {len(probe.devices)} GPUs"
    return probe.problem or "the driver shows no GPU"


def gpu_of(text: str) -> tuple[Any, Device]:
    """The torch device, and what is known of it. Raises GpuError when there is no such GPU."""
    match = re.fullmatch(r"cuda(?::(\d+))?", text)
    if not match:
        raise UsageError(f"--device must be cuda or cuda:N, found {text!r}")
    index = int(match[1] or 0)
    probe = probe_devices()
    if index >= len(probe.devices):
        raise GpuError(f"--device {text}: {_shown(probe)}; see sparsekit doctor")
    import torch

    if not torch.cuda.is_available():
        raise GpuError(
            f"this torch ({torch.__version__}) has no CUDA; kernels need a CUDA build of torch"
        )
    return torch.device("cuda", index), probe.devices[index]
