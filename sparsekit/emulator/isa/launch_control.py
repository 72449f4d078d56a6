"""PTX ISA, Parallel Synchronization and Communication Instructions: clusterlaunchcontrol.

A cluster that has not started yet is cancelled, and the one that asked does its work. The answer in
shared memory is laid out in a way of this emulator's own: whether, and the block's index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsekit.emulator import bulk_moves as moves
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.bulk import Signal
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.isa.memory import sized_address
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.tiles import CHUNK_BYTES
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Operand, Sink

if TYPE_CHECKING:
    from sparsekit.emulator.machine import Machine

CHAPTER = Chapter("Parallel Synchronization and Communication: clusterlaunchcontrol")


@CHAPTER.form(
    "clusterlaunchcontrol what=try_cancel async space=shared::cta? "
    "signal=mbarrier::complete_tx::bytes multicast=multicast::cluster::all? t=b128", 2,
)  # fmt: skip
def try_cancel(w: Writer, m: Matched) -> None:
    """[answer], [mbarrier]"""
    answer, barrier = (_address(w, m, operand) for operand in m.operands)
    every = bool(m["multicast"])
    w.line(f"{w.fn(ask)}(L, {answer}, {barrier}, {every}, {w.mask}, {w.at})")


def _address(w: Writer, m: Matched, operand: Operand) -> str:
    base, offset = sized_address(w, m, operand, "shared")
    return w.temp(f"{base} + {w.const(offset, 'u4')}") if offset else base


def ask(
    c: Convoy, answers: Array, barriers: Array, every: bool, mask: Array | None, at: int
) -> None:
    """Each lane asks for a cluster that has not started."""
    machine = c.machine
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        answer, barrier = int(answers[lane]), int(barriers[lane])
        ranks = range(machine.cluster_size) if every else [moves.rank_of(answer)]
        signals, places = [], []
        for rank in ranks:
            place = moves.shared_place(c, moves.in_block(barrier, rank), thread)
            found = machine.mbarriers.find(place, thread, at)
            target = moves.in_block(answer, rank)
            chunks = moves.chunk_places(c, target, CHUNK_BYTES, thread, "none")
            moves.note_shared(c, chunks, True, found.agent, at, thread)
            signals.append(Signal(found, CHUNK_BYTES))
            places.append(chunks)

        def move(places: list[Array] = places) -> None:
            data = _taken(machine)
            for chunks in places:
                moves.deposit(machine, chunks, data)

        machine.bulk.load(move, signals, at, thread)


def _taken(machine: Machine) -> Array:
    """The answer: the next cluster of the launch, or that there is none."""
    words = np.zeros(4, np.uint32)
    if machine.waiting_units:
        unit = machine.waiting_units.pop(0)
        words[0] = 1
        words[1:] = machine.geometry.block_index(unit * machine.cluster_size)
    return words.view(np.complex128)


@CHAPTER.form("clusterlaunchcontrol query_cancel what=is_canceled d=pred t=b128", 2)
def is_canceled(w: Writer, m: Matched) -> None:
    w.write(m.operands[0], f"{_words(w, m)}[:, 0] != 0", "?")


@CHAPTER.form("clusterlaunchcontrol query_cancel what=get_first_ctaid vec=v4 d=b32 t=b128", 2)
def first_block(w: Writer, m: Matched) -> None:
    words = _words(w, m)
    for axis, element in enumerate(elements_of(m.operands[0])[:3]):
        if not isinstance(element, Sink):
            w.write(element, w.temp(f"ascontiguousarray({words}[:, {axis + 1}])"), "u4")


@CHAPTER.form(
    "clusterlaunchcontrol query_cancel "
    "what=get_first_ctaid::x|get_first_ctaid::y|get_first_ctaid::z d=b32 t=b128", 2,
)  # fmt: skip
def first_block_part(w: Writer, m: Matched) -> None:
    axis = "xyz".index(m["what"][-1])
    w.write(m.operands[0], w.temp(f"ascontiguousarray({_words(w, m)}[:, {axis + 1}])"), "u4")


def _words(w: Writer, m: Matched) -> str:
    answer = w.read(m.operands[1], "c16")
    return w.temp(f"ascontiguousarray({answer}).view(u4).reshape(-1, 4)")
