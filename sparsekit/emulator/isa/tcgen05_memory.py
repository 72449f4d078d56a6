"""PTX ISA, TensorCore 5th Generation Instructions: allocation, loads and stores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from sparsekit.emulator.access import store_shared
from sparsekit.emulator.access_kinds import WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.clocks import TENSOR_AGENT, TENSOR_LOAD_AGENT, TENSOR_STORE_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.memory import sized_address
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.tensor_layouts import (
    LANES,
    SHAPES,
    column_of,
    lane_of,
    register_cells,
)
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Address, Immediate, Operand, Register

CHAPTER = Chapter("TensorCore 5th Generation Instructions: allocation, ld, st")
WORD_BYTES = 4
_QUARTERS = 4
GROUP = "group=cta_group::1|cta_group::2"
_COUNTS = "num=x1|x2|x4|x8|x16|x32|x64|x128"
_MOST_REGISTERS = 128


def tensor_address(w: Writer, m: Matched, operand: Operand) -> str:
    """The name of addresses (u4) in tensor memory, `[address]` or `address`."""
    if isinstance(operand, Address):
        name = w.read(operand.base, "u4")
        offset = operand.offset_bytes
        return w.temp(f"{name} + {w.const(offset, 'u4')}") if offset else name
    return w.read(operand, "u4")


class TensorOperation:
    """Something that tensor cores do after what was issued before it by the same warp."""

    def __init__(self, perform: Callable[[], None], row: int, what: str = "tensor") -> None:
        self.perform = perform
        self.stream: object | None = (what, row)


def warps_with_first_threads(c: Convoy, mask: Array | None) -> list[int]:
    """The first thread of each warp that executes."""
    return [row * WARP for row in c.warps(mask).tolist()]


def agent_of(c: Convoy, thread: int, kind: int) -> int:
    return c.machine.clocks.agent_of(thread // WARP, kind)


# ---- allocation


@CHAPTER.form(f"tcgen05 alloc {GROUP} sync aligned space=shared::cta? t=b32", 2)
def alloc(w: Writer, m: Matched) -> None:
    space = "shared" if m["space"] else ""
    base, offset = sized_address(w, m, m.operands[0], space)
    if not space:
        base = w.temp(f"{base}.astype(u4)")
    w.line(
        f"{w.fn(allocate)}(L, {base}, {offset}, {w.read(m.operands[1], 'u4')}, {w.mask}, {w.at})"
    )


def allocate(
    c: Convoy, target: Array, offset: int, counts: Array, mask: Array | None, at: int
) -> None:
    """One warp of a block allocates columns and stores the address of the first."""
    found = np.zeros(c.n, np.uint32)
    lanes = np.zeros(c.n, np.bool_)
    for thread in warps_with_first_threads(c, mask):
        lane = thread - c.lo
        found[lane] = c.machine.tensor_memory.allocate(thread, int(counts[lane]), at)
        lanes[lane] = True
    store_shared(c, target, offset, WORD_BYTES, (found,), lanes, WRITE, at)


@CHAPTER.form(f"tcgen05 dealloc {GROUP} sync aligned t=b32", 2)
def dealloc(w: Writer, m: Matched) -> None:
    address, count = tensor_address(w, m, m.operands[0]), w.read(m.operands[1], "u4")
    w.line(f"{w.fn(free)}(L, {address}, {count}, {w.mask}, {w.at})")


def free(c: Convoy, address: Array, counts: Array, mask: Array | None, at: int) -> None:
    memory = c.machine.tensor_memory
    for thread in warps_with_first_threads(c, mask):
        lane = thread - c.lo
        column, count = column_of(int(address[lane])), int(counts[lane])
        if c.log is not None and count:  # nobody may use it any more
            region = memory.region(
                memory.block_of(thread), np.arange(LANES), column, count, at, thread
            )
            agent = agent_of(c, thread, TENSOR_AGENT)
            memory.note_write(region, agent, at, thread, released=True)
            memory.forget(region)
        memory.free(thread, column, count, at)


@CHAPTER.form(f"tcgen05 relinquish_alloc_permit {GROUP} sync aligned", 0)
def relinquish(w: Writer, m: Matched) -> None:
    w.line(f"{w.fn(give_up_permit)}(L, {w.mask})")


def give_up_permit(c: Convoy, mask: Array | None) -> None:
    for thread in warps_with_first_threads(c, mask):
        c.machine.tensor_memory.relinquish(thread)


# ---- loads and stores


def _shape(w: Writer, m: Matched, registers: int, split: Operand | None) -> tuple[str, int, bool]:
    """(shape, columns that 16x32bx2 is split by, whether two columns share a register)."""
    shape, number = m["shape"], int(m["num"].removeprefix("x"))
    packed = bool(m["pack"])
    wanted = SHAPES[shape][0] * number
    if registers != wanted or wanted > _MOST_REGISTERS:
        raise m.unsupported(f"{registers} registers where {shape}.x{number} has {wanted}")
    if (split is not None) != (shape == "16x32bx2"):
        raise m.unsupported("a distance of halves belongs to shape 16x32bx2")
    if split is not None and not isinstance(split, Immediate):
        raise m.unsupported("a distance of halves that is no constant")
    return shape, split.value if isinstance(split, Immediate) else 0, packed


_LD_SHAPES = "shape=32x32b|16x64b|16x128b|16x256b|16x32bx2"


@CHAPTER.form(f"tcgen05 ld sync aligned {_LD_SHAPES} {_COUNTS} pack=pack::16b? t=b32", (2, 3))
def ld(w: Writer, m: Matched) -> None:
    target, address, *split = m.operands
    elements = elements_of(target)
    how = _shape(w, m, len(elements), split[0] if split else None)
    place = tensor_address(w, m, address)
    slots = tuple(
        w.code.slots[w.block.function, e.name].index for e in elements if isinstance(e, Register)
    )
    name = w.temp(
        f"{w.fn(load)}(L, {place}, {how!r}, {len(elements)}, {slots!r}, {w.mask}, {w.at})"
    )
    w.write_all(target, name, "u4")


def load(
    c: Convoy, address: Array, how: tuple[str, int, bool], count: int, slots: tuple[int, ...],
    mask: Array | None, at: int,
) -> Array:  # fmt: skip
    """[registers, lanes]; the registers are ready at once, the cells free after the wait."""
    found = np.zeros((count, c.n), np.uint32)
    memory = c.machine.tensor_memory
    for thread in warps_with_first_threads(c, mask):
        lanes, columns = _cells(c, int(address[thread - c.lo]), how, count, at, thread)
        _note(c, lanes, columns, False, at, thread)
        c.machine.register_loads.start(thread // WARP, slots, at)
        block = memory.block_of(thread)
        values = memory.cells[block, lanes, columns]
        if how[2]:
            values = (values[0::2] & np.uint32(0xFFFF)) | values[1::2] << np.uint32(16)
        found[:, thread - c.lo : thread - c.lo + WARP] = values
    return found


def _cells(
    c: Convoy, address: int, how: tuple[str, int, bool], count: int, at: int, thread: int
) -> tuple[Array, Array]:
    """(lanes, columns) of each register and thread; with two columns a register, both in turn."""
    shape, split, packed = how
    lanes, columns = register_cells(shape, count, split)
    if packed:
        lanes = np.repeat(lanes, 2, axis=0)
        columns = np.stack((2 * columns, 2 * columns + 1), 1).reshape(lanes.shape)
    quarter = int(c.machine.geometry.warp[thread]) % _QUARTERS
    lane = lane_of(address)
    if lane // WARP not in (0, quarter):
        text = f"warp {quarter} of its group has lanes {WARP * quarter} on; not lane {lane}"
        c.machine.fault("tensor-memory", text, at, thread)
    return lanes + (quarter * WARP + lane % WARP), columns + column_of(address)


def _note(c: Convoy, lanes: Array, columns: Array, writes: bool, at: int, thread: int) -> None:
    """The cells of a load or store, as rectangles."""
    memory = c.machine.tensor_memory
    block, rows = memory.block_of(thread), np.unique(lanes)
    used = np.unique(columns)
    starts = [0, *(np.flatnonzero(np.diff(used) > 1) + 1).tolist(), used.size]
    kind = TENSOR_STORE_AGENT if writes else TENSOR_LOAD_AGENT
    note = memory.note_write if writes else memory.note_read
    for first, last in pairwise(starts):
        run = used[first:last]
        region = memory.region(block, rows, int(run[0]), run.size, at, thread)
        note(region, agent_of(c, thread, kind), at, thread)


@CHAPTER.form(f"tcgen05 st sync aligned {_LD_SHAPES} {_COUNTS} pack=unpack::16b? t=b32", (2, 3))
def st(w: Writer, m: Matched) -> None:
    address, *split, source = m.operands
    elements = elements_of(source)
    how = _shape(w, m, len(elements), split[0] if split else None)
    place = tensor_address(w, m, address)
    values = "".join(f"{w.read(e, 'u4')}, " for e in elements)
    w.line(f"{w.fn(store)}(L, {place}, {how!r}, ({values}), {w.mask}, {w.at})")


def store(
    c: Convoy, address: Array, how: tuple[str, int, bool], values: tuple[Array, ...],
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    machine, memory = c.machine, c.machine.tensor_memory
    for thread in warps_with_first_threads(c, mask):
        start = thread - c.lo
        lanes, columns = _cells(c, int(address[start]), how, len(values), at, thread)
        _note(c, lanes, columns, True, at, thread)
        data = np.stack([v[start : start + WARP] for v in values])
        if how[2]:
            data = np.stack((data & np.uint32(0xFFFF), data >> np.uint32(16)), 1)
            data = data.reshape(-1, WARP)
        block = memory.block_of(thread)

        def write(
            block: int = block, lanes: Array = lanes, columns: Array = columns, data: Array = data
        ) -> None:
            memory.cells[block, lanes, columns] = data

        machine.engine.issue(TensorOperation(write, thread // WARP, "store"))


@CHAPTER.form("tcgen05 what=wait::ld|wait::st sync aligned", 0)
def wait(w: Writer, m: Matched) -> None:
    w.line(f"{w.fn(wait_for)}(L, {m['what'] == 'wait::st'}, {w.mask})")


def wait_for(c: Convoy, stores: bool, mask: Array | None) -> None:
    """The warps' loads or stores have ended."""
    machine, rows = c.machine, c.warps(mask)
    if stores:
        streams = {("store", row) for row in rows.tolist()}
        machine.engine.force(lambda op: op.stream in streams)
    else:
        machine.register_loads.wait(rows)
    if c.log is not None:
        c.log.flush()
        until = np.full(rows.size, machine.clocks.until_now(), np.int32)
        machine.clocks.learn(rows, TENSOR_STORE_AGENT if stores else TENSOR_LOAD_AGENT, until)
        machine.clocks.tick()


@CHAPTER.form("tcgen05 what=fence::before_thread_sync|fence::after_thread_sync", 0)
def fence(w: Writer, m: Matched) -> None:
    before = m["what"] == "fence::before_thread_sync"
    w.line(f"{w.fn(order_by_fence)}(L, {before}, {w.mask})")


def order_by_fence(c: Convoy, before: bool, mask: Array | None) -> None:
    """Operations on tensor memory before or after what orders threads; a strict check asks."""
    if c.log is not None:
        c.log.flush()
        c.machine.clocks.fence_tensor(c.warps(mask), before=before)
