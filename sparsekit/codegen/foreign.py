"""Foreign code: the cubins and PTX in files and folders that sparsekit did not build.

A cubin, a PTX text, a fat binary; a shared object, object file or archive that holds fat binaries
or whole cubins; a folder of any of these, such as an installed wheel's or a Triton cache's, whose
cubins have their PTX and their metadata beside them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsekit.aot.elf import EM_CUDA
from sparsekit.codegen.fatbin import MAGIC, Unreadable, find_fatbins, read_fatbin
from sparsekit.files import parse_json

SUFFIXES = frozenset({".cubin", ".ptx", ".fatbin", ".so", ".o", ".a", ".obj"})
_ELF = b"\x7fELF"
_ARCHIVE = b"!<arch>\n"
_MACHINES = {3: "x86", 62: "x86-64", 183: "AArch64", 243: "RISC-V", 224: "AMD GPU"}
_ELF_HEADER_BYTES = 64


@dataclass(frozen=True)
class Piece:
    """One image. kind: "cubin" or "ptx". file: what holds it. sm: the number of its arch, where
    the file says so. ptx: the text that it was assembled from, where that lies beside it.
    metadata: what Triton wrote beside it."""

    kind: str
    data: bytes
    file: Path
    sm: int | None = None
    ptx: bytes | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Problem:
    """A file that could not be read, and why."""

    file: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


def is_foreign(text: str) -> bool:
    """Whether a reference means a file, or a folder that is no kernel's."""
    path = Path(text).expanduser()
    if path.is_dir():
        return "/" in text and not (path / "spec.py").is_file()
    return _suffix(path) in SUFFIXES or ("/" in text and path.is_file())


def read_foreign(path: Path) -> Iterator[Piece | Problem]:
    """Every image in the file, or below the folder, in the order of the files' names."""
    if not path.is_dir():
        yield from _file(path)
        return
    files = [f for f in sorted(path.rglob("*")) if f.is_file() and _suffix(f) in SUFFIXES]
    cubins = {f.with_suffix("") for f in files if f.suffix == ".cubin"}
    for file in files:
        if file.suffix == ".ptx" and file.with_suffix("") in cubins:
            continue  # it comes with its cubin
        for found in _file(file):
            # A folder of libraries is full of those without code for a GPU.
            if not (isinstance(found, Problem) and found.reason.startswith(_NO_CODE)):
                yield found


def _suffix(file: Path) -> str:
    """The suffix, `.so` for `libx.so.13` too."""
    return ".so" if ".so." in file.name else file.suffix


_NO_CODE = "no code for an NVIDIA GPU"


def _file(file: Path) -> Iterator[Piece | Problem]:
    try:
        data = file.read_bytes()
        yield from _images(file, data)
    except FileNotFoundError:
        yield Problem(file, "there is no such file")
    except OSError as error:
        yield Problem(file, f"cannot be read: {error.strerror}")
    except Unreadable as error:
        yield Problem(file, str(error))


def _images(file: Path, data: bytes) -> Iterator[Piece | Problem]:
    if not data.strip(b"\0"):
        raise Unreadable("empty")
    if data.startswith(_ELF) and _machine(data) == EM_CUDA:
        yield _beside(file, data)
    elif data.startswith(MAGIC):
        for image in read_fatbin(data):
            yield Piece(image.kind, image.data, file, image.sm)
    elif data.startswith((_ELF, _ARCHIVE)):
        yield from _embedded(file, data)
    elif b".version" in data and b".target" in data:
        yield Piece("ptx", data, file)
    else:
        raise Unreadable(
            f"no cubin, PTX, fat binary or object file: it starts with {data[:8].hex(' ')}"
        )


def _is_cuda(header: bytes) -> bool:
    return _machine(header) == EM_CUDA


def _machine(data: bytes) -> int:
    """The machine that an ELF header names; one that is cut off passes for CUDA's, to be refused
    with what is wrong with it."""
    return int.from_bytes(data[18:20], "little") if len(data) >= _ELF_HEADER_BYTES else EM_CUDA


def _beside(file: Path, data: bytes) -> Piece:
    """A cubin with the PTX and the metadata that a Triton cache keeps beside it."""
    ptx, meta = file.with_suffix(".ptx"), file.with_suffix(".json")
    metadata: Mapping[str, Any] | None = None
    if meta.is_file():
        try:
            found = parse_json(meta.read_bytes())
            metadata = found if isinstance(found, dict) else None
        except ValueError:
            metadata = None
    return Piece("cubin", data, file, None, ptx.read_bytes() if ptx.is_file() else None, metadata)


def _embedded(file: Path, data: bytes) -> Iterator[Piece | Problem]:
    """The fat binaries in an object file, and cubins that lie in it whole."""
    count = 0
    position = 0
    for start, length in find_fatbins(data):
        if start < position:
            continue  # inside of the one before
        for piece in _cubins_between(file, data, position, start):
            count += 1
            yield piece
        try:
            for image in read_fatbin(data[start : start + length]):
                count += 1
                yield Piece(image.kind, image.data, file, image.sm)
        except Unreadable as error:
            count += 1
            yield Problem(file, f"the fat binary at {start:#x} is {error}")
        position = start + length
    for piece in _cubins_between(file, data, position, len(data)):
        count += 1
        yield piece
    if not count:
        machine = _MACHINES.get(_machine(data), "another machine")
        what = "an archive" if data.startswith(_ARCHIVE) else f"an object file for {machine}"
        raise Unreadable(f"{_NO_CODE} in it: {what}")


def _cubins_between(file: Path, data: bytes, start: int, stop: int) -> Iterator[Piece]:
    position = data.find(_ELF, start, stop)
    while position >= 0:
        header = data[position : position + _ELF_HEADER_BYTES]
        if header[4:5] == b"\2" and len(header) == _ELF_HEADER_BYTES and _is_cuda(header):
            yield Piece("cubin", data[position : position + _elf_bytes(data, position)], file)
        position = data.find(_ELF, position + 4, stop)


def _elf_bytes(data: bytes, start: int) -> int:
    """The size of an ELF file: its tables of headers come last."""
    program, sections = struct.unpack_from("<QQ", data, start + 32)
    program_bytes, programs, section_bytes, count = struct.unpack_from("<HHHH", data, start + 54)
    return int(max(program + program_bytes * programs, sections + section_bytes * count))
