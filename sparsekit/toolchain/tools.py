"""Finding NVIDIA's tools: in a wheel, in the installed Triton, below CUDA_HOME, on PATH."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sparsekit.errors import ToolchainError
from sparsekit.settings import Settings
from sparsekit.toolchain.packages import TRITON_BIN, find_package

_LIMIT_S = 20.0


def find_nvdisasm(settings: Settings) -> Path:
    """The disassembler. Raises ToolchainError with the places searched and how to get it."""
    searched = list(_places(settings))
    found = next((place for place in searched if place.is_file()), None)
    if found is None:
        raise ToolchainError(
            "nvdisasm was found nowhere; searched "
            + ", ".join(str(p) for p in searched)
            + " and PATH; pip install -c constraints.txt nvidia-cuda-nvdisasm"
        )
    return found


def _places(settings: Settings) -> Iterator[Path]:
    wheel = find_package("nvidia-cuda-nvdisasm", sys.path)
    if wheel is not None:
        yield wheel.file("nvidia/cu13/bin/nvdisasm")
    triton = find_package("triton", sys.path)
    if triton is not None:
        yield triton.file(f"{TRITON_BIN}/nvdisasm")
    if settings.cuda_home:
        yield Path(settings.cuda_home) / "bin/nvdisasm"
    on_path = shutil.which("nvdisasm", path=settings.path)
    if on_path:
        yield Path(on_path)


def tool_release(tool: Path) -> str:
    """The release alone, `12.8.93`; the tool's complaint when it does not run."""
    version = tool_version(tool)
    found = re.search(r"\bV(\d+(?:\.\d+)+)", version)
    return found[1] if found else version


def find_ncu(settings: Settings) -> Path | None:
    """Nsight Compute's command line: on PATH, below CUDA_HOME, where its installer puts it."""
    on_path = shutil.which("ncu", path=settings.path)
    homes = [settings.cuda_home] if settings.cuda_home else []
    places = [Path(home) / "bin/ncu" for home in (*homes, "/usr/local/cuda")]
    places += sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"), reverse=True)
    return Path(on_path) if on_path else next((p for p in places if p.is_file()), None)


def tool_version(tool: Path) -> str:
    """What `--version` says of the release; the tool's complaint when it does not run."""
    try:
        done = subprocess.run(
            [str(tool), "--version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    lines = [line for line in done.stdout.splitlines() if "release" in line or "Version" in line]
    return lines[-1].strip() if lines else f"exit code {done.returncode}, no version"
