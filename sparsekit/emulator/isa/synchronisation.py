"""PTX ISA, Parallel Synchronization and Communication Instructions: bar, barrier, membar, fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.barriers import Arrival
from sparsekit.emulator.isa.control import both
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Register

if TYPE_CHECKING:
    from sparsekit.emulator.convoy import Convoy
    from sparsekit.emulator.machine import Machine


CHAPTER = Chapter("Parallel Synchronization and Communication Instructions: bar, membar, fence")


def _arrive(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    mask, numbers, counts, predicate = values
    taken, rest = both(convoy, mask)
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)
    if taken is not None and not np.count_nonzero(taken):
        return
    arrival = Arrival(
        m.index,
        convoy.block + 1,
        waits=m["what"] != "arrive",
        predicate=predicate,
        result=_result(machine, convoy, m) if m["op"] else None,
    )
    machine.barriers.arrive(convoy, taken, numbers, counts, arrival)


def _result(machine: Machine, convoy: Convoy, m: Matched) -> Callable[[Array, int, int], None]:
    """What writes the result of bar.red to the threads that waited."""
    target = m.operands[0]
    if not isinstance(target, Register):
        raise m.unsupported("bar.red without a destination register")
    function = machine.code.blocks[convoy.block].function
    slot = machine.code.slots[function, target.name].index

    def write(threads: Array, true: int, contributions: int) -> None:
        value = {"popc": true, "and": true == contributions, "or": true > 0}[m["op"]]
        machine.register(slot)[threads] = value
        if machine.defined is not None:
            machine.defined_in(slot)[threads] = True

    return write


@CHAPTER.form("bar cta? what=sync", (1, 2), control=_arrive)
@CHAPTER.form("bar cta? what=arrive", 2, control=_arrive)
@CHAPTER.form("barrier cta? what=sync aligned?", (1, 2), control=_arrive)
@CHAPTER.form("barrier cta? what=arrive aligned?", 2, control=_arrive)
def bar(w: Writer, m: Matched) -> tuple[str, ...]:
    number = w.read(m.operands[0], "u4")
    count = w.read(m.operands[1], "u4") if len(m.operands) > 1 else "None"
    return w.mask, number, count, "None"


@CHAPTER.form("bar cta? what=red op=popc t=u32", (3, 4), control=_arrive)
@CHAPTER.form("bar cta? what=red op=and|or t=pred", (3, 4), control=_arrive)
@CHAPTER.form("barrier cta? what=red op=popc aligned? t=u32", (3, 4), control=_arrive)
@CHAPTER.form("barrier cta? what=red op=and|or aligned? t=pred", (3, 4), control=_arrive)
def bar_red(w: Writer, m: Matched) -> tuple[str, ...]:
    number = w.read(m.operands[1], "u4")
    count = w.read(m.operands[2], "u4") if len(m.operands) > 3 else "None"
    return w.mask, number, count, w.read(m.operands[-1], "?")


def _arrive_cluster(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    taken, rest = both(convoy, values[0])
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)
    if taken is not None and not np.count_nonzero(taken):
        return
    if m["what"] == "arrive":
        machine.move(convoy, taken, convoy.block + 1)
        machine.cluster_barrier.arrive(convoy, taken, m.index, release=m["sem"] != "relaxed")
    else:
        machine.cluster_barrier.wait(convoy, taken, m.index, convoy.block + 1)


@CHAPTER.form("barrier cluster what=arrive sem=release|relaxed? aligned?", 0, _arrive_cluster)
@CHAPTER.form("barrier cluster what=wait sem=acquire? aligned?", 0, _arrive_cluster)
def barrier_cluster(w: Writer, m: Matched) -> tuple[str, ...]:
    return (w.mask,)


@CHAPTER.form("bar warp sync", 1)
def bar_warp(w: Writer, m: Matched) -> None:
    """The lanes named meet; memory is already as they have left it."""
    w.members(m.operands[0])


@CHAPTER.form("membar level=cta|gl|sys", 0)
@CHAPTER.form("fence sem=sc|acq_rel|acquire|release? level=cta|cluster|gpu|sys", 0)
def fence(w: Writer, m: Matched) -> None:
    level = {"gl": "gpu"}.get(m["level"], m["level"])
    w.line(f"L.machine.fences.fence(L, {w.mask}, {level!r})")
