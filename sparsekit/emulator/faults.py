"""What a launch on the CPU found: faults, coverage, and the checks that can be switched off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparsekit.errors import SparsekitError, UsageError
from sparsekit.ptx import PtxError

CHECKS: Mapping[str, str] = {
    "bounds": "every access lies inside an allocation, or its block's shared memory",
    "alignment": "every access is aligned to its size",
    "uninitialised": "nothing is read from global or shared memory before it is written",
    "race": "conflicting accesses to shared memory are ordered by barriers and waits",
    "global-race": "conflicting accesses of two blocks to global memory are ordered by fences",
    "proxy-fence": "what the async proxy reads of shared memory, and others have stored there, a "
    "proxy fence has made visible to it",
    "copy-proxy-fence": "the same of what cp.async has copied there",
    "divergence": "all lanes that a warp-wide instruction names execute it together",
    "barrier": "arrival counts of a barrier agree, and no arrival is left over",
    "mbarrier": "mbarriers are initialised before use, get no arrival or byte too many, and end "
    "no phase before all have seen the one before",
    "descriptor": "descriptors of tensors, matrices and instructions say what the ISA allows",
    "wgmma": "registers of wgmma in flight are left alone, and fenced before it uses them",
    "tensor-memory": "tensor memory is allocated before use, by the rules, and freed",
    "exited-block": "a block of a cluster exits after all accesses of others to its shared memory",
    "undefined-register": "no register is read before it is written",
}
"""The checks by name, all on unless switched off."""

STRICT_CHECKS: Mapping[str, str] = {
    "same-value-race": "two warps that write one cell of shared memory are ordered, even when "
    "they write the same value",
    "tensor-load": "registers that tcgen05.ld fills are used after a tcgen05.wait::ld",
    "tensor-fence": "operations on tensor memory of several warps have a tcgen05.fence each where "
    "something orders the warps",
    "mbarrier-proxy-fence": "mbarriers that copies complete on are made visible to the async proxy "
    "by fence.mbarrier_init or a proxy fence",
    "proxy-overwrite": "what the async proxy overwrites in shared memory, and others have stored "
    "there, a proxy fence has made visible to it",
}
"""Checks of what hardware forgives, off unless asked for."""

Triple = tuple[int, int, int]


class UnsupportedError(PtxError):
    """An instruction, modifier or operand that the emulator has no model of."""


class FaultError(SparsekitError):
    """A launch on the CPU found faults. faults: all of them, in the order found.

    stopped: the launch did not get to its end, so that its results are none.
    """

    def __init__(self, faults: tuple[Fault, ...], *, stopped: bool = False) -> None:
        self.faults, self.stopped = faults, stopped
        super().__init__("\n".join(map(str, faults)))


@dataclass(frozen=True)
class Fault:
    """One fault. kind: a check's name, or deadlock, trap, assert, limit, or outside (of memory).

    cta, thread: indices of the block and of one thread that did it; None where no single thread
    did. line and instruction: in the PTX; source: "file:line:column", empty without line info.
    """

    kind: str
    message: str
    entry: str
    cta: Triple | None
    thread: Triple | None
    line: int
    instruction: str
    source: str

    def __str__(self) -> str:
        where = [f"block {_triple(self.cta)}"] if self.cta else []
        where += [f"thread {_triple(self.thread)}"] if self.thread else []
        place = f"PTX line {self.line} `{self.instruction}`" if self.line else self.entry
        source = f" at {self.source}" if self.source else ""
        who = f" ({', '.join(where)})" if where else ""
        return f"{self.kind}: {self.message}; {place}{source}{who}"


def _triple(index: Triple) -> str:
    return ",".join(map(str, index))


@dataclass(frozen=True)
class Uncovered:
    """A block of instructions that no thread executed. line, last_line: in the PTX."""

    function: str
    line: int
    last_line: int
    source: str


@dataclass(frozen=True)
class Report:
    """What one launch did. warp_instructions: executed, times warps that took part.

    printed: what the kernel's threads printed, the first lines. stopped: a fault ended it early.
    """

    entry: str
    faults: tuple[Fault, ...]
    blocks_executed: int
    blocks_present: int
    uncovered: tuple[Uncovered, ...]
    convoy_instructions: int
    warp_instructions: int
    printed: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def ok(self) -> bool:
        return not self.faults

    def raise_faults(self) -> Report:
        """The report itself. Raises FaultError when there are faults."""
        if self.faults:
            raise FaultError(self.faults, stopped=self.stopped)
        return self


def chosen_checks(*, strict: bool = False, without: Iterable[str] = ()) -> frozenset[str]:
    """All checks, the strict ones where asked for, but those that are switched off by name.

    Raises UsageError for a name that is none.
    """
    left_out = selected_checks(without)
    return frozenset({**CHECKS, **(STRICT_CHECKS if strict else {})}) - left_out


def selected_checks(checks: Iterable[str] | None) -> frozenset[str]:
    """The checks to make: None means CHECKS. Raises UsageError for a name that is none."""
    chosen = frozenset(CHECKS if checks is None else checks)
    known = {**CHECKS, **STRICT_CHECKS}
    if unknown := sorted(chosen - set(known)):
        raise UsageError(f"unknown check {unknown[0]!r}; there are {', '.join(known)}")
    return chosen
