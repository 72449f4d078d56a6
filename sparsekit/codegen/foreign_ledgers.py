"""Ledgers of foreign code: one for each kernel and arch of what lies in a path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsekit.aot.assemble import assemble
from sparsekit.aot.elf import Cubin, CubinEntry, read_cubin
from sparsekit.codegen.foreign import Piece, Problem, read_foreign
from sparsekit.codegen.inspect import Inspector
from sparsekit.codegen.ledger import Histogram, Ledger, Name, Resources, SassFacts
from sparsekit.errors import CompileError, SparsekitError, UsageError
from sparsekit.model.arch import SHARED_BYTES_OPTIN, ArchRequest, Capability
from sparsekit.model.toolchain import Toolchain

_TARGET = re.compile(rb"^\s*\.target\s+(sm_\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Found:
    """ledgers in the order of the files. problems: files that could not be read, and why. images:
    the cubin that each ledger is of, by name."""

    ledgers: list[Ledger]
    problems: list[str]
    images: Mapping[Name, bytes]


@dataclass(frozen=True)
class _Image:
    """A cubin that reads, or the PTX that could not be assembled."""

    piece: Piece
    data: bytes
    cubin: Cubin
    toolchain: str


class ForeignReader:
    """assembler: the Triton whose ptxas makes cubins of PTX; None where there is none."""

    def __init__(self, inspector: Inspector, assembler: Toolchain | None) -> None:
        self._inspector, self._assembler = inspector, assembler

    def look(self, path: Path, archs: Sequence[ArchRequest]) -> Found:
        """All kernels in a path, those for `archs` where some are named.

        PTX is looked at where its file has no cubin for the same arch. Raises UsageError where
        nothing in the path could be read, with what is wrong.
        """
        images: list[_Image] = []
        problems: list[str] = []
        empty: list[str] = []  # libraries are full of cubins without a kernel
        texts: list[Piece] = []
        others: set[str] = set()
        for found in read_foreign(path):
            if isinstance(found, Problem):
                problems.append(str(found))
            elif found.sm is not None and not _is_wanted(f"sm_{found.sm}", archs, exact=False):
                others.add(f"sm_{found.sm}")
            elif found.kind == "ptx":
                texts.append(found)
            else:
                image = self._cubin(found)
                if isinstance(image, _Image) and not image.cubin.entries:
                    empty.append(f"{found.file}: a cubin for {image.cubin.arch} without any kernel")
                else:
                    self._keep(image, images, problems)
        covered = {(i.piece.file, _capability(i.cubin.arch)) for i in images}
        for piece in texts:
            target = _target(piece.data)
            if target is None:
                problems.append(f"{piece.file}: PTX without a .target")
            elif (piece.file, _capability(target)) not in covered and _is_wanted(target, archs):
                self._keep(self._assembled(piece, target), images, problems)
        wanted = [i for i in images if _is_wanted(i.cubin.arch, archs)]
        problems = list(dict.fromkeys(problems))
        if not wanted:
            others |= {i.cubin.arch for i in images}
            raise UsageError(_nothing(path, others, problems or empty, archs))
        self._inspector.prepare({i.data for i in wanted})
        ledgers = [(ledger, i.data) for i in wanted for ledger in self._ledgers(i, path)]
        return Found([e for e, _ in ledgers], problems, {e.name: data for e, data in ledgers})

    def _keep(self, found: _Image | Problem, images: list[_Image], problems: list[str]) -> None:
        if isinstance(found, Problem):
            problems.append(str(found))
        else:
            images.append(found)

    def _cubin(self, piece: Piece) -> _Image | Problem:
        try:
            cubin = read_cubin(piece.data)
        except CompileError as error:
            return Problem(piece.file, f"truncated or damaged: {error}")
        if piece.ptx is not None and not cubin.arch_is_exact:
            cubin = replace(cubin, arch=_target(piece.ptx) or cubin.arch)
        return _Image(piece, piece.data, cubin, _producer(piece, cubin))

    def _assembled(self, piece: Piece, target: str) -> _Image | Problem:
        """The cubin that our assembler makes of a PTX."""
        if self._assembler is None:
            return Problem(piece.file, f"PTX for {target}, and there is no ptxas to assemble it")
        ptxas = self._assembler.newest_assembler
        try:
            image = assemble(ptxas, piece.data.decode(errors="replace"), target, ()).image
            cubin = replace(read_cubin(image), arch=target)
        except SparsekitError as error:
            return Problem(piece.file, f"PTX for {target}: {error}")
        if not cubin.entries:
            return Problem(piece.file, f"PTX for {target} without any kernel")
        own = replace(piece, ptx=piece.data)
        return _Image(own, image, cubin, f"ptxas of {self._assembler.id}")

    def _ledgers(self, image: _Image, path: Path) -> Iterator[Ledger]:
        found = self._inspector.sass(image.data)
        loads: Mapping[str, Histogram] = {}
        if image.piece.ptx is not None:
            loads = self._inspector.ptx(image.piece.ptx) or {}
        for _, entry in sorted(image.cubin.entries.items()):
            sass = None if isinstance(found, str) else found.get(entry.name)
            yield Ledger(
                name=Name(
                    _label(image.piece.file, path), "", "", image.cubin.arch, image.toolchain,
                    entry.name,
                ),
                resources=_resources(entry, sass, image),
                ptx_loads=loads.get(entry.name),
                sass=sass,
                problem=found if isinstance(found, str) else None,
                source=str(image.piece.file),
            )  # fmt: skip


def _nothing(
    path: Path, others: Iterable[str], problems: Sequence[str], archs: Sequence[ArchRequest]
) -> str:
    if held := " ".join(sorted(others)):
        return f"{path} holds code for {held}, and none for {', '.join(map(str, archs))}"
    if len(problems) == 1:
        return problems[0]
    reasons = "\n".join(f"  {problem}" for problem in problems)
    return f"{path} holds no code that could be read\n{reasons}".rstrip()


def _target(ptx: bytes) -> str | None:
    """The arch that a PTX text is for."""
    match = _TARGET.search(ptx)
    return match[1].decode() if match else None


def _capability(arch: str) -> Capability:
    digits = "".join(c for c in arch.partition("_")[2] if c.isdigit())
    if len(digits) < 2:
        raise UsageError(f"{arch!r} is no target of NVIDIA's")
    return int(digits[:-1]), int(digits[-1])


def _is_wanted(arch: str, archs: Sequence[ArchRequest], *, exact: bool = True) -> bool:
    """Whether the code is for one of the requests; without any it is. exact: the suffix counts."""
    if not archs:
        return True
    capability = _capability(arch)
    return any(
        r.capability == capability and (not exact or r.exact is None or str(r.exact) == arch)
        for r in archs
    )


def _producer(piece: Piece, cubin: Cubin) -> str:
    """The Triton that its metadata names, else the ptxas that the cubin names."""
    metadata: Mapping[str, Any] = piece.metadata or {}
    if version := metadata.get("triton_version"):
        return f"triton-{version}"
    return f"ptxas-{cubin.producer}" if cubin.producer else "unknown"


def _label(file: Path, path: Path) -> str:
    """The file's name, below the folder that was named."""
    return str(file.relative_to(path)) if path.is_dir() else file.name


def _resources(entry: CubinEntry, sass: SassFacts | None, image: _Image) -> Resources:
    """What the cubin tells. Spills are the traffic to local memory in SASS: no log is there."""
    metadata: Mapping[str, Any] = image.piece.metadata or {}
    shared = metadata.get("shared")
    return Resources(
        registers=entry.registers,
        spill_store_bytes=None if sass is None else _moved(sass, "STL"),
        spill_load_bytes=None if sass is None else _moved(sass, "LDL"),
        local_bytes=entry.local_bytes,
        static_shared_bytes=entry.static_shared_bytes,
        dynamic_shared_bytes=shared if isinstance(shared, int) else None,
        shared_limit_bytes=SHARED_BYTES_OPTIN.get(_capability(image.cubin.arch)),
        threads=entry.threads,
    )


def _moved(sass: SassFacts, kind: str) -> int:
    """Bytes of all accesses of a class."""
    return sum(int(width) * count for width, count in sass.accesses.get(kind, {}).items())
