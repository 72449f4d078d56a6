"""PTX ISA, Warp-Level Matrix Instructions: ldmatrix, stmatrix, movmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsekit.emulator.access import outside
from sparsekit.emulator.access_kinds import READ, WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.memory import sized_address
from sparsekit.emulator.storage import SHARED_WINDOW
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Operand

CHAPTER = Chapter("Warp-Level Matrix Instructions: ldmatrix, stmatrix, movmatrix")
_ROW_BYTES = 16
_SHARED = "space=shared|shared::cta?"
_COUNTS = "num=x1|x2|x4"


@CHAPTER.form(f"ldmatrix sync aligned shape=m8n8 {_COUNTS} trans? {_SHARED} t=b16", 2)
def ldmatrix(w: Writer, m: Matched) -> None:
    _load(w, m, 8, bool(m["trans"]))


@CHAPTER.form(f"ldmatrix sync aligned shape=m16n16 num=x1|x2 trans {_SHARED} t=b8", 2)
def ldmatrix_bytes(w: Writer, m: Matched) -> None:
    """16 x 16 matrices of bytes, transposed; two registers each."""
    _load(w, m, 16, True)


def _load(w: Writer, m: Matched, rows: int, transposed: bool) -> None:
    count = int(m["num"].removeprefix("x"))
    elements = elements_of(m.operands[0])
    if len(elements) != count * (rows // 8):
        raise m.unsupported("a destination of another size than the matrices")
    base, offset = _shared_address(w, m, m.operands[1])
    function = load_matrices if rows == 8 else load_byte_matrices
    call = f"L, {base}, {offset}, {count}, {transposed}, {w.mask}, {w.at}"
    w.write_all(m.operands[0], w.temp(f"{w.fn(function)}({call})"), "u4")


def _shared_address(w: Writer, m: Matched, operand: Operand) -> tuple[str, int]:
    """(name of the base, offset) in shared memory, of an address there or a generic one."""
    if m["space"]:
        return sized_address(w, m, operand, "shared")
    base, offset = sized_address(w, m, operand, "")
    return w.temp(f"{w.fn(shared_of_generic)}(L, {base}, {w.mask}, {w.at})"), offset


def shared_of_generic(c: Convoy, address: Array, mask: Array | None, at: int) -> Array:
    """Generic addresses (u8), all to be in shared memory, as addresses there (u4)."""
    outside_window = (address >> np.uint64(32)) != SHARED_WINDOW >> 32
    if mask is not None:
        outside_window &= mask
    if np.count_nonzero(outside_window):
        thread = c.lo + int(outside_window.argmax())
        c.machine.fault("bounds", "a generic address that is not in shared memory", at, thread)
    return address.astype(np.uint32)


def _rows(
    c: Convoy, address: Array, offset: int, rows: int, kind: int, mask: Array | None, at: int,
    stored: Array | None = None,
) -> Array:  # fmt: skip
    """Byte indices of the rows of each warp's matrices, [warps, rows], after noting the access.

    stored: what is written to the rows, [warps, rows] of 16 bytes.
    """
    index = c.shared_index(address, offset).reshape(-1, WARP)
    if rows < WARP:
        index = index[:, :rows]
    taking = None if mask is None else mask.reshape(-1, WARP)[:, :rows]
    values: tuple[Array, ...] = ()
    if stored is not None:
        values = (stored.reshape(-1) if taking is None else stored[taking],)
    if c.log is not None:
        lanes = None
        if rows < WARP or mask is not None:
            chosen = np.arange(c.n).reshape(-1, WARP)[:, :rows]
            if taking is not None:
                chosen = chosen[taking]
            lanes = chosen.reshape(-1)
        taken = index.reshape(-1) if taking is None else index[taking]
        c.log.add("shared", kind, _ROW_BYTES, taken, lanes, True, c, at, values)
    return index


def load_matrices(
    c: Convoy, address: Array, offset: int, count: int, transposed: bool, mask: Array | None,
    at: int,
) -> Array:  # fmt: skip
    """[count, lanes] u4: lane l holds elements 2 (l % 4), + 1 of row l / 4 of each 8 x 8 matrix."""
    index = _rows(c, address, offset, 8 * count, READ, mask, at)
    table = c.machine.storage.table("shared", 16, 1)
    try:
        rows = table.take(index >> np.uint32(4), mode="raise" if mask is None else "clip")
    except IndexError:
        outside(c, at)
        raise
    warps = len(index)
    if transposed:
        halves = rows.view(np.uint16).reshape(warps, count, 8, 8).transpose(1, 0, 3, 2)
        return np.ascontiguousarray(halves).view(np.uint32).reshape(count, -1)
    if warps == 1:
        return rows.view(np.uint32).reshape(count, WARP)
    words = rows.view(np.uint32).reshape(warps, count, WARP).transpose(1, 0, 2)
    return words.reshape(count, -1)


def load_byte_matrices(
    c: Convoy, address: Array, offset: int, count: int, transposed: bool, mask: Array | None,
    at: int,
) -> Array:  # fmt: skip
    """[2 count, lanes] u4: of the transposed 16 x 16 matrix, register i the rows from 8 i on."""
    index = _rows(c, address, offset, 16 * count, READ, mask, at)
    rows = c.machine.storage.table("shared", 16, 1).take(index >> np.uint32(4), mode="clip")
    octets = rows.view(np.uint8).reshape(len(index), count, 16, 16).transpose(0, 1, 3, 2)
    words = np.ascontiguousarray(octets).view(np.uint32).reshape(len(index), count, 2, WARP)
    return words.transpose(1, 2, 0, 3).reshape(2 * count, -1)


@CHAPTER.form(f"stmatrix sync aligned shape=m8n8 {_COUNTS} trans? {_SHARED} t=b16", 2)
def stmatrix(w: Writer, m: Matched) -> None:
    _store(w, m, store_matrices)


@CHAPTER.form(f"stmatrix sync aligned shape=m16n8 {_COUNTS} trans {_SHARED} t=b8", 2)
def stmatrix_bytes(w: Writer, m: Matched) -> None:
    """16 x 8 matrices of bytes, stored transposed: eight rows of 16 bytes each."""
    _store(w, m, store_byte_matrices)


def _store(w: Writer, m: Matched, function: Any) -> None:
    count = int(m["num"].removeprefix("x"))
    elements = elements_of(m.operands[1])
    if len(elements) != count:
        raise m.unsupported("a source of another size than the matrices")
    base, offset = _shared_address(w, m, m.operands[0])
    values = "".join(f"{w.read(e, 'u4')}, " for e in elements)
    call = f"L, {base}, {offset}, ({values}), {bool(m['trans'])}, {w.mask}, {w.at}"
    w.line(f"{w.fn(function)}({call})")


def store_matrices(
    c: Convoy, address: Array, offset: int, values: tuple[Array, ...], transposed: bool,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    count = len(values)
    words = np.stack(values).reshape(count, -1, WARP).transpose(1, 0, 2)
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, count, 8, 8)
    if transposed:
        halves = np.ascontiguousarray(halves.transpose(0, 1, 3, 2))
    rows = halves.view(np.complex128).reshape(-1, 8 * count)
    index = _rows(c, address, offset, 8 * count, WRITE, mask, at, rows)
    _put_rows(c, index, rows, mask, at)


def store_byte_matrices(
    c: Convoy, address: Array, offset: int, values: tuple[Array, ...], transposed: bool,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    """Lane l holds elements 2 (l % 4), + 1 of rows l / 4 and l / 4 + 8 of each 16 x 8 matrix.

    Its columns are stored as rows of 16 bytes. Source: the layouts of CUTLASS, copy_sm100.hpp.
    """
    count = len(values)
    words = np.stack(values).reshape(count, -1, WARP).transpose(1, 0, 2)
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1, count, 8, 4, 2, 2)
    # [warp, matrix, g, t, half of the rows, column parity] -> columns, then rows
    columns = np.ascontiguousarray(octets.transpose(0, 1, 3, 5, 4, 2)).reshape(-1)
    rows = columns.view(np.complex128).reshape(-1, 8 * count)
    index = _rows(c, address, offset, 8 * count, WRITE, mask, at, rows)
    _put_rows(c, index, rows, mask, at)


def _put_rows(c: Convoy, index: Array, rows: Array, mask: Array | None, at: int) -> None:
    if mask is not None:
        chosen = mask.reshape(-1, WARP)[:, : index.shape[1]]
        index, rows = index[chosen], rows[chosen]
    try:
        c.machine.storage.table("shared", 16, 1)[index >> np.uint32(4)] = rows
    except IndexError:
        outside(c, at)


@CHAPTER.form("movmatrix sync aligned shape=m8n8 trans t=b16", 2)
def movmatrix(w: Writer, m: Matched) -> None:
    w.write(m.operands[0], f"{w.fn(transpose_matrix)}({w.read(m.operands[1], 'u4')})", "u4")


def transpose_matrix(a: Array) -> Array:
    """An 8 x 8 matrix of 16-bit elements over the lanes of a warp, transposed."""
    halves = np.ascontiguousarray(a).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(-1)
