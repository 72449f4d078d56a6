"""Source lines of machine code, through `nvdisasm -g`, where a cubin was built with line info."""

from __future__ import annotations

import re
from pathlib import Path

from sparsekit.codegen.sass import run_nvdisasm

_SECTION = re.compile(r"^\.text\.(\S+):")
_PLACE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/")


def source_lines(cubin: bytes, nvdisasm: Path) -> dict[str, dict[int, str]]:
    """`kernel.cu:17` by function and by offset of an instruction in bytes; nothing for a cubin
    without line info. Raises ToolchainError when the tool fails."""
    found: dict[str, dict[int, str]] = {}
    function, place = "", ""
    for line in run_nvdisasm(cubin, nvdisasm, "-g", "-c").splitlines():
        if match := _SECTION.match(line):
            function, place = match[1], ""
        elif match := _PLACE.match(line):
            place = f"{Path(match[1]).name}:{match[2]}"
        elif place and (match := _INSTRUCTION.match(line)):
            found.setdefault(function, {})[int(match[1], 16)] = place
    return found
