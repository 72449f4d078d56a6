"""SASS through `nvdisasm -json`: the instructions of each function, and what one access moves.

Source: `nvdisasm` 12.8 to 13.5 on cubins for sm_80 to sm_121; CUDA Binary Utilities documentation.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparsekit.codegen.ledger import BULK_LOADS
from sparsekit.errors import ToolchainError

_LIMIT_S = 120.0
INSTRUCTION_BYTES = 16
_SUFFIX_BYTES = {
    "U8": 1, "S8": 1, "U16": 2, "S16": 2, "16": 2, "32": 4, "64": 8, "128": 16, "256": 32,
}  # fmt: skip
_PER_THREAD = frozenset({"LDG", "LDGSTS", "LDS", "LDSM", "LDL", "STG", "STS", "STL", "STSM"})
_MATRIX = frozenset({"LDSM", "STSM"})
ACCESSES = _PER_THREAD | {*BULK_LOADS}


@dataclass(frozen=True)
class SassInstruction:
    """predicate: `@P0`, `@!P1` or empty. offset: bytes from the start of the function."""

    offset: int
    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    def __str__(self) -> str:
        return f"/*{self.offset:04x}*/ {self.predicate:>5} {self.opcode} {self.operands}".rstrip()


def disassemble(cubin: bytes, nvdisasm: Path) -> dict[str, tuple[SassInstruction, ...]]:
    """The instructions by function. Raises ToolchainError when the tool fails or shows nothing."""
    listing = run_nvdisasm(cubin, nvdisasm, "-json")
    try:
        _, functions = json.loads(listing)
        found = {f["function-name"]: _instructions(f["sass-instructions"]) for f in functions}
    except (ValueError, KeyError, TypeError) as error:
        raise ToolchainError(f"{nvdisasm} gave no readable JSON: {error}") from error
    if not any(found.values()):
        raise ToolchainError(f"{nvdisasm} shows no instructions; it may be too old for this arch")
    return found


def run_nvdisasm(cubin: bytes, nvdisasm: Path, *options: str) -> str:
    """What the tool prints. Raises ToolchainError when it does not run or fails."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [str(nvdisasm), *options, file.name], capture_output=True, text=True,
                timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{nvdisasm} does not run: {error}") from error
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ToolchainError(f"{nvdisasm} failed with exit code {done.returncode}: {told}")
    return done.stdout


def _instructions(listed: list[dict[str, str]]) -> tuple[SassInstruction, ...]:
    return tuple(
        SassInstruction(
            i * INSTRUCTION_BYTES, x.get("predicate", ""), x["opcode"], x.get("operands", "")
        )
        for i, x in enumerate(listed)
    )


def access_class(base: str) -> str | None:
    """The class under which a memory access is counted, None for another instruction."""
    return base if base in ACCESSES else None


def access_bytes(opcode: str) -> int:
    """Bytes that one thread moves: the last size in the opcode, else 4; 4 for each 8x8 matrix."""
    base, *modifiers = opcode.split(".")
    if base in _MATRIX:
        return 4 * next((int(m) for m in modifiers if re.fullmatch(r"[24]", m)), 1)
    return next((_SUFFIX_BYTES[m] for m in reversed(modifiers) if m in _SUFFIX_BYTES), 4)
