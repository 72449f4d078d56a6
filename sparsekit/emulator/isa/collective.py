"""PTX ISA, Parallel Synchronization and Communication: vote, match, redux, activemask, elect;
Data Movement and Conversion: shfl."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.numeric.extremes import maximum_of, minimum_of
from sparsekit.emulator.source import DTYPES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Immediate, Operand, Pair, Sink

CHAPTER = Chapter("Parallel Synchronization and Communication Instructions: vote, match, redux")
_WORD = 0xFFFF_FFFF
_KEPT_SOURCES = 256  # of a few KB
_LANE = np.arange(WARP)
_BIT = np.uint32(1) << _LANE.astype(np.uint32)
_REDUCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _pair(operand: Operand) -> tuple[Operand, Operand]:
    """(value, predicate) of `d|p` or of d alone."""
    if isinstance(operand, Pair):
        return operand.first, operand.second
    return operand, Sink()


@CHAPTER.form("shfl sync mode=up|down|bfly|idx t=b32", 5)
def shfl(w: Writer, m: Matched) -> None:
    target, predicate = _pair(m.operands[0])
    a, b, c = (w.read(o, "u4") for o in m.operands[1:4])
    w.members(m.operands[4])
    wants_predicate = not isinstance(predicate, Sink)
    step, limits = m.operands[2:4]
    sources = f"{w.fn(shuffle_sources)}({m['mode']!r}, {b}, {c})"
    if isinstance(step, Immediate) and isinstance(limits, Immediate):
        constants = f"{step.value & _WORD}, {limits.value & _WORD}"
        sources = f"{w.fn(constant_sources)}({m['mode']!r}, {constants}, L.n)"
    both = w.temp(f"{w.fn(shuffle)}({a}, {sources}, L, {w.mask}, {w.at})")
    w.write(target, f"{both}[0]", "u4")
    if wants_predicate:
        w.write(predicate, f"{both}[1]", "?")


def shuffle_sources(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """(the position that each lane reads, whether the source lane was in range)."""
    lane = np.tile(_LANE, b.size // WARP).astype(np.int64)
    step = (b & np.uint32(31)).astype(np.int64)
    limits = c.astype(np.int64)
    clamp, segment = limits & 31, (limits >> 8) & 31
    most = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    if mode == "up":
        source = lane - step
        valid = source >= most
    elif mode == "down":
        source = lane + step
        valid = source <= most
    elif mode == "bfly":
        source = lane ^ step
        valid = source <= most
    else:
        source = least | (step & ~segment)
        valid = source <= most
    source = np.where(valid, source, lane)
    return np.arange(b.size) - lane + source, valid


@lru_cache(_KEPT_SOURCES)
def constant_sources(mode: str, step: int, limits: int, size: int) -> tuple[Array, Array]:
    """The same of constants, for so many lanes; read-only."""
    found = shuffle_sources(mode, np.full(size, step, np.uint32), np.full(size, limits, np.uint32))
    for vector in found:
        vector.flags.writeable = False
    return found


def shuffle(
    a: Array, sources: tuple[Array, Array], convoy: Convoy, mask: Array | None, at: int
) -> tuple[Array, Array]:
    """(values from other lanes, whether the source lane was in range)."""
    where, valid = sources
    if mask is not None:
        reads_idle = mask & ~mask[where]
        if np.count_nonzero(reads_idle):
            position = int(reads_idle.argmax())
            lane = int(where[position]) % WARP
            text = f"shfl reads lane {lane}, which does not take part"
            convoy.machine.fault("divergence", text, at, convoy.lo + position)
    return a[where], valid


@CHAPTER.form("vote sync mode=all|any|uni t=pred", 3)
@CHAPTER.form("vote sync mode=ballot t=b32", 3)
def vote(w: Writer, m: Matched) -> None:
    source = w.read(m.operands[1], "?")
    w.members(m.operands[2])
    dtype = DTYPES[m["t"]]
    call = f"{w.fn(voted)}({source}, {m['mode']!r}, {w.mask})"
    w.write(m.operands[0], call, dtype)


def voted(source: Array, mode: str, mask: Array | None) -> Array:
    """The result of a vote of the lanes of each warp that are named and take part."""
    present = _present(source.size, mask)
    yes = source.reshape(-1, WARP) & present
    if mode == "ballot":
        return np.repeat(_bits(yes), WARP)
    some, every = yes.any(axis=1), (yes == present).all(axis=1)
    result = {"any": some, "all": every, "uni": ~some | every}[mode]
    return np.repeat(result, WARP)


def _present(size: int, mask: Array | None) -> Array:
    """[warps, lanes]: those that take part; a membermask is the same in all of its lanes."""
    if mask is None:
        return np.ones((size // WARP, WARP), np.bool_)
    return mask.reshape(-1, WARP)


def _bits(lanes: Array) -> Array:
    """[warps, lanes] bool -> a word per warp."""
    result: Array = np.where(lanes, _BIT, np.uint32(0)).sum(axis=1, dtype=np.uint32)
    return result


@CHAPTER.form("activemask t=b32", 1)
def activemask(w: Writer, m: Matched) -> None:
    w.write(m.operands[0], f"{w.fn(active_lanes)}(L.n, {w.mask})", "u4")


def active_lanes(size: int, mask: Array | None) -> Array:
    if mask is None:
        return np.full(size, 0xFFFF_FFFF, np.uint32)
    return np.repeat(_bits(mask.reshape(-1, WARP)), WARP)


@CHAPTER.form("elect sync", 2)
def elect(w: Writer, m: Matched) -> None:
    """The lowest lane that takes part is the leader."""
    target, predicate = _pair(m.operands[0])
    w.members(m.operands[1])
    leader = w.temp(f"{w.fn(lowest_lane)}(L.n, {w.mask})")
    if not isinstance(target, Sink):
        w.write(target, f"{leader}[0]", "u4")
    if not isinstance(predicate, Sink):
        w.write(predicate, f"{leader}[1]", "?")


def lowest_lane(size: int, mask: Array | None) -> tuple[Array, Array]:
    """(the leader's lane, whether each lane is it)."""
    if mask is None:
        first = np.zeros(size // WARP, np.int64)
    else:
        first = mask.reshape(-1, WARP).argmax(axis=1)
    leader = np.repeat(first, WARP).astype(np.uint32)
    return leader, np.tile(_LANE, size // WARP) == leader


@CHAPTER.form("match any sync t=b32|b64", 3)
@CHAPTER.form("match all sync t=b32|b64", 3)
def match(w: Writer, m: Matched) -> None:
    target, predicate = _pair(m.operands[0])
    if m["any"] and not isinstance(predicate, Sink):
        raise m.unsupported("match.any gives no predicate")
    a = w.read(m.operands[1], DTYPES[m["t"]])
    w.members(m.operands[2])
    call = w.temp(f"{w.fn(matched_lanes)}({a}, {bool(m['all'])}, {w.mask})")
    w.write(target, f"{call}[0]", "u4")
    if not isinstance(predicate, Sink):
        w.write(predicate, f"{call}[1]", "?")


def matched_lanes(a: Array, every: bool, mask: Array | None) -> tuple[Array, Array]:
    """(the lanes with the same value, whether all have it); of match.all no lanes unless all."""
    present = _present(a.size, mask)
    values = a.reshape(-1, WARP)
    same = (values[:, :, None] == values[:, None, :]) & present[:, None, :]
    words = np.where(same, _BIT, np.uint32(0)).sum(axis=2, dtype=np.uint32)
    full = _bits(present)[:, None]
    agree = ((words == full) | ~present).all(axis=1)
    if every:
        words = np.where(agree[:, None], full, np.uint32(0)) * np.ones_like(words)
    return words.reshape(-1), np.repeat(agree, WARP)


@CHAPTER.form("redux sync op=add|min|max t=u32|s32", 3)
@CHAPTER.form("redux sync op=and|or|xor t=b32", 3)
@CHAPTER.form("redux sync op=min|max abs? nan=NaN? t=f32", 3)
def redux(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    a = w.read(m.operands[1], dtype)
    w.members(m.operands[2])
    if dtype == "f4":
        flags = f"{m['op'] == 'max'}, {bool(m['abs'])}, {bool(m['nan'])}"
        call = f"{w.fn(reduced_floats)}({a}, {flags}, {w.mask})"
    else:
        call = f"{w.fn(reduced)}({a}, {m['op']!r}, {w.mask})"
    w.write(m.operands[0], call, dtype)


def reduced(a: Array, op: str, mask: Array | None) -> Array:
    """One operation over the lanes of each warp that take part, in every lane."""
    values = a.reshape(-1, WARP)
    if mask is not None:
        limits = np.iinfo(a.dtype)
        neutral = {"min": limits.max, "max": limits.min, "and": -1}.get(op, 0)
        filled = np.full(1, neutral & ((1 << 32) - 1), np.uint32).view(a.dtype)
        values = np.where(mask.reshape(-1, WARP), values, filled)
    return np.repeat(_REDUCTIONS[op].reduce(values, axis=1).astype(a.dtype), WARP)


def reduced_floats(a: Array, largest: bool, absolute: bool, nan: bool, mask: Array | None) -> Array:
    values = np.abs(a) if absolute else a
    values = values.reshape(-1, WARP)
    if mask is not None:
        first = mask.reshape(-1, WARP).argmax(axis=1)
        own = values[np.arange(len(values)), first][:, None]
        values = np.where(mask.reshape(-1, WARP), values, own)
    result = values[:, 0]
    for lane in range(1, WARP):
        result = (maximum_of if largest else minimum_of)(result, values[:, lane], nan)
    return np.repeat(result, WARP)
