"""Moving bytes for bulk copies: between pieces of global memory and chunks of shared memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator.access_kinds import ASYNC_READ, ASYNC_WRITE, STRONG_READ, STRONG_WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.layout import CLUSTER_OFFSET, CLUSTER_SHIFT
from sparsekit.emulator.swizzle import swizzled
from sparsekit.emulator.tiles import CHUNK_BYTES, Tile

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine


Combine = Callable[[Array, Array], Array]


def rank_of(address: int) -> int:
    """The block of the cluster that a shared address is in."""
    return address >> CLUSTER_SHIFT


def in_block(address: int, rank: int) -> int:
    """The same place in another block of the cluster."""
    return address & CLUSTER_OFFSET | rank << CLUSTER_SHIFT


def shared_place(c: Convoy, address: int, thread: int) -> int:
    """The byte in the machine's shared memory of an address in the shared window."""
    lane = thread - c.lo
    return int(c.shared_index(np.full(c.n, address, np.uint32), 0)[lane])


def chunk_places(c: Convoy, address: int, size_bytes: int, thread: int, mode: str) -> Array:
    """The places (i8) of the 16-byte chunks of a tile, in its own order."""
    start = shared_place(c, address, thread)
    chunks = start + np.arange(0, size_bytes, CHUNK_BYTES, dtype=np.int64)
    return swizzled(chunks, mode)


def note_shared(c: Convoy, places: Array, writes: bool, agent: int, at: int, thread: int) -> None:
    """Log an access of the async proxy to chunks of shared memory."""
    if c.log is not None:
        lanes = np.full(places.size, thread - c.lo)
        kind = ASYNC_WRITE if writes else ASYNC_READ
        index = places.astype(np.uint32, copy=False)
        c.log.add("shared", kind, CHUNK_BYTES, index, lanes, True, c, at, (), agent)


def note_global(c: Convoy, tile: Tile, kind: int, at: int, thread: int) -> None:
    """Log an access to the pieces of a tile that are in the tensor."""
    index = tile.index[tile.inside]
    if c.log is not None and index.size:
        lanes = np.full(index.size, thread - c.lo)
        c.log.add("global", kind, tile.piece_bytes, index, lanes, True, c, at)


GLOBAL_READ, GLOBAL_WRITE = ASYNC_READ, ASYNC_WRITE
GLOBAL_REDUCTION_READ, GLOBAL_REDUCTION = STRONG_READ, STRONG_WRITE


def fetch(machine: Machine, tile: Tile) -> Array:
    """The bytes of a tile from global memory, as chunks c16."""
    shift = tile.piece_bytes.bit_length() - 1
    table = machine.storage.table("global", tile.piece_bytes, 1)
    pieces = table.take(tile.index >> shift, mode="clip")
    if not tile.inside.all():
        outside = np.frombuffer(tile.fill, pieces.dtype)[0]
        pieces = np.where(tile.inside, pieces, outside)
    return np.ascontiguousarray(pieces).view(np.complex128)


def deposit(machine: Machine, places: Array, chunks: Array) -> None:
    """Put chunks into shared memory; the log tells of those outside of it."""
    table = machine.storage.table("shared", CHUNK_BYTES, 1)
    table[np.clip(places >> 4, 0, table.size - 1)] = chunks


def collect(machine: Machine, places: Array) -> Array:
    """Take chunks from shared memory, c16."""
    return machine.storage.table("shared", CHUNK_BYTES, 1).take(places >> 4, mode="clip")


def spread(machine: Machine, tile: Tile, chunks: Array, combine: Combine | None) -> None:
    """Put the bytes of chunks where a tile is in global memory, or combine them with it."""
    shift = tile.piece_bytes.bit_length() - 1
    table = machine.storage.table("global", tile.piece_bytes, 1)
    rows = np.clip(tile.index[tile.inside] >> shift, 0, table.size - 1)
    pieces = np.ascontiguousarray(chunks).view(table.dtype)[tile.inside]
    if combine is not None:
        pieces = combine(np.ascontiguousarray(table[rows]), np.ascontiguousarray(pieces))
    table[rows] = pieces
