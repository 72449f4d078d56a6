"""Collecting faults: each with the place in PTX and source, the same one once."""

from __future__ import annotations

from sparsekit.emulator.code import Code
from sparsekit.emulator.faults import CHECKS, STRICT_CHECKS, Fault, Triple
from sparsekit.emulator.geometry import Geometry

_FATAL = frozenset({"bounds", "divergence", "barrier", "mbarrier", "descriptor", "tensor-memory"})
_MOST_FAULTS = 100


class StopLaunch(Exception):
    """The launch cannot go on: what would follow is not what a GPU would do."""


class Findings:
    """The faults of one launch. Kinds that are checks and not chosen are dropped."""

    def __init__(self, code: Code, checks: frozenset[str]) -> None:
        self.faults: list[Fault] = []
        self.checks = checks
        self.printed: list[str] = []
        self._code = code
        self._seen: set[tuple[str, int]] = set()

    def add(
        self, geometry: Geometry, kind: str, message: str, at: int | None, thread: int | None
    ) -> None:
        """Note a fault of one thread at one instruction.

        Raises StopLaunch for a kind after which execution has no meaning.
        """
        is_check = kind in CHECKS or kind in STRICT_CHECKS
        if is_check and kind not in self.checks:
            return
        key = (kind, -1 if at is None else at)
        if key not in self._seen:
            self._seen.add(key)
            self.faults.append(self._fault(geometry, kind, message, at, thread))
        if not is_check or kind in _FATAL or len(self.faults) >= _MOST_FAULTS:
            raise StopLaunch

    def add_block(self, kind: str, message: str, at: int, block: Triple) -> None:
        """Note a fault of a block, found after the fact."""
        if kind in self.checks and (kind, at) not in self._seen:
            self._seen.add((kind, at))
            self.faults.append(self._made(kind, message, at, block, None))

    def line(self, at: int) -> int:
        """The PTX line of an instruction."""
        return self._code.matched[at].instruction.line

    def _fault(
        self, geometry: Geometry, kind: str, message: str, at: int | None, thread: int | None
    ) -> Fault:
        if thread is None:
            return self._made(kind, message, at, None, None)
        return self._made(kind, message, at, geometry.block_of(thread), geometry.thread_of(thread))

    def _made(
        self, kind: str, message: str, at: int | None, block: Triple | None, thread: Triple | None
    ) -> Fault:
        instruction = None if at is None else self._code.matched[at].instruction
        return Fault(
            kind=kind,
            message=message,
            entry=self._code.entry.name,
            cta=block,
            thread=thread,
            line=instruction.line if instruction else 0,
            instruction=str(instruction) if instruction else "",
            source=self._code.module.where(instruction.loc) if instruction else "",
        )
