"""PTX ISA, Parallel Synchronization and Communication Instructions: mbarrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.isa.control import both
from sparsekit.emulator.isa.memory import sized_address, space_of
from sparsekit.emulator.mbarrier_objects import MWait
from sparsekit.emulator.storage import SHARED_WINDOW
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Operand, Register, Sink

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine

CHAPTER = Chapter("Parallel Synchronization and Communication Instructions: mbarrier")
_OWN = "space=shared|shared::cta?"
_ANY = "space=shared|shared::cta|shared::cluster?"
_SCOPE = "scope=cta|cluster?"
_ARRIVE = "what=arrive|arrive_drop"
_WINDOW_SHIFT = np.uint64(40)
_ALIGN = 8


def barrier_place(w: Writer, m: Matched, operand: Operand) -> str:
    """The name of the places (u4, in the machine's shared memory) of the mbarriers addressed."""
    base, offset = sized_address(w, m, operand, space_of(m))
    return w.temp(f"{w.fn(place_of)}(L, {base}, {offset}, {w.mask}, {w.at})")


def place_of(c: Convoy, address: Array, offset: int, mask: Array | None, at: int) -> Array:
    """Bytes in the machine's shared memory; address: u4 in the shared window, or u8 generic."""
    if address.dtype == np.uint64:
        outside = (address >> _WINDOW_SHIFT) != np.uint64(SHARED_WINDOW >> int(_WINDOW_SHIFT))
        check_lanes(c, outside, mask, at, "bounds", "an mbarrier outside of shared memory")
        address = address.astype(np.uint32)
    index = c.shared_index(address, offset)
    check_lanes(c, index % _ALIGN != 0, mask, at, "alignment", "an mbarrier is 8-byte aligned")
    return index


def check_lanes(
    c: Convoy, bad: Array, mask: Array | None, at: int, kind: str, text: str
) -> None:  # fmt: skip
    """A fault for the first executing lane that is bad."""
    if mask is not None:
        bad = bad & mask
    if np.count_nonzero(bad):
        c.machine.fault(kind, text, at, c.lo + int(bad.argmax()))


def _check_order(m: Matched) -> None:
    if bool(m["sem"]) != bool(m["scope"]):
        raise m.unsupported("an order and a scope stand together")


@CHAPTER.form(f"mbarrier init {_OWN} t=b64", 2)
def init(w: Writer, m: Matched) -> None:
    place, count = barrier_place(w, m, m.operands[0]), w.read(m.operands[1], "u4")
    w.line(f"L.machine.mbarriers.make(L, {w.mask}, {place}, {count}, {w.at})")


@CHAPTER.form(f"mbarrier inval {_OWN} t=b64", 1)
def inval(w: Writer, m: Matched) -> None:
    place = barrier_place(w, m, m.operands[0])
    w.line(f"L.machine.mbarriers.unmake(L, {w.mask}, {place}, {w.at})")


@CHAPTER.form(f"mbarrier {_ARRIVE} sem=release|relaxed? {_SCOPE} {_ANY} t=b64", (2, 3))
def arrive(w: Writer, m: Matched) -> None:
    count = w.read(m.operands[2], "u4") if len(m.operands) > 2 else "None"
    _arrive(w, m, count, "None", True)


@CHAPTER.form(f"mbarrier {_ARRIVE} noComplete sem=release? scope=cta? {_OWN} t=b64", 3)
def arrive_no_complete(w: Writer, m: Matched) -> None:
    _arrive(w, m, w.read(m.operands[2], "u4"), "None", False)


@CHAPTER.form(f"mbarrier {_ARRIVE} expect_tx sem=release|relaxed? {_SCOPE} {_ANY} t=b64", 3)
def arrive_expect_tx(w: Writer, m: Matched) -> None:
    _arrive(w, m, "None", w.read(m.operands[2], "i4"), True)


def _arrive(w: Writer, m: Matched, count: str, tx_bytes: str, may_complete: bool) -> None:
    _check_order(m)
    target = m.operands[0]
    if m["space"] == "shared::cluster" and not isinstance(target, Sink):
        raise m.unsupported("an arrival in a cluster gives no state")
    place = barrier_place(w, m, m.operands[1])
    call = (
        f"L.machine.mbarriers.arrive(L, {w.mask}, {place}, {count}, {tx_bytes}, {w.at}, "
        f"releases={m['sem'] != 'relaxed'}, drops={m['what'] == 'arrive_drop'}, "
        f"may_complete={may_complete})"
    )
    w.write(target, call, "u8")


@CHAPTER.form(f"mbarrier what=expect_tx sem=relaxed? {_SCOPE} {_ANY} t=b64", 2)
@CHAPTER.form(f"mbarrier what=complete_tx sem=relaxed? {_SCOPE} {_ANY} t=b64", 2)
def change_tx(w: Writer, m: Matched) -> None:
    _check_order(m)
    place, tx_bytes = barrier_place(w, m, m.operands[0]), w.read(m.operands[1], "i4")
    completes = m["what"] == "complete_tx"
    w.line(f"{w.fn(add_tx)}(L, {place}, {tx_bytes}, {completes}, {w.mask}, {w.at})")


def add_tx(
    c: Convoy, place: Array, tx_bytes: Array, completes: bool, mask: Array | None, at: int
) -> None:
    """Each lane awaits more bytes, or says that some have come."""
    mbarriers = c.machine.mbarriers
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        barrier = mbarriers.find(int(place[lane]), thread, at)
        if completes:
            mbarriers.complete_bytes(barrier, int(tx_bytes[lane]), None, at, thread)
        else:
            mbarriers.expect(barrier, int(tx_bytes[lane]))


def _wait(machine: Machine, convoy: Convoy, m: Matched, values: tuple[Any, ...]) -> None:
    taken, rest = both(convoy, values[0])
    if rest is not None:
        machine.move(convoy, rest, convoy.block + 1)
    if taken is not None and not np.count_nonzero(taken):
        return
    target = m.operands[0]
    slot = None
    if isinstance(target, Register):
        function = machine.code.blocks[convoy.block].function
        slot = machine.code.slots[function, target.name].index
    wait = MWait(m.index, slot, convoy.block + 1, acquires=m["sem"] != "relaxed")
    machine.mbarriers.wait(convoy, taken, values[1], values[2], wait, by_parity=bool(m["parity"]))


@CHAPTER.form(f"mbarrier what=test_wait sem=acquire|relaxed? {_SCOPE} {_OWN} t=b64", 3, _wait)
@CHAPTER.form(
    f"mbarrier what=test_wait parity sem=acquire|relaxed? {_SCOPE} {_OWN} t=b64", 3, _wait
)
@CHAPTER.form(f"mbarrier what=try_wait sem=acquire|relaxed? {_SCOPE} {_OWN} t=b64", (3, 4), _wait)
@CHAPTER.form(
    f"mbarrier what=try_wait parity sem=acquire|relaxed? {_SCOPE} {_OWN} t=b64", (3, 4), _wait
)
def wait(w: Writer, m: Matched) -> tuple[str, ...]:
    """A test is given all the time that it needs too: how long one takes is not modelled."""
    _check_order(m)
    phase = w.read(m.operands[2], "u4" if m["parity"] else "u8")
    return w.mask, barrier_place(w, m, m.operands[1]), phase


@CHAPTER.form("mbarrier pending_count t=b64", 2)
def pending_count(w: Writer, m: Matched) -> None:
    """The arrivals that a phase lacked when an arrival gave the state."""
    w.write(m.operands[0], f"{w.read(m.operands[1], 'u8')}.astype(u4)", "u4")
