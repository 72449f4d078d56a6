"""PTX ISA, Data Movement and Conversion Instructions: cp.async.bulk, cp.reduce.async.bulk."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsekit.emulator import bulk_moves as moves
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.bulk import Signal
from sparsekit.emulator.clocks import BULK_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.atomics import combined
from sparsekit.emulator.isa.memory import sized_address
from sparsekit.emulator.memory import GLOBAL_BASE
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.swizzle import chunk_addresses
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.tiles import CHUNK_BYTES, Tile
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Immediate, Operand

CHAPTER = Chapter("Data Movement and Conversion Instructions: cp.async.bulk")
SIGNALS = "mbarrier::complete_tx::bytes"
_REDUCTIONS = {
    "and": "b32|b64", "or": "b32|b64", "xor": "b32|b64", "add": "u32|s32|u64|f32|f64",
    "inc": "u32", "dec": "u32", "min": "u32|s32|u64|s64", "max": "u32|s32|u64|s64",
}  # fmt: skip
_SHARED_REDUCTIONS = {
    "and": "b32", "or": "b32", "xor": "b32", "add": "u32|s32|u64", "inc": "u32", "dec": "u32",
    "min": "u32|s32", "max": "u32|s32",
}  # fmt: skip


def shared_address(w: Writer, m: Matched, operand: Operand) -> str:
    """The name of the addresses (u4) in the shared window."""
    base, offset = sized_address(w, m, operand, "shared")
    return w.temp(f"{base} + {w.const(offset, 'u4')}") if offset else base


def global_address(w: Writer, m: Matched, operand: Operand) -> str:
    """The name of the addresses (u8) in global memory."""
    base, offset = sized_address(w, m, operand, "global")
    return w.temp(f"{base} + {w.const(offset, 'u8')}") if offset else base


def optional(w: Writer, operands: list[Operand], present: bool, dtype: str) -> str:
    """The name of the next operand where a modifier says that there is one."""
    return w.read(operands.pop(0), dtype) if present else "None"


def finish(m: Matched, operands: list[Operand]) -> None:
    """Nothing may be left but the cache policy."""
    if len(operands) != bool(m["$policy"]):
        raise m.unsupported("these operands are not modelled with these modifiers")


@CHAPTER.form(
    f"cp async bulk to=shared::cluster|shared::cta from=global signal={SIGNALS} "
    "multicast=multicast::cluster? $policy", (4, 5, 6),
)  # fmt: skip
def from_global(w: Writer, m: Matched) -> None:
    """[target], [source], size, [mbarrier] {, blocks} {, policy}"""
    target, source, size, barrier, *rest = m.operands
    blocks = optional(w, rest, bool(m["multicast"]), "u2")
    finish(m, rest)
    w.line(
        f"{w.fn(copy_from_global)}(L, {shared_address(w, m, target)}, "
        f"{global_address(w, m, source)}, {w.read(size, 'u4')}, {shared_address(w, m, barrier)}, "
        f"{blocks}, {w.mask}, {w.at})"
    )


def check_size(c: Convoy, size: int, addresses: tuple[int, ...], at: int, thread: int) -> None:
    if size % CHUNK_BYTES:
        text = f"a bulk copy of {size} bytes, no multiple of {CHUNK_BYTES}"
        c.machine.fault("bounds", text, at, thread)
    if any(address % CHUNK_BYTES for address in addresses):
        text = f"a bulk copy between addresses that are no multiples of {CHUNK_BYTES} bytes"
        c.machine.fault("alignment", text, at, thread)


def linear(address: int, size: int) -> Tile:
    """So many bytes of global memory as a tile."""
    index = chunk_addresses(address - GLOBAL_BASE, size // CHUNK_BYTES)
    return Tile(CHUNK_BYTES, index, np.ones(index.size, np.bool_), b"\0" * CHUNK_BYTES)


def copy_from_global(
    c: Convoy, target: Array, source: Array, sizes: Array, barriers: Array, blocks: Array | None,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        size, to, come = int(sizes[lane]), int(target[lane]), int(source[lane])
        check_size(c, size, (to, come), at, thread)
        start_load(
            c, linear(come, size), to, "none", int(barriers[lane]),
            None if blocks is None else int(blocks[lane]), False, at, thread,
        )  # fmt: skip


def start_load(
    c: Convoy, tile: Tile, target: int, mode: str, barrier: int, blocks: int | None, pairs: bool,
    at: int, thread: int,
) -> None:  # fmt: skip
    """Copy a tile to shared memory, of one block or of those in a mask.

    pairs: the mbarrier may be that of the other block of a pair (cta_group::2).
    """
    machine, size = c.machine, tile.size_bytes
    ranks = [moves.rank_of(target)]
    if blocks is not None:
        ranks = [r for r in range(16) if blocks >> r & 1]
        if any(r >= machine.cluster_size for r in ranks):
            text = f"a multicast to blocks {blocks:#x} of a cluster of {machine.cluster_size}"
            machine.fault("bounds", text, at, thread)
    signals, places = [], []
    for rank in ranks:
        to = moves.in_block(target, rank)
        where = moves.rank_of(barrier)
        if blocks is not None:
            where = rank & ~1 | where & 1 if pairs else rank
        elif not pairs and where != rank:
            text = "the mbarrier is not in the block that the copy goes to"
            machine.fault("descriptor", text, at, thread)
        place = moves.shared_place(c, moves.in_block(barrier, where), thread)
        found = machine.mbarriers.find(place, thread, at)
        signals.append(Signal(found, size))
        chunks = moves.chunk_places(c, to, size, thread, mode)
        moves.note_shared(c, chunks, True, found.agent, at, thread)
        places.append(chunks)
    moves.note_global(c, tile, moves.GLOBAL_READ, at, thread)

    def move() -> None:
        data = moves.fetch(machine, tile)
        for chunks in places:
            moves.deposit(machine, chunks, data)

    machine.bulk.load(move, signals, at, thread)


@CHAPTER.form(f"cp async bulk to=shared::cluster from=shared::cta signal={SIGNALS}", 4)
def between_blocks(w: Writer, m: Matched) -> None:
    """[target], [source], size, [mbarrier]"""
    target, source, size, barrier = m.operands
    w.line(
        f"{w.fn(copy_between_blocks)}(L, {shared_address(w, m, target)}, "
        f"{shared_address(w, m, source)}, {w.read(size, 'u4')}, {shared_address(w, m, barrier)}, "
        f"None, {w.mask}, {w.at})"
    )


def _register_reductions(chapter: Chapter) -> None:
    for op, types in _SHARED_REDUCTIONS.items():
        chapter.form(
            f"cp reduce async bulk to=shared::cluster from=shared::cta signal={SIGNALS} "
            f"op={op} t={types}", 4,
        )(reduce_between_blocks)  # fmt: skip
    for op, types in _REDUCTIONS.items():
        chapter.form(
            f"cp reduce async bulk to=global from=shared::cta bulk_group $policy op={op} t={types}",
            (3, 4),
        )(to_global)
    chapter.form(
        "cp reduce async bulk to=global from=shared::cta bulk_group $policy op=add noftz "
        "t=f16|bf16", (3, 4),
    )(to_global)  # fmt: skip
    chapter.form(
        "cp reduce async bulk to=global from=shared::cta bulk_group $policy op=min|max t=f16|bf16",
        (3, 4),
    )(to_global)


def reduce_between_blocks(w: Writer, m: Matched) -> None:
    target, source, size, barrier = m.operands
    w.line(
        f"{w.fn(copy_between_blocks)}(L, {shared_address(w, m, target)}, "
        f"{shared_address(w, m, source)}, {w.read(size, 'u4')}, {shared_address(w, m, barrier)}, "
        f"{(m['op'], m['t'])}, {w.mask}, {w.at})"
    )


def combination(how: tuple[str, str], where: str) -> Callable[[Array, Array], Array]:
    """What a reduction makes of the old and the new bits."""
    op, kind = how
    dtype = "u2" if kind in ("f16", "bf16") else DTYPES[kind]

    def combine(old: Array, new: Array) -> Array:
        result = combined(old.view(dtype), op, kind, where, [new.view(dtype)])
        return np.ascontiguousarray(result).view(old.dtype)

    return combine


def copy_between_blocks(
    c: Convoy, target: Array, source: Array, sizes: Array, barriers: Array,
    how: tuple[str, str] | None, mask: Array | None, at: int,
) -> None:  # fmt: skip
    machine = c.machine
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        size, to, come = int(sizes[lane]), int(target[lane]), int(source[lane])
        check_size(c, size, (to, come), at, thread)
        barrier = machine.mbarriers.find(
            moves.shared_place(c, int(barriers[lane]), thread), thread, at
        )
        reads = moves.chunk_places(c, come, size, thread, "none")
        writes = moves.chunk_places(c, to, size, thread, "none")
        reader = machine.clocks.agent_of(thread // WARP, BULK_AGENT)
        moves.note_shared(c, reads, False, reader, at, thread)
        moves.note_shared(c, writes, True, barrier.agent, at, thread)

        def move(reads: Array = reads, writes: Array = writes) -> None:
            data = moves.collect(machine, reads)
            if how is not None:
                data = combination(how, "shared")(moves.collect(machine, writes), data)
            moves.deposit(machine, writes, data)

        machine.bulk.load(move, [Signal(barrier, size)], at, thread, reads_shared=True)


@CHAPTER.form("cp async bulk to=global from=shared::cta bulk_group $policy cp_mask?", (3, 4, 5))
def to_global(w: Writer, m: Matched) -> None:
    """[target], [source], size {, policy} {, which bytes of every 16}"""
    target, source, size, *rest = m.operands
    mask = w.read(rest.pop(), "u2") if m["cp_mask"] else "None"
    finish(m, rest)
    how = (m["op"], m["t"]) if m["reduce"] else None
    w.line(
        f"{w.fn(copy_to_global)}(L, {global_address(w, m, target)}, "
        f"{shared_address(w, m, source)}, {w.read(size, 'u4')}, {how}, {mask}, {w.mask}, {w.at})"
    )


def copy_to_global(
    c: Convoy, target: Array, source: Array, sizes: Array, how: tuple[str, str] | None,
    byte_mask: Array | None, mask: Array | None, at: int,
) -> None:  # fmt: skip
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        size, to, come = int(sizes[lane]), int(target[lane]), int(source[lane])
        check_size(c, size, (to, come), at, thread)
        tile = linear(to, size)
        if byte_mask is not None:
            chosen = (int(byte_mask[lane]) >> np.arange(CHUNK_BYTES)) & 1
            index = (tile.index[:, None] + np.arange(CHUNK_BYTES)).reshape(-1)
            tile = Tile(1, index, np.tile(chosen != 0, size // CHUNK_BYTES), b"\0")
        start_store(c, tile, come, "none", how, at, thread)


def start_store(
    c: Convoy, tile: Tile, source: int, mode: str, how: tuple[str, str] | None, at: int,
    thread: int,
) -> None:  # fmt: skip
    """Copy a tile from shared to global memory, or combine it with what is there."""
    machine = c.machine
    chunks = moves.chunk_places(c, source, tile.size_bytes, thread, mode)
    reader = machine.clocks.agent_of(thread // WARP, BULK_AGENT)
    moves.note_shared(c, chunks, False, reader, at, thread)
    kind = moves.GLOBAL_WRITE if how is None else moves.GLOBAL_REDUCTION
    if how is not None:
        moves.note_global(c, tile, moves.GLOBAL_REDUCTION_READ, at, thread)
    moves.note_global(c, tile, kind, at, thread)
    combine = None if how is None else combination(how, "global")

    def move() -> None:
        moves.spread(machine, tile, moves.collect(machine, chunks), combine)

    machine.bulk.store(move, at, thread)


@CHAPTER.form("cp async bulk commit_group", 0)
def commit_group(w: Writer, m: Matched) -> None:
    w.line(f"L.machine.bulk.commit(L.warps({w.mask}))")


@CHAPTER.form("cp async bulk wait_group read?", 1)
def wait_group(w: Writer, m: Matched) -> None:
    count = m.operands[0]
    if not isinstance(count, Immediate):
        raise m.unsupported("a number of groups that is no constant")
    reads = bool(m["read"])
    w.line(f"L.machine.bulk.wait(L.warps({w.mask}), {count.value}, only_reads={reads})")


CHAPTER.hint("cp async bulk prefetch to=L2 from=global $policy", (2, 3), "there is no cache")
_register_reductions(CHAPTER)
