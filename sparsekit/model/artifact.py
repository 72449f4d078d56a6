"""What is compiled, and what comes out: the job with its key, and the artifact's manifest."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from sparsekit.model.arch import Arch
from sparsekit.model.kernel import Address, Instance, Kernel, Promise, Variant, passed_args
from sparsekit.model.toolchain import Toolchain

SCHEMA = 1


@dataclass(frozen=True)
class SourceFile:
    """One file that reaches the compiler. name: as the compiler knows it; path: where it lies."""

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True)
class CompileJob:
    """One compilation: variant x instance x arch x toolchain of a kernel.

    variant: as it is at the arch. compiler: all that the compiler is told. lineinfo: with source
    lines, its own key. ptx: the PTX may be loaded where no cubin runs. store_options: options that
    make another command use the same store.
    """

    kernel: Kernel
    variant: Variant
    instance: Instance
    arch: Arch
    toolchain: Toolchain
    sources: tuple[SourceFile, ...]
    compiler: Mapping[str, Any]
    lineinfo: bool = False
    ptx: bool = False
    store_options: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that can change the bytes, as plain data; its digest is the key."""
        kernel, variant, instance = self.kernel, self.variant, self.instance
        identity: dict[str, Any] = {
            "schema": SCHEMA,
            "kernel": kernel.name,
            "lang": kernel.lang,
            "entries": [self._entry(e.name) for e in kernel.entries],
            "variant": variant.name,
            "constants": {**variant.constants, **instance.constants},
            "compiler": dict(self.compiler),
            "instance": instance.name,
            "arch": str(self.arch),
            "toolchain": {"id": self.toolchain.id, "fingerprint": self.toolchain.fingerprint},
            "sources": [[s.name, s.sha256] for s in self.sources],
            "lineinfo": self.lineinfo,
            "ptx": self.ptx,
        }
        if kernel.lang == "triton" and self.lineinfo:
            # Triton writes the absolute path of the source into the cubin.
            identity["path"] = str(self.sources[0].path)
        return identity

    def _entry(self, name: str) -> dict[str, Any]:
        entry = self.kernel.entry(name)
        args = [[a.name, a.type] for a in passed_args(entry, self.instance)]
        promises = [[p.arg, p.divisible_by] for p in self.kernel.promises(entry, self.instance)]
        ones = [a.name for a in entry.args if a.name in self.instance.ones]
        known = {"entry": name, "args": args, "promises": promises}
        return {**known, "ones": ones} if ones else known

    @cached_property
    def key(self) -> str:
        return hashlib.sha256(canonical_json(self.identity)).hexdigest()

    @property
    def build_command(self) -> str:
        """The command that builds it."""
        kernel = self.kernel
        address = kernel.address or Address(kernel.qualified_name)
        reference = f"{address.name}:{self.variant.name}@{self.toolchain.id}"
        arch = f"{self.arch}+PTX" if self.ptx else str(self.arch)
        parts = ["sparsekit", "build", reference, "--arch", arch]
        parts += [] if self.instance.default else ["--instances", "all"]
        parts += ["--lineinfo"] if self.lineinfo else []
        for folder in address.kernel_dirs:
            parts += ["--kernels", str(folder)]
        return shlex.join([*parts, *self.store_options])

    def with_paths(self, text: str) -> str:
        """A compiler's text with the paths of sources for the names that it knows them under."""
        main, *headers = self.sources
        known = {f"{self.kernel.name}/{main.name}": main.path, **{h.name: h.path for h in headers}}
        names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        # NVRTC puts the worker's folder, `/`, before a name in line information.
        return re.sub(rf"(?<![\w./-])/?({names})(?=[(:]\d)", lambda m: str(known[m[1]]), text)

    def __str__(self) -> str:
        return (
            f"{self.kernel.name}:{self.variant.name} [{self.instance.name}] "
            f"{self.arch} {self.toolchain.id}"
        )


@dataclass(frozen=True)
class Param:
    """A parameter as compiled: the spec's name and type, the cubin's offset and size in bytes."""

    name: str
    type: str
    offset: int
    size: int


@dataclass(frozen=True)
class EntryRecord:
    """One entry of an artifact: its parameters, promises, launch facts and resources.

    threads: per block. cluster: blocks per cluster, or None. launch_facts: integers that the kernel
    states for the host. Sizes in bytes; spills are None where the compiler does not tell them.
    """

    entry: str
    cubin: str
    cubin_sha256: str
    params: tuple[Param, ...]
    promises: tuple[Promise, ...]
    threads: int
    cluster: tuple[int, int, int] | None
    dynamic_shared_bytes: int
    static_shared_bytes: int
    registers: int
    local_bytes: int
    spill_store_bytes: int | None
    spill_load_bytes: int | None
    code_bytes: int
    text_sha256: str
    launch_facts: Mapping[str, int] = field(default_factory=dict)
    global_scratch_bytes: int = 0

    @property
    def shared_bytes(self) -> int:
        return self.dynamic_shared_bytes + self.static_shared_bytes


@dataclass(frozen=True)
class Manifest:
    """What stands in an artifact's manifest.json.

    identity: the job's, its digest is the key. entries in the order of the spec. ptx: the PTX file
    of each entry. warnings: what compiler and lint said. provenance: when, by what, how long.
    """

    key: str
    identity: Mapping[str, Any]
    entries: tuple[EntryRecord, ...]
    ptx: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def entry(self, name: str) -> EntryRecord:
        return next(e for e in self.entries if e.entry == name)

    @property
    def arch(self) -> str:
        return str(self.identity["arch"])

    @property
    def toolchain(self) -> str:
        return str(self.identity["toolchain"]["id"])

    @property
    def cubin_sha256(self) -> str:
        """sha256 over the entries' cubin digests, in order."""
        digests = "\n".join(e.cubin_sha256 for e in self.entries)
        return hashlib.sha256(digests.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """The manifest from its JSON. Raises KeyError, TypeError or ValueError on anything else."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"manifest schema {data['schema']!r}, expected {SCHEMA}")
        return cls(
            key=data["key"],
            identity=data["identity"],
            entries=tuple(entry_record_from_json(e) for e in data["entries"]),
            ptx=data["ptx"],
            warnings=tuple(data["warnings"]),
            provenance=data["provenance"],
        )


def entry_record_from_json(data: Mapping[str, Any]) -> EntryRecord:
    """A record from its JSON. Raises KeyError or TypeError on anything else."""
    fields = dict(data)
    fields["params"] = tuple(Param(**p) for p in data["params"])
    fields["promises"] = tuple(Promise(**p) for p in data["promises"])
    fields["cluster"] = tuple(data["cluster"]) if data["cluster"] else None
    return EntryRecord(**fields)


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel in the store, checked when it was read.

    files: the contents by name, as they were when their digests were checked.
    """

    folder: Path
    manifest: Manifest
    files: Mapping[str, bytes] = field(repr=False)

    def cubin(self, entry: str) -> bytes:
        return self.files[self.manifest.entry(entry).cubin]

    def ptx(self, entry: str) -> str:
        return self.files[self.manifest.ptx[entry]].decode()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: the same bytes for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
