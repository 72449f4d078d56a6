"""Facts in a cubin: a reader of the 64-bit CUDA ELF that needs no driver and no tool.

Sources: the ELF-64 object format; NVIDIA's own sections as `cuobjdump -elf` names them, compared
with `cuobjdump -res-usage` over all targets from sm_80 to sm_121, CUDA 12.8 to 13.5.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sparsekit.digest import sha256_of
from sparsekit.errors import CompileError

EM_CUDA = 190
_SHT_NOBITS = 8
_STT_OBJECT, _STT_FUNC = 1, 2
_STO_CUDA_ENTRY = 0x10
_FIRST_NEW_ABI = 8  # from CUDA 13: the SM number moved within e_flags, and notes came
_FORMAT_SIZED = 4  # .nv.info attribute with a payload; the others hold their value in 16 bits
_REGCOUNT, _FRAME_SIZE = 0x2F, 0x11
_NUM_BARRIERS = 0x4C
_MAX_THREADS, _REQNTID, _KPARAM_INFO, _CLUSTER_DIM = 0x05, 0x10, 0x17, 0x3D
_RESERVED_SHARED_BYTES = 1024  # the system's own part of static shared memory from sm_90 on
LAUNCH_FACTS = ("dynamic_smem_bytes",)  # what launch_facts.cuh exports, as `ENTRY_NAME`
_LAUNCH_FACT_BYTES = 4


@dataclass(frozen=True)
class Section:
    name: str
    type: int
    address: int
    size: int
    link: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    name: str
    type: int
    other: int
    section: int
    value: int
    size: int


@dataclass(frozen=True)
class CubinEntry:
    """One entry of a cubin. params: (offset, size) in order; threads: the launch bound, barriers:
    named ones that it uses; None where the cubin does not tell."""

    name: str
    registers: int
    local_bytes: int
    static_shared_bytes: int
    code_bytes: int
    text_sha256: str
    params: tuple[tuple[int, int], ...]
    threads: int | None
    cluster: tuple[int, int, int] | None
    launch_facts: dict[str, int]
    barriers: int | None = None


@dataclass(frozen=True)
class Cubin:
    """arch: the exact target where the compiler wrote it down (CUDA 13), else without suffix.
    producer: the release of the ptxas that it was written by, where it says so."""

    arch: str
    arch_is_exact: bool
    entries: dict[str, CubinEntry]
    producer: str = ""


def read_cubin(image: bytes) -> Cubin:
    """The facts of a cubin. Raises CompileError when the bytes are no CUDA ELF, or are cut off."""
    try:
        return _read(image)
    except (struct.error, IndexError, ValueError, KeyError, UnicodeDecodeError) as error:
        raise CompileError(f"not a readable cubin ({len(image)} bytes): {error}") from error


def _read(image: bytes) -> Cubin:
    if (
        image[:4] != b"\x7fELF"
        or image[4] != 2
        or struct.unpack_from("<H", image, 18)[0] != EM_CUDA
    ):
        raise ValueError("no 64-bit CUDA ELF header")
    sections = _sections(image)
    by_name = {s.name: s for s in sections}
    symbols = _symbols(sections, by_name[".symtab"])
    arch, exact = _arch(image, by_name)
    per_symbol: dict[tuple[int, int], int] = {}
    info = by_name.get(".nv.info")  # a cubin without functions has none
    for attribute, payload in _attributes(info.data if info else b""):
        if attribute in (_REGCOUNT, _FRAME_SIZE):
            index, value = struct.unpack("<II", payload)
            per_symbol[attribute, index] = value
    entries = {
        s.name: _entry(s, i, per_symbol, by_name, sections, symbols)
        for i, s in enumerate(symbols)
        if s.type == _STT_FUNC and s.other & _STO_CUDA_ENTRY
    }
    return Cubin(arch, exact, entries, _producer(by_name))


def _sections(image: bytes) -> list[Section]:
    (table,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", image, 58)
    if table + count * entry_bytes > len(image):
        raise ValueError(f"truncated, it should have {table + count * entry_bytes} bytes at least")
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry_bytes) for i in range(count)
    ]
    names = headers[names_index][4]
    found = []
    for name, kind, _flags, address, offset, size, link, _info, _align, _each in headers:
        if kind != _SHT_NOBITS and offset + size > len(image):
            raise ValueError("a section ends behind the end of the file")
        data = b"" if kind == _SHT_NOBITS else image[offset : offset + size]
        found.append(Section(_string(image, names + name), kind, address, size, link, data))
    return found


def _string(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _symbols(sections: list[Section], table: Section) -> list[Symbol]:
    strings = sections[table.link].data
    found = []
    for name, info, other, section, value, size in struct.iter_unpack("<IBBHQQ", table.data):
        found.append(Symbol(_string(strings, name), info & 15, other, section, value, size))
    return found


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(data):
        kind, attribute, value = struct.unpack_from("<BBH", data, position)
        position += 4
        if kind == _FORMAT_SIZED:
            yield attribute, data[position : position + value]
            position += value
        else:
            yield attribute, struct.pack("<H", value)


def _arch(image: bytes, by_name: dict[str, Section]) -> tuple[str, bool]:
    note = by_name.get(".note.nv.tkinfo")
    told = re.search(rb"-arch\s+(sm_\w+)", note.data) if note else None
    if told:
        return told[1].decode(), True
    (flags,) = struct.unpack_from("<I", image, 48)
    number = (flags >> 8) & 0xFF if image[8] >= _FIRST_NEW_ABI else flags & 0xFF
    return f"sm_{number}", False


def _producer(by_name: dict[str, Section]) -> str:
    note = by_name.get(".note.nv.tkinfo")
    release = re.search(rb"\bV(\d+\.\d+\.\d+)", note.data) if note else None
    return release[1].decode() if release else ""


def _entry(
    symbol: Symbol,
    index: int,
    per_symbol: dict[tuple[int, int], int],
    by_name: dict[str, Section],
    sections: list[Section],
    symbols: list[Symbol],
) -> CubinEntry:
    name = symbol.name
    params: list[tuple[int, int, int]] = []
    bound: int | None = None
    barriers: int | None = None
    cluster: tuple[int, int, int] | None = None
    for attribute, payload in _attributes(by_name[f".nv.info.{name}"].data):
        if attribute == _KPARAM_INFO:
            _, ordinal, offset, packed = struct.unpack("<IHHI", payload)
            params.append((ordinal, offset, packed >> 18))
        elif attribute in (_MAX_THREADS, _REQNTID):
            x, y, z = struct.unpack("<III", payload)
            bound = x * y * z
        elif attribute == _NUM_BARRIERS:
            barriers = payload[0]
        elif attribute == _CLUSTER_DIM and len(payload) == 12:
            cluster = struct.unpack("<III", payload)
    shared = by_name.get(f".nv.shared.{name}")
    static = shared.size if shared else 0
    if static >= _RESERVED_SHARED_BYTES and ".nv.shared.reserved.0" in by_name:
        static -= _RESERVED_SHARED_BYTES
    text = by_name[f".text.{name}"].data
    return CubinEntry(
        name=name,
        registers=per_symbol[_REGCOUNT, index],
        local_bytes=per_symbol.get((_FRAME_SIZE, index), 0),
        static_shared_bytes=static,
        code_bytes=len(text),
        text_sha256=sha256_of(text),
        params=tuple((offset, size) for _, offset, size in sorted(params)),
        threads=bound,
        cluster=cluster,
        launch_facts=_launch_facts(name, sections, symbols),
        barriers=barriers,
    )


def _launch_facts(entry: str, sections: list[Section], symbols: list[Symbol]) -> dict[str, int]:
    """Integers that the kernel exports for the host as `ENTRY_NAME`, 4 bytes.

    One that is 0 may lie in a section without data.
    """
    names = {f"{entry}_{fact}": fact for fact in LAUNCH_FACTS}
    facts: dict[str, int] = {}
    for symbol in symbols:
        fact = names.get(symbol.name)
        if fact and symbol.type == _STT_OBJECT and symbol.size == _LAUNCH_FACT_BYTES:
            section = sections[symbol.section]
            has_data = section.type != _SHT_NOBITS
            facts[fact] = struct.unpack_from("<I", section.data, symbol.value)[0] if has_data else 0
    return facts
