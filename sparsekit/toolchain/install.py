"""Installing compilers beside the installed ones: each a folder of its own, whole or absent.

uv does it when it is on PATH (its cache makes a repetition instant), else pip. Nothing of what is
installed is ever imported into this process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsekit.errors import ToolchainError, UsageError
from sparsekit.model.kernel import Lang
from sparsekit.model.toolchain import COMPILER_NAMES, Toolchain
from sparsekit.toolchain.find import PACKAGES, Toolchains, toolchain_at
from sparsekit.toolchain.packages import find_package

_FORM = re.compile(r"(?P<name>[A-Za-z-]+)(?:==|-)(?P<version>[0-9][\w.+!]*)")
_LIMIT_S = 1800.0
_NETWORK_RETRIES, _NETWORK_TIMEOUT_S = "1", "20"
_STALE_S = 24 * 3600.0  # a folder of an attempt that was killed is removed after this
_ATTEMPT = ".attempt-"
_NO_NETWORK = re.compile(
    r"NewConnectionError|name resolution|dns error|Network is unreachable|Connection refused"
    r"|ProxyError|ConnectTimeout|Failed to (?:fetch|connect)|network (?:was|is) disabled"
    r"|client error \(Connect\)",
    re.IGNORECASE,
)
_NO_VERSION = re.compile(r"No matching distribution|there is no version of|No solution found")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")


@dataclass(frozen=True)
class Release:
    """One release of a compiler, `triton==3.6.0` or `nvrtc==13.5.37`."""

    lang: Lang
    version: str

    @property
    def id(self) -> str:
        return f"{COMPILER_NAMES[self.lang]}-{self.version}"

    @property
    def package(self) -> str:
        return f"{PACKAGES[self.lang]}=={self.version}"


def parse_release(text: str) -> Release:
    """The release that `triton==3.6.0`, or an id, means. Raises UsageError with the form."""
    match = _FORM.fullmatch(text.strip())
    named = (*COMPILER_NAMES.items(), *PACKAGES.items())
    names: dict[str, Lang] = {name: lang for lang, name in named}
    if not match or match["name"] not in names:
        raise UsageError(
            f"{text!r} is no toolchain: expected one release, as in triton==3.6.0 or nvrtc==13.5.37"
        )
    return Release(names[match["name"]], match["version"])


def add(
    release: Release, toolchains: Toolchains, note: Callable[[str], None] = lambda text: None
) -> tuple[Toolchain, bool]:
    """Install the release; the second value is False when it was there already. note(text): told
    before what takes a while.

    Raises ToolchainError when it cannot be had or written; nothing is left behind then.
    """
    found = next((t for t in toolchains.all(release.lang) if t.id == release.id), None)
    if found is not None:
        return found, False
    note(f"installing {release.package} into {toolchains.folder}")
    with _attempt(toolchains.folder) as stage:
        _install(release, stage, toolchains.settings.path)
        _check(release, stage)
        final = toolchains.folder / release.id
        try:
            if not _is_there(release, final):
                stage.rename(final)
        except OSError as error:
            if not _is_there(release, final):
                raise ToolchainError(f"cannot make {final}: {error.strerror}") from error
    return toolchains.named(release.lang, release.id), True


def remove(release: Release, toolchains: Toolchains) -> Path:
    """Remove the release's folder at one stroke. Raises ToolchainError when it is not ours to."""
    folder = toolchains.folder / release.id
    if not folder.is_dir():
        beside = [t for t in toolchains.all(release.lang) if t.id == release.id]
        if beside:
            raise ToolchainError(
                f"{release.id} is the one installed beside sparsekit, in {beside[0].site}; "
                f"remove it with pip uninstall {PACKAGES[release.lang]}"
            )
        raise ToolchainError(f"there is no {folder}; sparsekit toolchain list shows what there is")
    try:
        with _attempt(toolchains.folder) as stage:
            folder.rename(stage / folder.name)
    except OSError as error:
        raise ToolchainError(f"cannot remove {folder}: {error.strerror}") from error
    return folder


@contextmanager
def _attempt(folder: Path) -> Iterator[Path]:
    """A new folder beside the toolchains; what is left of it afterwards is removed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(f"{_ATTEMPT}*"):
            if time.time() - stale.stat().st_mtime > _STALE_S:
                shutil.rmtree(stale, ignore_errors=True)
        stage = Path(tempfile.mkdtemp(prefix=_ATTEMPT, dir=folder))
    except OSError as error:
        raise ToolchainError(
            f"cannot write to {folder}: {error.strerror}; set SPARSEKIT_DATA_DIR to a folder of "
            "your own"
        ) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _is_there(release: Release, final: Path) -> bool:
    """Whether another process made it meanwhile. What bears its name and is no such toolchain, or
    half of one, is moved out of the way."""
    if not final.exists():
        return False
    found = toolchain_at(release.lang, [str(final)])
    if found is not None and found.id == release.id:
        return True
    final.rename(final.with_name(f"{_ATTEMPT}{final.name}-{time.time_ns()}"))
    return False


def _install(release: Release, stage: Path, path: str) -> None:
    uv = shutil.which("uv", path=path)
    common = ["--no-deps", "--only-binary", ":all:", "--target", str(stage), release.package]
    if uv:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, *common]
    else:
        network = ["--retries", _NETWORK_RETRIES, "--timeout", _NETWORK_TIMEOUT_S]
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
        command = [sys.executable, "-m", "pip", "install", *quiet, *network, *common]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"cannot install {release.package}: {error}") from error
    if done.returncode != 0:
        raise ToolchainError(_reason(release, done.stdout + done.stderr))


def _reason(release: Release, said: str) -> str:
    """What the installer's many lines come down to."""
    wanted = f"cannot install {release.package}: "
    if _NO_NETWORK.search(said):
        return wanted + (
            "the package index cannot be reached; connect, or point PIP_INDEX_URL or UV_INDEX_URL "
            "to a mirror"
        )
    if _NO_VERSION.search(said):
        versions = _VERSIONS.search(said)
        known = f"; it has {versions[1]}" if versions else ""
        python = ".".join(map(str, sys.version_info[:2]))
        return wanted + f"the package index has no such release for Python {python}{known}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return wanted + (lines[-1] if lines else "the installer said nothing")


def _check(release: Release, stage: Path) -> None:
    """Raise ToolchainError unless the stage holds the release, every file as it was published."""
    found = toolchain_at(release.lang, [str(stage)])
    if found is None or found.id != release.id:
        what = f"{found.id}" if found else "no such package"
        raise ToolchainError(f"installing {release.package} brought {what}")
    package = find_package(PACKAGES[release.lang], [str(stage)])
    if package is not None and (bad := package.damaged()):
        raise ToolchainError(
            f"{release.package} arrived damaged: {bad[0]} is not what its metadata says; "
            "clear the installer's cache and add it again"
        )
