"""PTX ISA, TensorCore 5th Generation Instructions: copies from shared to tensor memory."""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.bulk_moves import note_shared
from sparsekit.emulator.clocks import TENSOR_AGENT
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.tcgen05_memory import (
    GROUP,
    WORD_BYTES,
    TensorOperation,
    agent_of,
    tensor_address,
)
from sparsekit.emulator.matrix_operand import chunks_of, element_places, tensor_core_operand
from sparsekit.emulator.table import Chapter, Matched, unsupported
from sparsekit.emulator.tensor_layouts import LANES, column_of, copied_rows, lane_of
from sparsekit.emulator.tensor_memory import Region
from sparsekit.emulator.writer import Writer

CHAPTER = Chapter("TensorCore 5th Generation Instructions: cp")


@CHAPTER.form(f"tcgen05 cp {GROUP} shape=128x256b|128x128b", 2)
@CHAPTER.form(f"tcgen05 cp {GROUP} shape=64x128b multicast=warpx2::02_13|warpx2::01_23", 2)
@CHAPTER.form(f"tcgen05 cp {GROUP} shape=32x128b multicast=warpx4", 2)
def cp(w: Writer, m: Matched) -> None:
    place, source = tensor_address(w, m, m.operands[0]), w.read(m.operands[1], "u8")
    how = (m["shape"], m["multicast"], 2 if m["group"] == "cta_group::2" else 1)
    w.line(f"{w.fn(copy)}(L, {place}, {source}, {how!r}, {w.mask}, {w.at})")


def copy(
    c: Convoy, address: Array, sources: Array, how: tuple[str, str, int], mask: Array | None,
    at: int,
) -> None:  # fmt: skip
    """From shared memory to all lanes of a block, or of both blocks of a pair."""
    machine, memory = c.machine, c.machine.tensor_memory
    shape, multicast, groups = how
    rows, words = copied_rows(shape, multicast)
    for thread in c.lanes(mask).tolist():
        place = int(address[thread - c.lo])
        operand = tensor_core_operand(int(sources[thread - c.lo]))
        if operand.problem:
            raise unsupported(machine.code.matched[at].instruction, operand.problem)
        agent = agent_of(c, thread, TENSOR_AGENT)
        for block in pair_of(c, thread, groups, at):
            base = block * machine.shared_stride
            places = element_places(operand, base, int(rows.max()) + 1, words, WORD_BYTES, False)
            note_shared(c, chunks_of(places, WORD_BYTES, False), False, agent, at, thread)
            lanes = lane_of(place) + np.arange(LANES)
            region = memory.region(block, lanes, column_of(place), words, at, thread)
            memory.note_write(region, agent, at, thread)

            def move(places: Array = places, region: Region = region) -> None:
                table = machine.storage.table("shared", WORD_BYTES, 1)
                data = table.take(places >> 2, mode="clip")
                memory.cells[region.index] = data[rows]

            machine.engine.issue(TensorOperation(move, thread // WARP))
        if c.log is not None:
            c.log.flush()


def pair_of(c: Convoy, thread: int, groups: int, at: int) -> list[int]:
    """The block of a thread within the batch, or both blocks of its pair, the even one first."""
    block = c.machine.tensor_memory.block_of(thread)
    if groups == 1:
        return [block]
    if c.machine.cluster_size % 2:
        text = f"cta_group::2 in a cluster of {c.machine.cluster_size} blocks, which has no pairs"
        c.machine.fault("outside", text, at, thread)
    rank = int(c.machine.geometry.rank[thread])
    return [block - rank % 2, block - rank % 2 + 1]
