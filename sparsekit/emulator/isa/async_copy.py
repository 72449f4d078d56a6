"""PTX ISA, Data Movement and Conversion Instructions: Asynchronous copy, non-bulk (cp.async)."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsekit.emulator.access_kinds import COPY_WRITE, READ
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.isa.mbarrier import barrier_place
from sparsekit.emulator.isa.memory import sized_address
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Immediate, Negated, Register

CHAPTER = Chapter("Data Movement and Conversion Instructions: cp.async")


@CHAPTER.form("cp async level=ca|cg to=shared|shared::cta from=global $policy $prefetch", (3, 4, 5))
def cp_async(w: Writer, m: Matched) -> None:
    """[target], [source], size {, bytes taken} {, cache policy}; or a predicate: ignore source."""
    operands = list(m.operands)
    if m["$policy"]:
        operands.pop()
    if len(operands) not in (3, 4):
        raise m.unsupported("cp.async with these operands is not modelled")
    size = operands[2]
    sizes = (16,) if m["level"] == "cg" else (4, 8, 16)
    if not isinstance(size, Immediate) or size.value not in sizes:
        raise m.unsupported(f"a copy of other than {sizes} bytes")
    kept = "None"
    if len(operands) == 4:
        kept = _kept(w, operands[3], size.value)
    target, target_offset = sized_address(w, m, operands[0], "shared")
    source, source_offset = sized_address(w, m, operands[1], "global")
    w.line(
        f"{w.fn(start_copy)}(L, {target}, {target_offset}, {source}, {source_offset}, "
        f"{size.value}, {kept}, {w.mask}, {w.at})"
    )


def _kept(w: Writer, operand: Any, size: int) -> str:
    """The bytes that come from the source; a predicate says that none do."""
    if isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type == "pred"):
        ignored = w.read(operand, "?")
        return w.temp(f"where({ignored}, {w.const(0, 'u4')}, {w.const(size, 'u4')})")
    return w.read(operand, "u4")


def start_copy(
    c: Convoy, target: Array, target_offset: int, source: Array, source_offset: int, size: int,
    kept: Array | None, mask: Array | None, at: int,
) -> None:  # fmt: skip
    """Issue a copy: the bytes taken are read, and the target counts as written from now on."""
    to = c.shared_index(target, target_offset)
    come = c.global_index(source, source_offset)
    lanes = None
    rows = c.rows
    if mask is not None:
        lanes = mask.nonzero()[0]
        if not lanes.size:
            return
        to, come, rows = to[lanes], come[lanes], rows[lanes]
        kept = None if kept is None else kept[lanes]
    elif kept is not None:
        kept = kept.copy()  # it may be a register's storage, and the copy happens later
    if c.log is not None:
        c.log.add("shared", COPY_WRITE, size, to, lanes, True, c, at)
        _log_source(c, come, size, kept, lanes, at)
    if kept is not None and np.count_nonzero(kept > size):
        text = f"a copy of {size} bytes that takes more of them from its source"
        c.machine.fault("bounds", text, at, c.lo)
    c.machine.copies.issue(size, to, come, kept, rows)


def _log_source(
    c: Convoy, come: Array, size: int, kept: Array | None, lanes: Array | None, at: int
) -> None:
    assert c.log is not None
    if kept is None:
        c.log.add("global", READ, size, come, lanes, True, c, at)
        return
    whole = kept >= size
    count = np.count_nonzero(whole)
    if count == whole.size:
        c.log.add("global", READ, size, come, lanes, True, c, at)
        return
    if count:
        chosen = whole.nonzero()[0]
        c.log.add("global", READ, size, come[chosen], _of(lanes, chosen), True, c, at)
    partial = (~whole & (kept > 0)).nonzero()[0]
    for offset in range(size if partial.size else 0):
        chosen = partial[kept[partial] > offset]
        if chosen.size:
            c.log.add("global", READ, 1, come[chosen] + offset, _of(lanes, chosen), True, c, at)


def _of(lanes: Array | None, chosen: Array) -> Array:
    return chosen if lanes is None else lanes[chosen]


@CHAPTER.form("cp async mbarrier arrive noinc? space=shared|shared::cta? t=b64", 1)
def arrive(w: Writer, m: Matched) -> None:
    place = barrier_place(w, m, m.operands[0])
    adds = not m["noinc"]
    w.line(f"L.machine.copies.arrive(L, {w.mask}, {place}, {adds}, {w.at})")


@CHAPTER.form("cp async commit_group", 0)
def commit_group(w: Writer, m: Matched) -> None:
    w.line(f"L.machine.copies.commit(L.warps({w.mask}))")


@CHAPTER.form("cp async wait_group", 1)
def wait_group(w: Writer, m: Matched) -> None:
    count = m.operands[0]
    if not isinstance(count, Immediate):
        raise m.unsupported("a number of groups that is no constant")
    w.line(f"L.machine.copies.wait(L.warps({w.mask}), {count.value})")


@CHAPTER.form("cp async wait_all", 0)
def wait_all(w: Writer, m: Matched) -> None:
    w.line(f"L.machine.copies.wait_all(L.warps({w.mask}))")
