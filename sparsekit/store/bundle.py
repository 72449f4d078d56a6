"""Artifacts in one file, to be built here and run there.

    bundle.json               toolchains, and of each artifact the sha256 of its SHA256SUMS
    artifacts/KEY/FILE        what the store holds under KEY

A tar archive compressed with zstandard. The same artifacts give the same bytes. On the way in every
name is checked, every digest is checked, and an artifact comes into the store whole or not at all.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparsekit.digest import file_sha256, sha256_of
from sparsekit.errors import StoreError, UsageError
from sparsekit.files import parse_json, replace_file
from sparsekit.model.artifact import Artifact
from sparsekit.model.toolchain import Toolchain
from sparsekit.store.local import SUMS, Damaged, Store
from sparsekit.toolchain.imported import keep, record_of, toolchain_of

SCHEMA = 1
_INDEX = "bundle.json"
_MEMBER = re.compile(r"artifacts/([0-9a-f]{64})/([A-Za-z0-9_][A-Za-z0-9_.\-]*)")
_LARGEST_FILE_BYTES = 1 << 28
_LEVEL = 10


@dataclass(frozen=True)
class Imported:
    """What a bundle brought. new: keys that the store did not have; known: those that it had."""

    new: tuple[str, ...]
    known: tuple[str, ...]
    toolchains: tuple[Toolchain, ...]


def export_bundle(
    file: Path, artifacts: Sequence[Artifact], toolchains: Sequence[Toolchain]
) -> str:
    """Write the artifacts to the file; its sha256. Raises UsageError where it cannot be written."""
    index = {
        "schema": SCHEMA, "kind": "bundle",
        "toolchains": [record_of(t) for t in sorted(toolchains, key=lambda t: t.id)],
        "artifacts": {a.manifest.key: _sums_sha256(a.folder) for a in artifacts},
    }  # fmt: skip

    def write(path: Path) -> None:
        with (
            path.open("wb") as raw,
            _zstandard().ZstdCompressor(level=_LEVEL).stream_writer(raw, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|") as archive,
        ):
            _add(archive, _INDEX, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
            for artifact in sorted(artifacts, key=lambda a: a.manifest.key):
                folder = f"artifacts/{artifact.manifest.key}"
                _add(archive, f"{folder}/{SUMS}", (artifact.folder / SUMS).read_bytes())
                for name, content in sorted(artifact.files.items()):
                    _add(archive, f"{folder}/{name}", content)

    replace_file(file, write)
    return file_sha256(file)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))


def _sums_sha256(folder: Path) -> str:
    return file_sha256(folder / SUMS)


def import_bundle(file: Path, store: Store) -> Imported:
    """Bring the bundle's artifacts into the store.

    Raises StoreError for what is damaged or does not belong into a bundle; artifacts before it are
    in the store then, whole, and nothing of the others.
    """
    with _opened(file) as members:
        name, content = next(members, ("", b""))
        index = _index(file, name, content)
        toolchains = tuple(_toolchains(file, index))
        new: list[str] = []
        known: list[str] = []
        for key, files in _by_key(file, members):
            wanted = index["artifacts"].get(key)
            if wanted != sha256_of(files.get(SUMS, b"")):
                raise StoreError(f"{file}: artifact {key[:16]} is not what {_INDEX} speaks of")
            (known if _adopt(file, store, key, files) else new).append(key)
    if missing := set(index["artifacts"]) - {*new, *known}:
        raise StoreError(f"{file} is cut off: {len(missing)} artifacts are missing")
    for toolchain in toolchains:
        keep(store.root, toolchain)
    return Imported(tuple(new), tuple(known), toolchains)


def _adopt(file: Path, store: Store, key: str, files: Mapping[str, bytes]) -> bool:
    """Put the artifact into the store; whether it was there."""
    if store.get(key) is not None:
        return True
    with store.building(key) as stage:
        for name, content in files.items():
            (stage / name).write_bytes(content)
        try:
            store.adopt(stage, key)
        except (Damaged, FileNotFoundError) as error:
            raise StoreError(f"{file}: artifact {key[:16]} is damaged: {error}") from error
    return False


def _index(file: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        if name != _INDEX:
            raise ValueError(f"{name!r} stands first")
        index = parse_json(content)
        if index["kind"] != "bundle" or index["schema"] != SCHEMA:
            raise ValueError(f"kind {index['kind']!r}, schema {index['schema']!r}")
        return {"toolchains": list(index["toolchains"]), "artifacts": dict(index["artifacts"])}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{file} is no bundle of schema {SCHEMA}: {error}") from error


def _toolchains(file: Path, index: Mapping[str, Any]) -> Iterator[Toolchain]:
    for record in index["toolchains"]:
        try:
            yield toolchain_of(record, file)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{file}: a toolchain in {_INDEX} does not read: {error}") from error


def _by_key(
    file: Path, members: Iterator[tuple[str, bytes]]
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The files of each artifact; an artifact's files stand together."""
    key, files = "", dict[str, bytes]()
    seen: set[str] = set()
    for name, content in members:
        match = _MEMBER.fullmatch(name)
        if match is None:
            raise StoreError(f"{file} holds {name!r}, which belongs into no bundle")
        if match[1] != key:
            if key:
                yield key, files
            seen.add(key)
            key, files = match[1], {}
        if match[2] in files or key in seen:
            raise StoreError(f"{file} holds {name!r} twice")
        files[match[2]] = content
    if key:
        yield key, files


@contextmanager
def _opened(file: Path) -> Iterator[Iterator[tuple[str, bytes]]]:
    """The archive's members by name, in order; plain files of bounded size, or StoreError."""
    zstandard = _zstandard()
    try:
        with (
            file.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            yield _members(file, archive)
    except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
        raise StoreError(f"{file} cannot be read as a bundle: {error}") from error


def _members(file: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        if not member.isreg() or member.size > _LARGEST_FILE_BYTES:
            raise StoreError(
                f"{file} holds {member.name!r}, which is no plain file of at most "
                f"{_LARGEST_FILE_BYTES} bytes"
            )
        stream: IO[bytes] | None = archive.extractfile(member)
        yield member.name, stream.read() if stream else b""


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UsageError(
            "bundles need the package zstandard: pip install -c constraints.txt zstandard"
        ) from error
    return zstandard
