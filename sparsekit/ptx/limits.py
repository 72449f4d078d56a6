"""Rule `beyond-arch`: what the arch of a module's target cannot give a block.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; PTX ISA, Performance-Tuning Directives
and setmaxnreg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from sparsekit.errors import UsageError
from sparsekit.model.arch import parse_arch
from sparsekit.ptx.finding import Finding
from sparsekit.ptx.module import Function, Module
from sparsekit.ptx.operands import Immediate

BEYOND_ARCH = "beyond-arch"
BLOCK_REGISTERS = 65_536  # of one block, on every arch
MOST_REGISTERS = 256  # of one thread, as ptxas takes .maxnreg; code can name 255
MOST_THREADS = 1024
_WARP = 32
_ALLOCATION = 256  # registers of a warp are given out in multiples of it
_STEP = _ALLOCATION // _WARP


def block_registers(registers: int, threads: int) -> int:
    """The registers that a block takes of an SM, its threads having so many each."""
    warps = -(-threads // _WARP)
    return warps * -(-registers * _WARP // _ALLOCATION) * _ALLOCATION


def most_registers(threads: int) -> int:
    """What each thread of a block of so many can be launched with."""
    warps = -(-threads // _WARP)
    return min(BLOCK_REGISTERS // (warps * _ALLOCATION) * _STEP, MOST_REGISTERS)


def beyond_arch(module: Module) -> Iterator[Finding]:
    """Static shared memory, threads and registers that no block can have, and warps that are to
    give up registers they do not have, which is an illegal instruction."""
    try:
        limit = parse_arch(module.target).shared_bytes_optin
    except UsageError:  # an arch that we do not build for
        return
    declared = [v for v in module.globals if v.space == "shared"]
    for entry in module.entries:
        if not entry.defined:
            continue
        variables = [*declared, *(v for v in entry.variables if v.space == "shared")]
        total = sum(v.size_bytes for v in variables)
        if total > limit:
            text = f"{total} bytes of static shared memory, and {module.target} has {limit}"
            yield _finding(entry, "error", text)
        yield from _directives(entry)


def _directives(entry: Function) -> Iterator[Finding]:
    threads = _product(entry, "reqntid") or _product(entry, "maxntid")
    if threads > MOST_THREADS:
        yield _finding(entry, "error", f"blocks of {threads} threads; a block has {MOST_THREADS}")
        return
    (registers,) = (int(n) for n in entry.directives.get("maxnreg", (0,)))
    if registers > MOST_REGISTERS:
        text = f".maxnreg {registers}; a thread has at most {MOST_REGISTERS} registers"
        yield _finding(entry, "error", text)
    elif registers and block_registers(registers, threads) > BLOCK_REGISTERS:
        text = f".maxnreg {registers} for {threads} threads is more than {BLOCK_REGISTERS} of an SM"
        yield _finding(entry, "warning", text)
    most = min(registers or MOST_REGISTERS, most_registers(threads)) if threads else MOST_REGISTERS
    for instruction in entry.instructions:
        if not instruction.opcode.text.startswith("setmaxnreg.dec"):
            continue
        (left,) = (o.value for o in instruction.operands if isinstance(o, Immediate))
        if left > most:
            text = f"setmaxnreg.dec to {left} registers, and a thread has at most {most}"
            yield replace(_finding(entry, "error", text), line=instruction.line)


def _product(entry: Function, directive: str) -> int:
    result = 1
    for extent in entry.directives.get(directive, (0,)):
        result *= int(extent)
    return result


def _finding(entry: Function, severity: Literal["error", "warning"], text: str) -> Finding:
    return Finding(severity, BEYOND_ARCH, entry.name, "", entry.line, None, text)
