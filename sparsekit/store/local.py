"""The artifact store: a folder per key, whole or absent, checked whenever it is read.

    <root>/v1/ab/ab12.../  manifest.json  SHA256SUMS  *.cubin  *.ptx      one artifact
    <root>/staging/        folders being built, and the locks of their keys
    <root>/notes/          what was worked out from artifacts, see `store.notes`

Nothing in it is ever imported or unpickled. `sha256sum -c SHA256SUMS` checks an artifact by hand.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sparsekit.digest import sha256_of
from sparsekit.errors import StoreError
from sparsekit.files import parse_json
from sparsekit.model.artifact import Artifact, Manifest, canonical_json
from sparsekit.store.layout import ENTRIES, FOLDER_MODE, STAGING, distrust
from sparsekit.store.staging import aside, discard, key_lock, make_folder, never, staged_folder

SUMS, _MANIFEST = "SHA256SUMS", "manifest.json"


class Damaged(Exception):
    """An entry that does not hold what it says; the message says what is wrong."""


class Store:
    """Artifacts by key. notify(text): told of damage that was found and repaired."""

    def __init__(self, root: Path, notify: Callable[[str], None]) -> None:
        self.root = root
        self._notify = notify
        self._told: set[str] = set()  # damage that cannot be removed is said once
        self._builder: dict[str, int] = {}  # the thread that builds a key here

    def folder(self, key: str) -> Path:
        return self.root / ENTRIES / key[:2] / key

    def has(self, key: str) -> bool:
        """Whether there is an entry of that key; its content is not looked at."""
        return (self.folder(key) / SUMS).is_file()

    def get(self, key: str) -> Artifact | None:
        """The artifact, its digests checked; None when absent. A damaged entry is removed."""
        found = look(self.folder(key))
        return self._looked_again(key, found) if isinstance(found, str) else found

    def _looked_again(self, key: str, problem: str) -> Artifact | None:
        """The second look at a damaged entry, under its lock: was it being replaced just then?"""
        found: Artifact | str | None = problem
        try:
            with self._locked(key) as mine:
                if not mine:
                    return None  # somebody builds it; so will who asks, when that is done
                found = look(self.folder(key))
                if isinstance(found, str):
                    self.remove(key)
        except OSError:  # read-only
            pass
        if not isinstance(found, str):
            return found
        text = f"the stored entry {self.folder(key)} is damaged and will be built again: {found}"
        if text not in self._told:
            self._notify(text)
        if _exists(self.folder(key)):
            self._told.add(text)
        return None

    @contextmanager
    def _locked(self, key: str) -> Iterator[bool]:
        """The key's lock without waiting; False when another has it."""
        if self._builder.get(key) == threading.get_ident():
            yield True
            return
        with key_lock(self._staging(), key, wait_s=0.0) as held:
            yield held is not False

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
    def building(self, key: str, *, stop: Callable[[], bool] = never) -> Iterator[Path]:
        """The key's lock and a new folder to build in.

        Raises StoreError when the disk refuses, and when stop() says so while it waits.
        """
        try:
            staging = self._staging()
            with key_lock(staging, key, stop=stop), staged_folder(staging, key) as stage:
                self._builder[key] = threading.get_ident()
                try:
                    yield stage
                finally:
                    self._builder.pop(key, None)
        except OSError as error:
            raise StoreError(f"cannot write to {self.root}: {error}") from error

    def publish(self, stage: Path, manifest: Manifest) -> Artifact:
        """Make what was staged the entry of its key. The winner of a race is used by all."""
        data = json.dumps(manifest.to_json(), indent=1, sort_keys=True) + "\n"
        (stage / _MANIFEST).write_text(data)
        names = sorted(p.name for p in stage.iterdir())
        sums = "".join(f"{sha256_of((stage / n).read_bytes())}  {n}\n" for n in names)
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
        if distrust(final.parent.lstat()):
            final.parent.chmod(FOLDER_MODE)
        try:
            os.rename(stage, final)
        except OSError as error:
            if not _exists(final):
                raise StoreError(f"cannot publish {final}: {error}") from error
            return self.get(key) or own
        _sync(final.parent)
        return Artifact(final, own.manifest, own.files)


def look(folder: Path) -> Artifact | str | None:
    """The artifact of the folder, what is wrong with it, or None when it is absent."""
    try:
        return read_artifact(folder)
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing" if _exists(folder) else None
    except (Damaged, OSError) as error:
        return str(error) if _exists(folder) else None


def read_artifact(folder: Path, key: str | None = None) -> Artifact:
    """Read and check an artifact's folder; key: its name when the folder bears another.

    Raises FileNotFoundError for what is absent and Damaged for what is not what it should be.
    """
    try:
        # One open folder: an entry that takes its place meanwhile is not mixed with it.
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        link = folder.is_symlink()
        raise Damaged("it is a symbolic link" if link else error.strerror or "") from error
    try:
        for found in (os.fstat(opened), folder.parent.lstat()):
            if problem := distrust(found):
                raise Damaged(f"its folder {problem}")
        sums = _parse_sums(_read(SUMS, opened))
        files = {name: _read(name, opened) for name in sums}
    finally:
        os.close(opened)
    for name, content in files.items():
        if sha256_of(content) != sums[name]:
            raise Damaged(f"{name} does not match its sha256")
    return Artifact(folder, _manifest(files, key or folder.name), files)


def _manifest(files: Mapping[str, bytes], key: str) -> Manifest:
    try:
        manifest = Manifest.from_json(parse_json(files[_MANIFEST]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{_MANIFEST} does not read: {error!r}") from error
    if manifest.key != key or sha256_of(canonical_json(manifest.identity)) != key:
        raise Damaged("it holds the artifact of another key")
    for entry in manifest.entries:
        if sha256_of(files.get(entry.cubin, b"")) != entry.cubin_sha256:
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


def _read(name: str, folder: int) -> bytes:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{name} cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()


def _exists(folder: Path) -> bool:
    return os.path.lexists(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
