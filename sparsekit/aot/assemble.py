"""PTX to cubin by a ptxas, with the options that a Triton gives it."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import CompileError, ToolchainError
from sparsekit.model.toolchain import Toolchain, version_tuple

_LIMIT_S = 600.0
_FIRST_WITH_REGISTER_LEVEL = (3, 7)


@dataclass(frozen=True)
class Assembled:
    """image: the cubin. log: what `-v` said."""

    image: bytes
    log: str


def triton_options(toolchain: Toolchain, *, fp_fusion: bool) -> tuple[str, ...]:
    """What that Triton tells ptxas. Source: `make_cubin` of Triton 3.6 to 3.9; held against their
    own cubins by a test."""
    options = ["-lineinfo", "-suppress-debug-info"]
    options += [] if fp_fusion else ["--fmad=false"]
    if version_tuple(toolchain.version) >= _FIRST_WITH_REGISTER_LEVEL:
        options.append("--regAllocOptLevel=2")
    return tuple(options)


def assemble(ptxas: Path, ptx: str, arch: str, options: tuple[str, ...]) -> Assembled:
    """The cubin of a PTX text.

    Raises CompileError with what ptxas says against the text, and ToolchainError when it does not
    run or does not know the arch.
    """
    with tempfile.TemporaryDirectory(prefix="sparsekit-ptxas-") as folder:
        source, cubin = Path(folder) / "code.ptx", Path(folder) / "code.cubin"
        source.write_text(ptx)
        command = [str(ptxas), "-v", *options, f"--gpu-name={arch}", source.name, "-o", cubin.name]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{ptxas} does not run: {error}") from error
        if done.returncode != 0 or not cubin.is_file():
            raise _failure(ptxas, arch, done.stdout + done.stderr)
        return Assembled(cubin.read_bytes(), done.stdout + done.stderr)


def _failure(ptxas: Path, arch: str, said: str) -> CompileError | ToolchainError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = next((x for x in lines if "error" in x or "fatal" in x), lines[-1] if lines else "")
    if "not defined for option 'gpu-name'" in told:
        return ToolchainError(f"{ptxas} does not know {arch}")
    return CompileError(f"{ptxas.name} refuses the PTX: {told.partition(';')[2].strip() or told}")
