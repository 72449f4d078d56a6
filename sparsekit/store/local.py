"""The artifact store: a folder per key, whole or absent, checked whenever it is read.

    <root>/v1/ab/ab12.../  manifest.json  SHA256SUMS  *.cubin  *.ptx      one artifact
    <root>/staging/        folders being built, and the locks of their keys

Nothing in it is ever imported or unpickled. `sha256sum -c SHA256SUMS` checks an artifact by hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparsekit.errors import StoreError
from sparsekit.model.artifact import Artifact, Manifest, canonical_json
from sparsekit.store.staging import aside, discard, key_lock, make_folder, staged_folder

LAYOUT, STAGING = "v1", "staging"
SUMS, _MANIFEST = "SHA256SUMS", "manifest.json"


class Damaged(Exception):
    """An entry that does not hold what it says; the message says what is wrong."""


class Store:
    """Artifacts by key. notify(text): told of damage that was found and repaired."""

    def __init__(self, root: Path, notify: Callable[[str], None]) -> None:
        self.root = root
        self._notify = notify

    def folder(self, key: str) -> Path:
        return self.root / LAYOUT / key[:2] / key

    def has(self, key: str) -> bool:
        """Whether there is an entry of that key; its content is not looked at."""
        return (self.folder(key) / SUMS).is_file()

    def get(self, key: str) -> Artifact | None:
        """The artifact, its digests checked; None when absent. A damaged entry is removed."""
        folder = self.folder(key)
        try:
            return read_artifact(folder)
        except FileNotFoundError as error:
            if not _exists(folder):
                return None
            problem = f"{Path(error.filename).name} is missing"
        except (Damaged, OSError) as error:
            problem = str(error)
        self._remove_damaged(folder, problem)
        return None

    def _remove_damaged(self, folder: Path, problem: str) -> None:
        self._notify(f"the stored entry {folder} is damaged and will be built again: {problem}")
        with contextlib.suppress(OSError):  # read-only, or another process was quicker
            self.remove(folder.name)

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there, at one stroke. Raises OSError when it cannot be."""
        folder = self.folder(key)
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            removed = aside(self._staging(), key)
            os.rename(folder, removed)
            discard(removed)

    def _staging(self) -> Path:
        folder = self.root / STAGING
        make_folder(folder)
        return folder

    @contextmanager
    def building(self, key: str) -> Iterator[Path]:
        """The key's lock and a new folder to build in. Raises StoreError when the disk refuses."""
        try:
            staging = self._staging()
            with key_lock(staging, key), staged_folder(staging, key) as stage:
                yield stage
        except OSError as error:
            raise StoreError(f"cannot write to {self.root}: {error}") from error

    def publish(self, stage: Path, manifest: Manifest) -> Artifact:
        """Make what was staged the entry of its key. The winner of a race is used by all."""
        data = json.dumps(manifest.to_json(), indent=1, sort_keys=True) + "\n"
        (stage / _MANIFEST).write_text(data)
        names = sorted(p.name for p in stage.iterdir())
        sums = "".join(f"{_sha256((stage / n).read_bytes())}  {n}\n" for n in names)
        (stage / SUMS).write_text(sums)
        return self.adopt(stage, manifest.key)

    def adopt(self, stage: Path, key: str) -> Artifact:
        """Make a staged folder that has all its files the entry of the key.

        Raises Damaged or FileNotFoundError when it is not what its own digests say.
        """
        own = read_artifact(stage, key=key)
        if strangers := {p.name for p in stage.iterdir()} - {*own.files, SUMS}:
            raise Damaged(f"{SUMS} does not list {min(strangers)}")
        for name in (*own.files, SUMS):
            _sync(stage / name)
        _sync(stage)
        final = self.folder(key)
        make_folder(final.parent)
        try:
            os.rename(stage, final)
        except OSError as error:
            if not _exists(final):
                raise StoreError(f"cannot publish {final}: {error}") from error
            return self.get(key) or own
        _sync(final.parent)
        return Artifact(final, own.manifest, own.files)


def read_artifact(folder: Path, key: str | None = None) -> Artifact:
    """Read and check an artifact's folder; key: its name when the folder bears another.

    Raises FileNotFoundError for what is absent and Damaged for what is not what it should be.
    """
    if stat.S_ISLNK(os.lstat(folder).st_mode):
        raise Damaged("it is a symbolic link")
    sums = _parse_sums(_read(folder / SUMS))
    files = {name: _read(folder / name) for name in sums}
    for name, content in files.items():
        if _sha256(content) != sums[name]:
            raise Damaged(f"{name} does not match its sha256")
    return Artifact(folder, _manifest(files, key or folder.name), files)


def _manifest(files: Mapping[str, bytes], key: str) -> Manifest:
    try:
        manifest = Manifest.from_json(json.loads(files[_MANIFEST]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{_MANIFEST} does not read: {error!r}") from error
    if manifest.key != key or _sha256(canonical_json(manifest.identity)) != key:
        raise Damaged("it holds the artifact of another key")
    for entry in manifest.entries:
        if _sha256(files.get(entry.cubin, b"")) != entry.cubin_sha256:
            raise Damaged(f"{entry.cubin} is not the cubin that {_MANIFEST} speaks of")
    return manifest


def _parse_sums(content: bytes) -> dict[str, str]:
    sums: dict[str, str] = {}
    for line in content.decode("ascii", errors="replace").splitlines():
        digest, gap, name = line.partition("  ")
        if not gap or "/" in name or len(digest) != 64:
            raise Damaged(f"{SUMS} does not read")
        sums[name] = digest
    if _MANIFEST not in sums:
        raise Damaged(f"{SUMS} does not list {_MANIFEST}")
    return sums


def _read(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{file.name} cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def _exists(folder: Path) -> bool:
    return os.path.lexists(folder)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
