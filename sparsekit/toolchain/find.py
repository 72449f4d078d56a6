"""Finding toolchains: the installed one of each language, and those beside it by id."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparsekit.digest import KnownDigests, file_sha256
from sparsekit.errors import ToolchainError
from sparsekit.model.kernel import Lang
from sparsekit.model.toolchain import COMPILER_NAMES, Toolchain, version_tuple
from sparsekit.settings import Settings
from sparsekit.toolchain.imported import imported
from sparsekit.toolchain.packages import TRITON_BIN, Package, find_package

_CU13 = Path("nvidia/cu13")
# What decides the bytes: the library with its builtins, and the headers; for Triton its native
# part, the assemblers, the libraries of device code, and the Python that drives them.
_NVRTC_FILES = re.compile(r"nvidia/cu13/(lib/libnvrtc(-builtins)?\.so\.[\d.]+|include/.*)")
_TRITON_FILES = re.compile(
    r"triton/(_C/libtriton\.so|backends/nvidia/bin/ptxas(-blackwell)?|backends/nvidia/lib/.*\.bc"
    r"|((compiler|language|runtime|_internal|backends/nvidia)/.*|backends/\w+|\w+)\.py)"
)
PACKAGES: dict[Lang, str] = {"cuda": "nvidia-cuda-nvrtc", "triton": "triton"}
_DIGESTS = "compilers.json"
_PTXAS_ROLES = {"TRITON_PTXAS_PATH": "ptxas", "TRITON_PTXAS_BLACKWELL_PATH": "ptxas-blackwell"}


@dataclass(frozen=True)
class Toolchains:
    """Where toolchains are looked for. Ids name folders below `<data>/toolchains`, each a site."""

    settings: Settings

    @property
    def folder(self) -> Path:
        return self.settings.data_dir / "toolchains"

    def default(self, lang: Lang) -> Toolchain:
        """The toolchain installed beside sparsekit. Raises ToolchainError with what to install."""
        found = _at(lang, sys.path, self.settings.ptxas)
        if found is None:
            raise ToolchainError(
                f"no {COMPILER_NAMES[lang]} found: package {PACKAGES[lang]} is not installed for "
                f"{sys.executable}; pip install -c constraints.txt {PACKAGES[lang]}"
            )
        return self._as_it_is(found)

    def named(self, lang: Lang, identifier: str) -> Toolchain:
        """The toolchain of that id. Raises ToolchainError with the ids at hand."""
        at_hand = {t.id: t for t in self.all(lang)}
        if identifier not in at_hand:
            known = ", ".join(at_hand) or "none"
            raise ToolchainError(
                f"no {COMPILER_NAMES[lang]} toolchain {identifier!r}; at hand are {known}. To have "
                f"it too: sparsekit toolchain add {identifier.replace('-', '==', 1)}"
            )
        return self._as_it_is(at_hand[identifier])

    def _as_it_is(self, toolchain: Toolchain) -> Toolchain:
        """The toolchain, its files held against what was installed. Files that differ are part of
        the fingerprint: nothing that another compiler made is taken for its work."""
        known = KnownDigests(self.settings.cache_dir / _DIGESTS)
        found = {file: (known.of(file), recorded) for file, recorded in toolchain.recorded}
        known.keep()
        altered = {f: measured for f, (measured, recorded) in found.items() if measured != recorded}
        if not altered:
            return toolchain
        digest = hashlib.sha256(toolchain.fingerprint.encode())
        for file, measured in altered.items():
            digest.update(f"{file.name} {measured}\n".encode())
        return replace(toolchain, fingerprint=digest.hexdigest(), altered=tuple(altered))

    def newest(self, lang: Lang) -> Toolchain | None:
        """The newest release at hand."""
        return max(self.all(lang), key=lambda t: version_tuple(t.version), default=None)

    def all(self, lang: Lang) -> Iterable[Toolchain]:
        """The installed toolchain, if there is one, those beside it, then those that bundles told
        of; of two with one id the first."""
        found: dict[str, Toolchain] = {}
        for toolchain in self._candidates(lang):
            found.setdefault(toolchain.id, toolchain)
        return found.values()

    def _candidates(self, lang: Lang) -> Iterable[Toolchain]:
        installed = _at(lang, sys.path, self.settings.ptxas)
        if installed is not None:
            yield installed
        for site in sorted(self.folder.glob(f"{COMPILER_NAMES[lang]}-*")):
            found = toolchain_at(lang, [str(site)])
            if found is not None and found.id == site.name:
                yield found
        yield from imported(self.settings.cache_dir, lang)


def toolchain_at(lang: Lang, path: list[str]) -> Toolchain | None:
    """The toolchain whose packages lie in the folders of `path`, with its own assemblers."""
    return _at(lang, path, {})


def _at(lang: Lang, path: list[str], ptxas: Mapping[str, str]) -> Toolchain | None:
    return _nvrtc(path) if lang == "cuda" else _triton(path, ptxas)


def _nvrtc(path: list[str]) -> Toolchain | None:
    """NVRTC and the headers of the runtime; a side-by-side NVRTC uses the installed headers."""
    nvrtc = find_package("nvidia-cuda-nvrtc", path)
    headers = find_package("nvidia-cuda-runtime", path) or find_package(
        "nvidia-cuda-runtime", sys.path
    )
    if nvrtc is None:
        return None
    library = nvrtc.file(str(_CU13 / "lib/libnvrtc.so.13"))
    if not library.is_file():
        raise ToolchainError(f"nvidia-cuda-nvrtc {nvrtc.version} is installed without {library}")
    tools = {"library": library}
    if headers is not None:
        tools["include"] = headers.file(str(_CU13 / "include"))
    recorded = [f for p in (nvrtc, headers) if p is not None for f in p.recorded(_NVRTC_FILES)]
    return Toolchain(
        "cuda", nvrtc.version, nvrtc.site, _joined(nvrtc, headers), tools, recorded=tuple(recorded)
    )


def _triton(path: list[str], ptxas: Mapping[str, str]) -> Toolchain | None:
    package = find_package("triton", path)
    if package is None:
        return None
    tools = {role: package.file(f"{TRITON_BIN}/{role}") for role in _PTXAS_ROLES.values()}
    found = Toolchain(
        "triton", package.version, package.site, package.fingerprint, tools,
        recorded=package.recorded(_TRITON_FILES),
    )  # fmt: skip
    return _with_ptxas(found, ptxas) if ptxas else found


def _with_ptxas(toolchain: Toolchain, chosen: Mapping[str, str]) -> Toolchain:
    """The toolchain with assemblers that the user chose; they are part of what it is."""
    digest, tools = hashlib.sha256(toolchain.fingerprint.encode()), dict(toolchain.tools)
    for variable, name in sorted(chosen.items()):
        file = Path(name)
        if not file.is_file():
            raise ToolchainError(
                f"{variable}={name}: there is no such file; unset it or correct it"
            )
        tools[_PTXAS_ROLES[variable]] = file
        digest.update(f"{variable} {file_sha256(file)}\n".encode())
    return replace(toolchain, fingerprint=digest.hexdigest(), tools=tools, overrides=dict(chosen))


def _joined(*packages: Package | None) -> str:
    digest = hashlib.sha256()
    for package in packages:
        digest.update(f"{package.fingerprint if package else 'absent'}\n".encode())
    return digest.hexdigest()
