"""Launching a kernel on the CPU: the host's side."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from sparsekit.emulator.code import Code, make_code
from sparsekit.emulator.cycles import no_collection
from sparsekit.emulator.faults import Report, Triple, Uncovered, selected_checks
from sparsekit.emulator.findings import Findings, StopLaunch
from sparsekit.emulator.geometry import WARP, Geometry, Shape
from sparsekit.emulator.global_races import GlobalRaces
from sparsekit.emulator.machine import Machine, Translations
from sparsekit.emulator.memory import Allocation, Memory
from sparsekit.emulator.schedule import Choices, Schedule
from sparsekit.emulator.storage import Storage
from sparsekit.emulator.tensor_map import TensorMap
from sparsekit.errors import ArgumentError, UsageError
from sparsekit.ptx import Module, parse

_BATCH_THREADS = 4096
_BATCH_SHARED_BYTES = 1 << 25
_TENSOR_MEMORY_SHARE = 1 << 22  # bytes that a block with tensor memory counts as
_STEP_LIMIT = 10_000_000
_KEPT_PROGRAMS = 96
_KEPT_TEXTS = 512
_HEADER = re.compile(
    r"^[ \t]*\.(?:version[ \t]+\d+\.\d+|target[ \t]+sm_\d+[af]?)[ \t]*$", re.MULTILINE
)

Parameter = bytes | int | float | Allocation | TensorMap


class Program:
    """A parsed PTX module and what has been prepared to run of it; for any number of launches."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._prepared: dict[str, tuple[Code, Translations]] = {}

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(e.name for e in self.module.entries)

    def prepared(self, entry: str) -> tuple[Code, Translations]:
        """The entry, ready to run. Raises UsageError for one that is not there, UnsupportedError
        for an instruction that is not modelled."""
        if entry not in self._prepared:
            function = next((e for e in self.module.entries if e.name == entry), None)
            if function is None:
                found = ", ".join(self.entries) or "none"
                raise UsageError(f"no entry {entry!r} in the PTX; it has {found}")
            with no_collection():
                code = make_code(self.module, function)
            self._prepared[entry] = (code, Translations(code))
        return self._prepared[entry]


@dataclass(frozen=True)
class _Source:
    """A PTX text; equal to all others of the same body, whatever arch their headers name."""

    text: str = field(compare=False)
    body: bytes


def load(text: str) -> Program:
    """The program of a PTX text; the same one for all texts that differ in nothing but the version
    and the target that their headers name, which no execution depends on. Raises PtxError."""
    return _program(_Source(text, _body_digest(text)))


@lru_cache(_KEPT_TEXTS)
def _body_digest(text: str) -> bytes:
    return hashlib.sha256(_HEADER.sub("header", text, count=2).encode()).digest()


@lru_cache(_KEPT_PROGRAMS)
def _program(source: _Source) -> Program:
    with no_collection():
        return Program(parse(source.text))


def launch(
    program: Program, entry: str, grid: Sequence[int], block: Sequence[int] | int,
    params: Sequence[Parameter] | bytes, memory: Memory, *, shared_bytes: int = 0,
    cluster: Sequence[int] = (1, 1, 1), schedule: Schedule | None = None,
    checks: Iterable[str] | None = None, step_limit: int = _STEP_LIMIT,
) -> Report:  # fmt: skip
    """Run all blocks of a launch and report what was found.

    grid in blocks, block in threads, cluster in blocks; shared_bytes: dynamic shared memory of a
    block. params: the parameter buffer as bytes, or one value per parameter: an allocation for its
    address, a number, or bytes. checks: names from CHECKS, None for all. step_limit: how many steps
    a batch may take, against endless loops. Raises UsageError or ArgumentError for a launch that no
    GPU takes, UnsupportedError for an instruction that is not modelled; faults are in the report.
    """
    code, translations = program.prepared(entry)
    shape = _shape(code, grid, block, cluster)
    findings = Findings(code, selected_checks(checks))
    choices = Choices(schedule or Schedule())
    packed = params if isinstance(params, bytes) else pack(code, params)
    if len(packed) > max(code.layout.param_bytes, 0):
        raise ArgumentError(
            f"{entry} takes {code.layout.param_bytes} bytes of parameters, found {len(packed)}"
        )
    stopped = False
    executed = np.zeros(len(code.blocks), np.int64)
    warps = np.zeros(len(code.blocks), np.int64)
    if shape.units:
        units = _batch_units(code, shape, shared_bytes)
        geometry = Geometry(shape, units)
        storage = Storage(code, geometry, memory, shared_bytes, packed)
        races = None
        if shape.blocks > 1 and "global-race" in findings.checks:
            races = GlobalRaces(memory, findings, shape.blocks)
        machine = Machine(
            code, translations, geometry, storage, findings, choices, races, step_limit
        )
        with np.errstate(all="ignore"), no_collection():
            try:
                machine.waiting_units = list(range(shape.units))
                while left := machine.waiting_units:
                    first, count = left[0], min(units, len(left))
                    del left[:count]
                    machine.run(first, count)
            except StopLaunch:
                stopped = True
            if races is not None:
                races.finish()
        executed, warps = machine.executed, machine.warps_executed
        machine.release()
    return _report(code, findings, executed, warps, stopped)


def pack(code: Code, params: Sequence[Parameter]) -> bytes:
    """The parameter buffer of an entry from one value per parameter."""
    formals = code.entry.params
    if len(params) != len(formals):
        raise ArgumentError(
            f"{code.entry.name} takes {len(formals)} parameters, found {len(params)}"
        )
    buffer = bytearray(code.layout.param_bytes)
    for formal, value in zip(formals, params, strict=True):
        offset, size = code.layout.param[formal.name]
        if isinstance(value, Allocation):
            value = value.address
        if isinstance(value, TensorMap):
            value = value.packed()
        if isinstance(value, float):
            value = struct.pack({4: "<f", 8: "<d"}.get(size, "<d"), value)
        elif isinstance(value, int):
            value = (value % (1 << 8 * size)).to_bytes(size, "little")
        if len(value) != size:
            raise ArgumentError(f"{formal.name} has {size} bytes, found {len(value)}")
        buffer[offset : offset + size] = value
    return bytes(buffer)


def _shape(
    code: Code, grid: Sequence[int], block: Sequence[int] | int, cluster: Sequence[int]
) -> Shape:
    threads = (block,) if isinstance(block, int) else block
    shape = Shape(_triple(grid), _triple(threads), _triple(cluster))
    needed = code.entry.directives.get("reqntid")
    if needed and _triple([int(n) for n in needed]) != shape.block:
        raise UsageError(f"{code.entry.name} is for blocks of {needed} threads, not {shape.block}")
    largest = code.entry.directives.get("maxntid")
    if largest and shape.threads > int(np.prod([int(n) for n in largest])):
        raise UsageError(f"{code.entry.name} takes at most {largest} threads, not {shape.block}")
    if not 1 <= shape.threads <= 1024:
        raise UsageError(f"a block of {shape.threads} threads; a GPU takes 1 to 1024")
    if any(g % c for g, c in zip(shape.grid, shape.cluster, strict=True)):
        raise UsageError(f"grid {shape.grid} is no multiple of cluster {shape.cluster}")
    return shape


def _triple(extent: Sequence[int]) -> Triple:
    x, y, z = (*extent, 1, 1, 1)[:3]
    return x, y, z


def _batch_units(code: Code, shape: Shape, shared_bytes: int) -> int:
    """How many units to run side by side."""
    threads = shape.cluster_size * shape.warps * WARP
    shared = shape.cluster_size * (code.layout.dynamic_start + shared_bytes)
    if code.uses_tensor_memory:
        shared = max(shared, shape.cluster_size * _TENSOR_MEMORY_SHARE)
    if code.controls_launch:  # the others are to be cancelled
        return 1
    most = min(_BATCH_THREADS // threads, _BATCH_SHARED_BYTES // shared, shape.units)
    return max(most, 1)


def _report(
    code: Code, findings: Findings, executed: np.ndarray, warps: np.ndarray, stopped: bool
) -> Report:
    real = [b for b in code.blocks if b.stop > b.start]
    missing = [b for b in real if not executed[b.number]]
    sizes = np.array([b.stop - b.start for b in code.blocks])
    module = code.module
    return Report(
        entry=code.entry.name,
        faults=tuple(findings.faults),
        blocks_executed=len(real) - len(missing),
        blocks_present=len(real),
        uncovered=tuple(
            Uncovered(
                code.functions[b.function].name,
                code.matched[b.start].instruction.line,
                code.matched[b.stop - 1].instruction.line,
                module.where(code.matched[b.start].instruction.loc),
            )
            for b in missing
        ),
        convoy_instructions=int((executed * sizes).sum()),
        warp_instructions=int((warps * sizes).sum()),
        printed=tuple(findings.printed),
        stopped=stopped,
    )
