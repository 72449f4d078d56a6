"""PTX ISA, TensorCore 5th Generation Instructions: mma, mma.ws, commit.

A product is started by one thread and takes effect after what that thread's warp started before.
Products are summed in single precision, in no order that is promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.bulk_moves import in_block, note_shared, shared_place
from sparsekit.emulator.clocks import TENSOR_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.instruction_descriptor import Instruction, decode
from sparsekit.emulator.isa.bulk_copy import shared_address
from sparsekit.emulator.isa.mma import ELEMENTS
from sparsekit.emulator.isa.tcgen05_copy import pair_of
from sparsekit.emulator.isa.tcgen05_memory import (
    GROUP,
    TensorOperation,
    agent_of,
    tensor_address,
)
from sparsekit.emulator.matrix_operand import matrix_chunks, read_matrix, tensor_core_operand
from sparsekit.emulator.mbarrier_objects import MBarrier
from sparsekit.emulator.table import Chapter, Matched, unsupported
from sparsekit.emulator.tensor_layouts import LANES, DataPath, column_of, data_path, lane_of
from sparsekit.emulator.tensor_memory import Region
from sparsekit.emulator.tiles import CHUNK_BYTES
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Address, Immediate, Vector

CHAPTER = Chapter("TensorCore 5th Generation Instructions: mma, commit")
_SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
_K_BYTES = 32
_WORDS = 8  # columns that a row of A takes in tensor memory
_KIND = "kind=kind::f16|kind::tf32|kind::f8f6f4"
_COLLECTOR = "collector=collector::a::fill|collector::a::use|collector::a::lastuse|" \
    "collector::a::discard?"  # fmt: skip
_B_COLLECTOR = "collector=" + "|".join(
    f"collector::b{i}::{use}" for i in range(4) for use in ("fill", "use", "lastuse", "discard")
) + "?"  # fmt: skip


@CHAPTER.form(f"tcgen05 mma {GROUP} {_KIND} {_COLLECTOR}", (5, 6, 7))
@CHAPTER.form(f"tcgen05 mma ws group=cta_group::1 {_KIND} {_B_COLLECTOR}", (5, 6))
def mma(w: Writer, m: Matched) -> None:
    """[D], A or [A], B, instruction {, {lanes left out}}, whether D is added {, power of D}; with
    .ws the last is a mask of columns that are zero, of which there are none.

    Collectors keep operands for reuse: with the same data, so they are a hint.
    """
    d, a, b, instruction, *rest = m.operands
    groups = 2 if m["group"] == "cta_group::2" else 1
    left_out = "()"
    if isinstance(rest[0], Vector):
        elements = elements_of(rest.pop(0))
        if len(elements) != 4 * groups:
            raise m.unsupported("another number of words than lanes to leave out")
        left_out = "(" + "".join(f"{w.read(e, 'u4')}, " for e in elements) + ")"
    scale = 0
    if len(rest) == 2:
        power = rest.pop()
        if m["ws"] and power != Immediate(0):
            raise m.unsupported("a mask of columns that are zero")
        if not isinstance(power, Immediate) or not 0 <= power.value <= 15:
            raise m.unsupported("a power of D other than 0 to 15")
        scale = power.value
    if len(rest) != 1:
        raise m.unsupported("tcgen05.mma with these operands is not modelled")
    in_memory = isinstance(a, Address)
    left = tensor_address(w, m, a) if in_memory else w.read(a, "u8")
    how = (m["kind"].removeprefix("kind::"), groups, bool(m["ws"]), in_memory, scale)
    w.line(
        f"{w.fn(start_product)}(L, {how!r}, {tensor_address(w, m, d)}, {left}, "
        f"{w.read(b, 'u8')}, {w.read(instruction, 'u4')}, {left_out}, {w.read(rest[0], '?')}, "
        f"{w.mask}, {w.at})"
    )


def start_product(
    c: Convoy, how: tuple[str, int, bool, bool, int], d: Array, a: Array, b: Array, bits: Array,
    left_out: tuple[Array, ...], adds: Array, mask: Array | None, at: int,
) -> None:  # fmt: skip
    kind, groups, stationary, in_memory, scale = how
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        what = decode(int(bits[lane]), kind, groups, weight_stationary=stationary)
        if what.fault:
            c.machine.fault("descriptor", what.problem, at, thread)
        if what.problem:
            raise unsupported(c.machine.code.matched[at].instruction, what.problem)
        path = data_path(
            what.m // groups, halves=groups == 2 and what.m == LANES, weight_stationary=stationary
        )
        product = Product(c, what, path, bool(adds[lane]), scale, at, thread)
        blocks = pair_of(c, thread, groups, at)
        for block in blocks:
            product.take_b(block, int(b[lane]), what.n // groups)
        for block in blocks:
            if in_memory:
                product.take_a_from_tensor_memory(block, int(a[lane]))
            else:
                product.take_a(block, int(a[lane]))
            product.take_d(block, int(d[lane]))
        words = [int(v[lane]) for v in left_out]
        product.leave_out(words)
        c.machine.engine.issue(TensorOperation(product.perform, thread // WARP))


@dataclass(frozen=True, slots=True)
class _SharedOperand:
    """A matrix in shared memory. numbers: of its 16-byte chunks."""

    numbers: Array
    rows: int
    mn_major: bool


class Product:
    """One product in flight: where its operands and results are."""

    def __init__(
        self, c: Convoy, what: Instruction, path: DataPath, adds: bool, scale: int, at: int,
        thread: int,
    ) -> None:  # fmt: skip
        self._c, self._what, self._path, self._adds = c, what, path, adds
        self._scale, self._at, self._thread = scale, at, thread
        self._agent = agent_of(c, thread, TENSOR_AGENT)
        self._b: list[_SharedOperand] = []
        self._a: list[_SharedOperand | list[Region]] = []
        self._d: list[list[Region]] = []
        self._kept: list[Array | None] = []

    def _take(
        self, block: int, descriptor: int, rows: int, kind: str, mn_major: bool
    ) -> _SharedOperand:
        """Note that a matrix in shared memory is read."""
        machine, size = self._c.machine, _SIZES[kind]
        operand = tensor_core_operand(descriptor)
        if operand.problem:
            raise unsupported(machine.code.matched[self._at].instruction, operand.problem)
        base = block * machine.shared_stride
        places, numbers = matrix_chunks(operand, base, rows, _K_BYTES // size, size, mn_major)
        note_shared(self._c, places, False, self._agent, self._at, self._thread)
        return _SharedOperand(numbers, rows, mn_major)

    def take_b(self, block: int, descriptor: int, rows: int) -> None:
        what = self._what
        self._b.append(self._take(block, descriptor, rows, what.b, what.transpose_b))

    def take_a(self, block: int, descriptor: int) -> None:
        what = self._what
        self._a.append(self._take(block, descriptor, self._path.rows, what.a, what.transpose_a))

    def _region(self, block: int, address: int, lanes: Array, count: int) -> Region:
        memory = self._c.machine.tensor_memory
        moved = lanes + lane_of(address)
        column = column_of(address)
        return memory.region(block, moved, column, count, self._at, self._thread)

    def take_a_from_tensor_memory(self, block: int, address: int) -> None:
        memory = self._c.machine.tensor_memory
        regions = [self._region(block, address, lanes, _WORDS) for lanes in self._path.lanes]
        for region in regions:
            memory.note_read(region, self._agent, self._at, self._thread)
        self._a.append(regions)

    def take_d(self, block: int, address: int) -> None:
        memory = self._c.machine.tensor_memory
        count = self._what.n // self._path.parts
        regions = [self._region(block, address, lanes, count) for lanes in self._path.lanes]
        for region in regions:
            if self._adds:
                memory.note_read(region, self._agent, self._at, self._thread)
            memory.note_write(region, self._agent, self._at, self._thread)
        self._d.append(regions)
        self._kept.append(None)

    def leave_out(self, words: list[int]) -> None:
        """Lanes of D that stay as they are, a bit each, block by block."""
        for number in range(len(self._d)):
            mine = words[4 * number : 4 * number + 4]
            if any(mine):
                bits = np.array(mine, np.uint32).repeat(WARP) >> np.tile(
                    np.arange(WARP, dtype=np.uint32), 4
                )
                self._kept[number] = (bits & np.uint32(1)) == 0

    def perform(self) -> None:
        machine, what = self._c.machine, self._what
        cells = machine.tensor_memory.cells
        right = np.concatenate([self._read(places, what.b) for places in self._b])
        width = what.n // self._path.parts
        for a, regions, kept in zip(self._a, self._d, self._kept, strict=True):
            for part, region in enumerate(regions):
                if isinstance(a, list):
                    words = np.ascontiguousarray(cells[a[part].index])
                    left = ELEMENTS[what.a](words)
                else:
                    left = self._read(a, what.a)
                result = left @ right[part * width : (part + 1) * width].T
                if what.sign < 0:
                    result = np.float32(0) - result  # a sum of 0 is +0, as of wgmma
                if self._adds:
                    before = np.ascontiguousarray(cells[region.index]).view(np.float32)
                    result = result + before * np.float32(2.0**-self._scale)
                new = np.ascontiguousarray(result, np.float32).view(np.uint32)
                if kept is not None:
                    new = np.where(kept[region.lanes][:, None], new, cells[region.index])
                cells[region.index] = new

    def _read(self, operand: _SharedOperand, kind: str) -> Array:
        memory = self._c.machine.storage.table("shared", CHUNK_BYTES, 1)
        return read_matrix(
            memory, operand.numbers, operand.rows, _SIZES[kind], operand.mn_major, ELEMENTS[kind]
        )


@CHAPTER.form(
    f"tcgen05 commit {GROUP} signal=mbarrier::arrive::one space=shared::cluster? "
    "multicast=multicast::cluster? t=b64", (1, 2),
)  # fmt: skip
def commit(w: Writer, m: Matched) -> None:
    """[mbarrier] {, blocks}"""
    barrier, *rest = m.operands
    if len(rest) != bool(m["multicast"]):
        raise m.unsupported("a mask of blocks belongs to a multicast")
    blocks = w.read(rest[0], "u2") if rest else "None"
    place = shared_address(w, m, barrier)
    w.line(f"{w.fn(start_commit)}(L, {place}, {blocks}, {w.mask}, {w.at})")


def start_commit(
    c: Convoy, barriers: Array, blocks: Array | None, mask: Array | None, at: int
) -> None:
    """An arrival when all that the thread has started has ended."""
    machine, clocks = c.machine, c.machine.clocks
    for thread in c.lanes(mask).tolist():
        address = int(barriers[thread - c.lo])
        places = [address]
        if blocks is not None:
            chosen = int(blocks[thread - c.lo])
            if chosen >> machine.cluster_size or not chosen:
                text = f"a commit to blocks {chosen:#x} of a cluster of {machine.cluster_size}"
                machine.fault("bounds", text, at, thread)
            places = [in_block(address, r) for r in range(16) if chosen >> r & 1]
        found = [
            machine.mbarriers.find(shared_place(c, place, thread), thread, at) for place in places
        ]
        known = None
        if c.log is not None:
            known = clocks.released(np.array([thread // WARP]))[0]
            clocks.let_know(known, agent_of(c, thread, TENSOR_AGENT))
            clocks.tick()

        def arrive(found: list[MBarrier] = found, known: Any = known, thread: int = thread) -> None:
            for barrier in found:
                machine.mbarriers.arrive_later(barrier, known, at, thread)

        machine.engine.issue(TensorOperation(arrive, thread // WARP))
