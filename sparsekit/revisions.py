"""A kernel folder as it was at a git revision, laid out beside today's. Source: git-archive(1)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from sparsekit.errors import UsageError

REVISIONS = "revisions"  # below the store's folder
_LIMIT_S = 60.0


def folder_at(folder: Path, revision: str, into: Path) -> tuple[Path, str]:
    """The kernel folder at the revision of its own repository, and the commit.

    It is laid out in `into`/COMMIT with the headers beside it, once. Raises UsageError when there
    is no such repository, revision or folder in it.
    """
    repository = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip())
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    name = commit.decode().strip()
    wanted = folder.resolve().relative_to(repository.resolve())
    target = into / name
    if not (target / wanted / "spec.py").is_file():
        _lay_out(repository, name, wanted, target)
    if not (target / wanted / "spec.py").is_file():
        raise UsageError(f"revision {revision} ({name[:12]}) of {repository} has no {wanted}")
    return target / wanted, name


def _lay_out(repository: Path, commit: str, wanted: Path, target: Path) -> None:
    """Extract the folder and its headers aside, then put every file in its place."""
    listed = _git(repository, "ls-tree", "--name-only", commit, f"{wanted.parent}/").decode()
    headers = str(wanted.parent / "include")
    parts = [p for p in (str(wanted), headers) if p in listed.splitlines()]
    if str(wanted) not in parts:
        return
    archive = _git(repository, "archive", "--format=tar", commit, "--", *parts)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".laying-out-") as aside:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(aside, filter="data")
        for part in parts:
            place = target / part
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                _move(Path(aside) / part, place)


def _move(source: Path, place: Path) -> None:
    try:
        os.rename(source, place)
    except OSError:
        if not place.exists():  # another process was quicker otherwise
            shutil.move(source, place)


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise UsageError("references with @git: need git, and it is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{' '.join(command)} did not answer in {_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise UsageError(f"{' '.join(command)}: {told[-1]}")
    return done.stdout
