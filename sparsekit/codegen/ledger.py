"""The ledger: what stands in one entry's generated code, as plain data that the store keeps.

Widths are bytes per thread. Counts are static: how often an instruction stands in the code, not how
often it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

Histogram = Mapping[str, Mapping[str, int]]  # class of access -> width in bytes, or "?" -> count
LEDGER_VERSION = 5  # raise it when the same code gives another ledger
UNKNOWN_WIDTH = "?"  # the size of a bulk copy is an operand
GLOBAL_LOADS = ("LDG", "LDGSTS")
BULK_LOADS = ("UBLKCP", "UTMALDG")


@dataclass(frozen=True)
class LoopFacts:
    """One loop's own instructions, those of inner loops left out.

    start, stop: bytes from the function's start. parent: the number of the loop around it.
    loads: global and bulk loads of one iteration; gathers: those of them whose address depends on
    an earlier load. stream: the same number for loops that load from the same arrays, such as an
    unrolled loop and its remainder; None for one that loads nothing.
    """

    start: int
    stop: int
    depth: int
    parent: int | None
    instructions: int
    loads: Histogram
    gathers: Histogram
    stream: int | None = None


@dataclass(frozen=True)
class SassFacts:
    """What the machine code of one entry says. barriers: named ones that it uses, None where the
    cubin does not tell. tensor: matrix instructions by opcode. arithmetic: FFMA, FMUL, FADD and
    MUFU, and ftz for all instructions that flush. rounding: see `codegen.rounding`."""

    entry: str
    instructions: int
    code_bytes: int
    text_sha256: str
    instructions_sha256: str
    barriers: int | None
    accesses: Histogram
    gathers: Histogram
    loops: tuple[LoopFacts, ...]
    tensor: Mapping[str, int]
    arithmetic: Mapping[str, int]
    rounding: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SassFacts:
        """The facts from their JSON. Raises KeyError or TypeError on anything else."""
        values = {f.name: data[f.name] for f in fields(cls)}
        values["loops"] = tuple(LoopFacts(**loop) for loop in data["loops"])
        values["rounding"] = tuple(data["rounding"])
        return cls(**values)


@dataclass(frozen=True)
class Resources:
    """What an entry needs, sizes in bytes; None where nothing tells.

    spill_*: from the compiler's log, else the local memory traffic in SASS. shared_limit_bytes:
    what a block may have on the arch.
    """

    registers: int | None
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    local_bytes: int | None
    static_shared_bytes: int | None
    dynamic_shared_bytes: int | None
    shared_limit_bytes: int | None
    threads: int | None

    @property
    def shared_bytes(self) -> int | None:
        """Static and dynamic; the static part alone where a cubin does not tell the other."""
        if self.static_shared_bytes is None:
            return None
        return self.static_shared_bytes + (self.dynamic_shared_bytes or 0)


@dataclass(frozen=True)
class Name:
    """Whose code it is. kernel is the file of foreign code; variant and instance are empty then.
    toolchain is the compiler's id, or what a foreign cubin says of its producer."""

    kernel: str
    variant: str
    instance: str
    arch: str
    toolchain: str
    entry: str

    def __str__(self) -> str:
        subject = f"{self.kernel}:{self.variant}" if self.variant else self.kernel
        parts = [subject, f"[{self.instance}]" if self.instance else "", self.entry, self.arch]
        return " ".join(filter(None, [*parts, self.toolchain]))


@dataclass(frozen=True)
class Ledger:
    """One entry. ptx_loads and sass are None, and problem says why, where they could not be had.
    source: the file that it was compiled from, or that holds it."""

    name: Name
    resources: Resources
    ptx_loads: Histogram | None
    sass: SassFacts | None
    problem: str | None = None
    source: str = ""


def by_width(widths: Mapping[str, int]) -> dict[str, int]:
    """The widest first, what is not known last."""
    return dict(sorted(widths.items(), key=lambda w: -int(w[0]) if w[0].isdigit() else 0))


def count_of(histogram: Histogram) -> int:
    """How many accesses there are, of all classes and widths."""
    return sum(sum(widths.values()) for widths in histogram.values())
