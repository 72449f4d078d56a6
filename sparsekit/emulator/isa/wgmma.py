"""PTX ISA, Asynchronous Warpgroup Level Matrix Instructions: wgmma.

Element e of D in lane l of warp w of the group: row 16 w + l / 4 + 8 (e / 2 % 2), column
2 (l % 4) + e % 2 + 8 (e / 4); A in registers as for mma.sync, a warp having 16 rows. What is read
of shared memory is read in the async proxy, at once; when it may change again the clocks know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.bulk_moves import note_shared
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.mma import ELEMENTS
from sparsekit.emulator.matrix_operand import matrix_chunks, read_matrix, warpgroup_operand
from sparsekit.emulator.table import Chapter, Matched, unsupported
from sparsekit.emulator.tiles import CHUNK_BYTES
from sparsekit.emulator.warpgroups import WARPS_OF_GROUP, Group
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Immediate, Operand, Register, Vector

CHAPTER = Chapter("Asynchronous Warpgroup Level Matrix Instructions: wgmma")
ROWS = 64
K_BYTES = 32  # of a row of A or B in one instruction
_SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_COLUMNS = range(8, 257, 8)
_INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))


def _shapes(k: int, columns: Sequence[int] = _COLUMNS) -> str:
    return "shape=" + "|".join(f"m{ROWS}n{n}k{k}" for n in columns)


_PREFIX = "wgmma mma_async sync aligned"


@CHAPTER.form(f"{_PREFIX} {_shapes(16)} d=f32|f16 a=f16 b=f16", (7, 8))
@CHAPTER.form(f"{_PREFIX} {_shapes(16)} d=f32 a=bf16 b=bf16", (7, 8))
@CHAPTER.form(f"{_PREFIX} {_shapes(8)} d=f32 a=tf32 b=tf32", 6)
@CHAPTER.form(f"{_PREFIX} {_shapes(32)} d=f32|f16 a=e4m3|e5m2 b=e4m3|e5m2", 6)
@CHAPTER.form(f"{_PREFIX} {_shapes(32, _INTEGER_COLUMNS)} satfinite? d=s32 a=s8|u8 b=s8|u8", 4)
def mma_async(w: Writer, m: Matched) -> None:
    """D, A, B, scale-d, scale-a, scale-b {, transpose A} {, transpose B}"""
    target, a, b, scale_d, *rest = m.operands
    flags = [o.value for o in rest if isinstance(o, Immediate)]
    if len(flags) != len(rest):
        raise m.unsupported("a factor or transposition that is no constant")
    in_registers = isinstance(a, Vector)
    signs, transposed = flags[:2] or [1, 1], flags[2:]
    if len(transposed) not in ((1,) if in_registers else (2,)) and _SIZES[m["a"]] == 2:
        raise m.unsupported("another number of transpositions than matrices in shared memory")
    if any(s not in (1, -1) for s in signs) or any(t not in (0, 1) for t in transposed):
        raise m.unsupported("a factor other than 1 and -1, or a transposition other than 0 and 1")
    transpose_b = transposed[-1] if transposed else 0
    transpose_a = transposed[0] if len(transposed) == 2 else 0
    columns = int(re.findall(r"\d+", m["shape"])[1])
    d = elements_of(target)
    if len(d) != columns // (4 if m["d"] == "f16" else 2):
        raise m.unsupported("a result with another number of registers than its shape")
    kind = {"f32": "f4", "s32": "i4", "f16": "u4"}[m["d"]]
    how = (columns, m["a"], m["b"], m["d"], signs[0] * signs[1], transpose_a, transpose_b,
           bool(m["satfinite"]))  # fmt: skip
    held = "None"
    if scale_d != Immediate(0):
        held = "(" + "".join(f"{w.read(e, kind)}, " for e in d) + ")"
    left = w.read(a, "u8") if not in_registers else ""
    if in_registers:
        if len(elements_of(a)) != 4:
            raise m.unsupported("A in other than 4 registers")
        left = "(" + "".join(f"{w.read(e, 'u4')}, " for e in elements_of(a)) + ")"
    slots = (_slots(w, d), _slots(w, elements_of(a)) if in_registers else ())
    name = w.temp(
        f"{w.fn(multiply_matrices)}(L, {how!r}, {slots!r}, {held}, {left}, {w.read(b, 'u8')}, "
        f"{w.read(scale_d, '?')}, {w.mask}, {w.at})"
    )
    w.write_all(target, name, kind)


def _slots(w: Writer, elements: tuple[Operand, ...]) -> tuple[int, ...]:
    return tuple(
        w.code.slots[w.block.function, e.name].index for e in elements if isinstance(e, Register)
    )


def multiply_matrices(
    c: Convoy, how: Any, slots: Any, held: tuple[Array, ...] | None, a: Any, b: Array,
    scale_d: Array, mask: Array | None, at: int,
) -> Array:  # fmt: skip
    """The registers of D, [registers, lanes]: A B, plus D where scale-d is set."""
    columns, kind_a, kind_b, kind_d, sign, transpose_a, transpose_b, saturating = how
    warpgroups, count = c.machine.warpgroups, columns // 2
    product = np.empty((count, c.n), np.float32)
    if mask is not None:
        product[...] = 0
    words = np.concatenate(a).reshape(4, -1) if isinstance(a, tuple) else None
    for leader, rows, threads in _groups(c, mask, at):
        for row in rows:
            warpgroups.start(row, slots[0], slots[1], at)
        lanes = threads - c.lo
        if words is not None:
            left = _fragments(words[:, lanes], kind_a)
        else:
            left = _matrix(c, int(a[lanes[0]]), ROWS, kind_a, transpose_a, leader, at)
        right = _matrix(c, int(b[lanes[0]]), columns, kind_b, transpose_b, leader, at)
        whole = left @ right.T
        # [warp, half, l / 4, n8, l % 4, parity] -> [n8, half, parity, warp, l / 4, l % 4]
        parts = whole.reshape(WARPS_OF_GROUP, 2, 8, columns // 8, 4, 2).transpose(3, 1, 5, 0, 2, 4)
        product[:, lanes] = parts.reshape(count, -1)
    if sign < 0:
        product = np.float32(0) - product  # terms have the factor's sign: their sum of 0 is +0
    return _accumulate(product, held, scale_d, kind_d, saturating)


def _groups(c: Convoy, mask: Array | None, at: int) -> Sequence[Group]:
    """The warpgroups that execute; each must be here as a whole."""
    warpgroups = c.machine.warpgroups
    present = c.warps(mask)
    groups = warpgroups.groups_of(present)
    whole = mask is None or np.count_nonzero(mask) == WARP * present.size
    if whole and len(groups) * WARPS_OF_GROUP == present.size:
        return groups
    here = set(present.tolist())
    for leader, rows, threads in groups:
        if not here.issuperset(rows) or (mask is not None and not mask[threads - c.lo].all()):
            text = "not all threads of a warpgroup execute a wgmma.mma_async together"
            c.machine.fault("divergence", text, at, leader * WARP)
            c.machine.fault("outside", text, at, leader * WARP)  # of what the ISA defines
    return groups


def _fragments(words: Array, kind: str) -> Array:
    """[64, k] f32 of A in registers. words: [4, lanes of the group]."""
    parts = words.reshape(2, 2, WARPS_OF_GROUP, 8, 4).transpose(2, 1, 3, 0, 4)
    return ELEMENTS[kind](np.ascontiguousarray(parts).reshape(ROWS, 8))


def _matrix(
    c: Convoy, descriptor: int, rows: int, kind: str, transposed: int, leader: int, at: int
) -> Array:
    """[rows, k] f32 of a matrix in shared memory."""
    machine, size, thread = c.machine, _SIZES[kind], leader * WARP
    operand = warpgroup_operand(descriptor)
    if operand.problem:
        raise unsupported(machine.code.matched[at].instruction, operand.problem)
    base, mn_major = int(machine.shared_base[thread]), bool(transposed)
    places, numbers = matrix_chunks(operand, base, rows, K_BYTES // size, size, mn_major)
    note_shared(c, places, False, machine.warpgroups.agent(leader), at, thread)
    memory = machine.storage.table("shared", CHUNK_BYTES, 1)
    return read_matrix(memory, numbers, rows, size, mn_major, ELEMENTS[kind])


def _accumulate(
    product: Array, held: tuple[Array, ...] | None, scale_d: Array, kind: str, saturating: bool
) -> Array:
    if kind == "f16":
        total = product.reshape(-1, 2, product.shape[1])
        if held is not None:
            halves = np.stack(held).view(np.float16).reshape(len(held), -1, 2).transpose(0, 2, 1)
            total = np.where(scale_d, total + halves.astype(np.float32), total)
        rounded = total.astype(np.float16)
        rounded[rounded == 0] = 0  # what a negative sum rounds to is +0, too: seen on an H200
        packed = np.ascontiguousarray(rounded.transpose(0, 2, 1))
        return packed.view(np.uint32).reshape(len(packed), -1)
    if kind == "s32":
        whole = product.astype(np.int64)
        if held is not None:
            whole = np.where(scale_d, whole + np.stack(held), whole)
        if saturating:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        return whole.astype(np.int32)
    if held is None:
        return product
    added: Array = np.concatenate(held).reshape(product.shape)
    np.add(product, added, out=added)
    return added if scale_d.all() else np.where(scale_d, added, product)


@CHAPTER.form("wgmma fence sync aligned", 0)
def fence(w: Writer, m: Matched) -> None:
    w.line(f"L.machine.warpgroups.fence(L, {w.mask})")


@CHAPTER.form("wgmma commit_group sync aligned", 0)
def commit_group(w: Writer, m: Matched) -> None:
    w.line(f"L.machine.warpgroups.commit(L, {w.mask})")


@CHAPTER.form("wgmma wait_group sync aligned", 1)
def wait_group(w: Writer, m: Matched) -> None:
    count = m.operands[0]
    if not isinstance(count, Immediate):
        raise m.unsupported("a number of groups that is no constant")
    w.line(f"L.machine.warpgroups.wait(L, {w.mask}, {count.value})")
