"""vprintf, the function of the driver that a kernel's printf calls.

Source: CUDA C++ Programming Guide, Formatted Output. The arguments lie in the caller's local
memory, each at a multiple of its size.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.memory import GLOBAL_BASE
from sparsekit.emulator.storage import LOCAL_WINDOW

_MOST_LINES = 1000
_CONVERSION = re.compile(r"%([-+ #0]*)(\d*)(?:\.(\d+))?(hh|h|ll|l|z|j)?([diouxXeEfFgGaAcsp%])")
_LONG = ("l", "ll", "z", "j")


def print_text(
    c: Convoy, text_at: int, arguments_at: int, result_at: int | None, mask: Array | None
) -> None:
    """Print for each executing lane. text_at, ...: bytes in each thread's own memory."""
    machine = c.machine
    frames = machine.storage.table("local", 1, 1)[
        : c.machine.geometry.threads * machine.storage.local_bytes
    ]
    frames = frames.reshape(-1, machine.storage.local_bytes)
    for thread in c.lanes(mask).tolist():
        own = frames[thread].tobytes()
        text, arguments = (struct.unpack_from("<Q", own, at)[0] for at in (text_at, arguments_at))
        line, count = _formatted(c, _string(c, text), own, arguments - LOCAL_WINDOW)
        if len(machine.findings.printed) < _MOST_LINES:
            machine.findings.printed.append(line)
        if result_at is not None:
            frames[thread, result_at : result_at + 4] = np.frombuffer(
                struct.pack("<i", count), "u1"
            )


def _string(c: Convoy, address: int) -> str:
    """The text at an address, up to its end."""
    content = c.machine.storage.memory.content()
    start = address - GLOBAL_BASE
    if not 0 <= start < content.size:
        return "(no text)"
    end = start + int((content[start:] == 0).argmax())
    return content[start:end].tobytes().decode(errors="replace")


def _formatted(c: Convoy, text: str, own: bytes, at: int) -> tuple[str, int]:
    """(the line, how many arguments it took)."""
    parts: list[str] = []
    position = count = 0
    for match in _CONVERSION.finditer(text):
        parts.append(text[position : match.start()])
        position = match.end()
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            parts.append("%")
            continue
        wide = kind in "eEfFgGaAsp" or length in _LONG
        size = 8 if wide else 4
        at = -(-at // size) * size
        raw = own[at : at + size] if 0 <= at <= len(own) - size else bytes(size)
        at, count = at + size, count + 1
        spec = f"{flags}{width}{f'.{precision}' if precision else ''}"
        parts.append(_converted(c, raw, kind, spec))
    return "".join([*parts, text[position:]]), count


def _converted(c: Convoy, raw: bytes, kind: str, spec: str) -> str:
    if kind in "eEfFgG":
        return str(f"%{spec}{kind}" % struct.unpack("<d", raw)[0])
    if kind in "aA":
        number_of: float = struct.unpack("<d", raw)[0]
        return number_of.hex()
    number = int.from_bytes(raw, "little", signed=kind in "di")
    if kind == "s":
        return f"%{spec}s" % _string(c, number)
    if kind == "p":
        return f"{number:#x}"
    if kind == "c":
        return f"%{spec}c" % chr(number & 0xFF)
    return f"%{spec}{'d' if kind in 'diu' else kind}" % number
