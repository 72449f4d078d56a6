"""What stands in an artifact's code, entry by entry. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparsekit.codegen.ptx_loads import ptx_loads
from sparsekit.codegen.sass import SassInstruction, disassemble, sass_loads
from sparsekit.errors import ToolchainError
from sparsekit.model.artifact import Artifact, EntryRecord, Manifest
from sparsekit.ptx import parse

Histogram = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class EntryCode:
    """One entry's code. sass: None, and a problem, where the disassembler could not be used."""

    manifest: Manifest
    record: EntryRecord
    ptx_loads: Histogram
    ptx: str
    sass: tuple[SassInstruction, ...] | None
    problem: str | None = None

    @property
    def sass_loads(self) -> Histogram | None:
        return None if self.sass is None else sass_loads(self.sass)


def inspect_all(
    artifacts: Iterable[Artifact], nvdisasm: Path | None, workers: int
) -> Iterator[EntryCode]:
    """The code of every entry, artifacts in order; several disassemblers run at once."""
    with ThreadPoolExecutor(workers) as pool:
        for entries in pool.map(lambda a: _inspect(a, nvdisasm), artifacts):
            yield from entries


def _inspect(artifact: Artifact, nvdisasm: Path | None) -> list[EntryCode]:
    manifest = artifact.manifest
    functions: dict[str, tuple[SassInstruction, ...]] = {}
    problem = None if nvdisasm else "nvdisasm was not found"
    try:
        for cubin in dict.fromkeys(e.cubin for e in manifest.entries) if nvdisasm else ():
            functions |= disassemble(artifact.files[cubin], nvdisasm)  # type: ignore[arg-type]
    except ToolchainError as error:
        problem = str(error)
    loads = {
        function.name: ptx_loads(function)
        for name in dict.fromkeys(manifest.ptx.values())
        for function in parse(artifact.files[name].decode()).entries
    }
    return [
        EntryCode(
            manifest, e, loads[e.entry], artifact.ptx(e.entry), functions.get(e.entry), problem
        )
        for e in manifest.entries
    ]
