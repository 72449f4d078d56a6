"""What a result was obtained with: GPU, driver, clocks, versions and command, for its record."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from sparsekit.model.call import Device
from sparsekit.toolchain.packages import TRITON_BIN, find_package
from sparsekit.toolchain.tools import tool_version
from sparsekit.version import VERSION

_LIMIT_S = 20.0
_PACKAGES = ("torch", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy")
# nvidia-smi's names of what a reader of a timing wants to know; units as it gives them.
_READINGS = (
    "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit",
    "temperature.gpu",
)  # fmt: skip


def environment(device: Device | None) -> dict[str, object]:
    """GPU, its clocks and power as they are now, versions, command and time; None where unknown.

    device: None where kernels are emulated: there is no GPU then, and nothing of one is told.
    """
    return {
        "emulated": device is None,
        "gpu": device.name if device else None,
        "compute_capability": "{}.{}".format(*device.compute_capability) if device else None,
        "sm_count": device.sm_count if device else None,
        **(_readings(device) if device else dict.fromkeys(_READINGS)),
        "versions": {"sparsekit": VERSION, "python": platform.python_version(), **_versions()},
        "ptxas": _ptxas(),
        **_checkout(),
        "command": shlex.join(["sparsekit", *sys.argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _ptxas() -> dict[str, str]:
    """The assemblers that the installed Triton brings; NVRTC's own is of its own release."""
    triton = find_package("triton", sys.path)
    if triton is None:
        return {}
    tools = {name: triton.file(f"{TRITON_BIN}/{name}") for name in ("ptxas", "ptxas-blackwell")}
    return {name: tool_version(file) for name, file in tools.items() if file.is_file()}


def _checkout() -> dict[str, object]:
    """The commit that this package runs from, and whether files differ; None where it is none."""
    folder = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if not (folder / ".git").exists():
        return {"commit": None, "dirty": None}
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changed is None else bool(changed)}


def _readings(device: Device) -> dict[str, str | None]:
    """What nvidia-smi says of this very device; the driver API has named it by its bus."""
    command = [
        "nvidia-smi", "-i", device.pci_bus_id, "--format=csv,noheader",
        f"--query-gpu={','.join(_READINGS)}",
    ]  # fmt: skip
    unknown: dict[str, str | None] = dict.fromkeys(_READINGS)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return unknown
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(_READINGS, values, strict=True)) if len(values) == len(_READINGS) else unknown
