"""Fat binaries: the images in one, for each arch, decompressed.

The format has no public specification. It was read off what `fatbinary` of CUDA 13.0 writes in each
of its compression modes, and agrees with `cuobjdump -lelf` on libraries of CUDA 12 and 13:

    header   u32 magic  u16 version  u16 header bytes  u64 bytes behind the header
    entry    0 u16 kind   4 u32 header bytes   8 u64 payload bytes, padded
            16 u32 payload bytes when compressed   28 u32 arch   40 u64 flags
            56 u64 bytes once decompressed
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<IHHQ")
_ENTRY_BYTES = 64
_PTX, _ELF = 1, 2
_LZ4, _ZSTD = 0x2000, 0x8000
_VERSION = 1


class Unreadable(Exception):
    """Bytes that are not what they should be; the message says what is wrong."""


@dataclass(frozen=True)
class Image:
    """kind: "cubin" or "ptx". sm: the number of the arch, 90 for sm_90a too."""

    kind: str
    sm: int
    data: bytes


def find_fatbins(data: bytes) -> Iterator[tuple[int, int]]:
    """Start and length of every fat binary in a file, whatever else is in it."""
    for match in re.finditer(re.escape(MAGIC), data):
        start = match.start()
        if start + _HEADER.size > len(data):
            continue
        _, version, header_bytes, body_bytes = _HEADER.unpack_from(data, start)
        if version == _VERSION and header_bytes == _HEADER.size:
            yield start, header_bytes + body_bytes


def read_fatbin(data: bytes) -> Iterator[Image]:
    """The images. Raises Unreadable for what is cut off or was compressed in an unknown way."""
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise Unreadable("no fat binary: it does not start with its magic number")
    _, _, position, body_bytes = _HEADER.unpack_from(data)
    end = position + body_bytes
    if end > len(data):
        raise Unreadable(f"truncated: it says it has {end} bytes and has {len(data)}")
    while position + _ENTRY_BYTES <= end:
        kind, header_bytes, padded_bytes = struct.unpack_from("<H2xIQ", data, position)
        (compressed_bytes,) = struct.unpack_from("<I", data, position + 16)
        (sm,) = struct.unpack_from("<I", data, position + 28)
        (flags,) = struct.unpack_from("<Q", data, position + 40)
        (plain_bytes,) = struct.unpack_from("<Q", data, position + 56)
        start = position + header_bytes
        position = start + padded_bytes
        if header_bytes < _ENTRY_BYTES or position > end:
            raise Unreadable("damaged: an image ends behind the end of the fat binary")
        if kind not in (_PTX, _ELF):
            continue
        payload = data[start : start + (compressed_bytes or padded_bytes)]
        plain = _decompressed(payload, flags, plain_bytes)
        if kind == _PTX:
            yield Image("ptx", sm, plain.rstrip(b"\0"))
        else:
            yield Image("cubin", sm, plain)


def _decompressed(payload: bytes, flags: int, plain_bytes: int) -> bytes:
    try:
        if flags & _ZSTD:
            import zstandard

            return zstandard.ZstdDecompressor().decompress(payload, max_output_size=plain_bytes)
        if flags & _LZ4:
            import lz4.block

            return bytes(lz4.block.decompress(payload, uncompressed_size=plain_bytes))
    except ModuleNotFoundError as error:
        raise Unreadable(f"compressed, and package {error.name} is not installed") from error
    except Exception as error:  # each library has a kind of its own
        raise Unreadable(f"damaged: an image does not decompress ({error})") from error
    return payload
