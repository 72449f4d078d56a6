"""The ledgers of artifacts, taken from the store's notes or worked out. Needs no GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparsekit.aot.elf import read_cubin
from sparsekit.codegen.analyse import analyse
from sparsekit.codegen.ledger import (
    LEDGER_VERSION,
    Histogram,
    Ledger,
    Name,
    Resources,
    SassFacts,
)
from sparsekit.codegen.listing import sass_listing
from sparsekit.codegen.ptx_loads import ptx_loads
from sparsekit.codegen.sass import disassemble
from sparsekit.codegen.source_lines import source_lines
from sparsekit.digest import sha256_of
from sparsekit.errors import ToolchainError
from sparsekit.model.arch import parse_arch
from sparsekit.model.artifact import Artifact, EntryRecord
from sparsekit.ptx import PtxError, parse
from sparsekit.store.notes import Notes, note_key

_VERSION = str(LEDGER_VERSION)


@dataclass(frozen=True)
class Reading:
    """One cubin was read. text: its entries, or why it was not."""

    status: Literal["read", "failed"]
    text: str

    def __str__(self) -> str:
        return self.text


class Inspector:
    """Reads code. nvdisasm: None where there is none, and no SASS then."""

    def __init__(
        self, notes: Notes, nvdisasm: Path | None, workers: int,
        watch: Callable[[Iterator[Reading], int], Iterable[Reading]] = lambda steps, total: steps,
    ) -> None:  # fmt: skip
        """watch(steps, total): hands on the steps, to show how far they are."""
        self._notes, self._nvdisasm, self._workers = notes, nvdisasm, workers
        self._watch = watch

    def ledgers(self, artifacts: Sequence[tuple[Artifact, str]]) -> Iterator[Ledger]:
        """One ledger for every entry of the artifacts, each with the file it was compiled from, in
        order; several disassemblers run at once."""
        self.prepare({image for a, _ in artifacts for image in _cubins(a)})
        for artifact, source in artifacts:
            yield from self._of_artifact(artifact, source)

    def prepare(self, images: Collection[bytes]) -> None:
        """Work out the facts of cubins that will be asked for, several at once."""
        with ThreadPoolExecutor(self._workers) as pool:
            deque(self._watch(pool.map(self._reading, images), len(images)), maxlen=0)

    def _reading(self, image: bytes) -> Reading:
        found = self.sass(image)
        return (
            Reading("failed", found) if isinstance(found, str) else Reading("read", " ".join(found))
        )

    def sass(self, image: bytes) -> dict[str, SassFacts] | str:
        """The facts by entry, or why there are none."""
        key = note_key("sass", _VERSION, sha256_of(image))
        known = self._notes.get(key)
        if known is not None:
            return {name: SassFacts.from_json(facts) for name, facts in known.items()}
        if self._nvdisasm is None:
            return "nvdisasm was not found"
        try:
            facts = analyse(read_cubin(image), disassemble(image, self._nvdisasm))
        except ToolchainError as error:
            return str(error)
        self._notes.put(key, {name: f.to_json() for name, f in facts.items()})
        return facts

    def ptx(self, text: bytes) -> dict[str, Histogram] | None:
        """Widths of loads by entry; None for a text that is no PTX."""
        key = note_key("ptx", _VERSION, sha256_of(text))
        known: Any = self._notes.get(key)
        if known is None:
            try:
                known = {f.name: ptx_loads(f) for f in parse(text.decode()).entries}
            except (PtxError, UnicodeDecodeError):
                return None
            self._notes.put(key, known)
        return dict(known)

    def listing(self, image: bytes, entry: str) -> list[str]:
        """The machine code of an entry for people. Raises ToolchainError where there is none."""
        if self._nvdisasm is None:
            raise ToolchainError("nvdisasm was not found")
        code = disassemble(image, self._nvdisasm)[entry]
        return sass_listing(code, source_lines(image, self._nvdisasm).get(entry, {}))

    def _of_artifact(self, artifact: Artifact, source: str) -> Iterator[Ledger]:
        manifest = artifact.manifest
        loads: dict[str, Histogram] = {}
        for file in dict.fromkeys(manifest.ptx.values()):
            loads |= self.ptx(artifact.files[file]) or {}
        for record in manifest.entries:
            found = self.sass(artifact.files[record.cubin])
            yield Ledger(
                name=name_of(artifact, record),
                resources=resources_of(record, manifest.arch),
                ptx_loads=loads.get(record.entry),
                sass=None if isinstance(found, str) else found.get(record.entry),
                problem=found if isinstance(found, str) else None,
                source=source,
            )


def _cubins(artifact: Artifact) -> list[bytes]:
    return [artifact.files[e.cubin] for e in artifact.manifest.entries]


def name_of(artifact: Artifact, record: EntryRecord) -> Name:
    identity = artifact.manifest.identity
    return Name(
        str(identity["kernel"]),
        str(identity["variant"]),
        str(identity["instance"]),
        artifact.manifest.arch,
        artifact.manifest.toolchain,
        record.entry,
    )


def resources_of(record: EntryRecord, arch: str) -> Resources:
    return Resources(
        registers=record.registers,
        spill_store_bytes=record.spill_store_bytes,
        spill_load_bytes=record.spill_load_bytes,
        local_bytes=record.local_bytes,
        static_shared_bytes=record.static_shared_bytes,
        dynamic_shared_bytes=record.dynamic_shared_bytes,
        shared_limit_bytes=parse_arch(arch).shared_bytes_optin,
        threads=record.threads,
    )
