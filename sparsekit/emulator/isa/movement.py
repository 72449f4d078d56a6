"""PTX ISA, Data Movement and Conversion Instructions: mov, prmt, cvta, isspacep, mapa, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.layout import CLUSTER_SHIFT
from sparsekit.emulator.numeric import integers
from sparsekit.emulator.source import DTYPES, WIDTH_BYTES
from sparsekit.emulator.storage import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Sink, Vector

CHAPTER = Chapter("Data Movement and Conversion Instructions: mov, prmt, cvta, isspacep, mapa")
_BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_WINDOWS = {
    "shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW,
    "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "param::entry": PARAM_WINDOW,
    "global": 0, "const": 0,
}  # fmt: skip
_WINDOW_BITS = 40


@CHAPTER.form("mov t=pred|b16|b32|b64|b128|u16|u32|u64|s16|s32|s64|f32|f64", 2)
def mov(w: Writer, m: Matched) -> None:
    target, source = m.operands
    dtype = DTYPES[m["t"]]
    if isinstance(source, Vector):
        _pack(w, m, source, dtype)
    elif isinstance(target, Vector):
        _unpack(w, m, target, dtype)
    else:
        w.write(target, w.read(source, dtype), dtype)


def _pack(w: Writer, m: Matched, source: Vector, dtype: str) -> None:
    """The first element becomes the lowest bits."""
    total, count = WIDTH_BYTES[dtype], len(source.elements)
    part = _BITS[total // count]
    names = [w.read(element, part) for element in source.elements]
    w.write(m.operands[0], f"{w.fn(packed)}({dtype}, {', '.join(names)})", dtype)


def packed(dtype: np.dtype[Any], *parts: Array) -> Array:
    """Elements side by side in one wider element, the first lowest."""
    rows = np.empty((parts[0].size, len(parts)), parts[0].dtype)
    for position, part in enumerate(parts):
        rows[:, position] = part
    return rows.view(dtype).reshape(-1)


def _unpack(w: Writer, m: Matched, target: Vector, dtype: str) -> None:
    total, count = WIDTH_BYTES[dtype], len(target.elements)
    part = _BITS[total // count]
    bits = w.read(m.operands[1], _BITS[total])
    rows = w.temp(f"ascontiguousarray({bits}).view({part}).reshape(-1, {count})")
    for position, element in enumerate(target.elements):
        if not isinstance(element, Sink):
            w.write(element, f"{rows}[:, {position}]", part)


@CHAPTER.form("prmt t=b32 mode=f4e|b4e|rc8|ecl|ecr|rc16?", 4)
def prmt(w: Writer, m: Matched) -> None:
    a, b, c = (w.read(o, "u4") for o in m.operands[1:])
    w.write(m.operands[0], f"{w.fn(integers.permute)}({a}, {b}, {c}, {m['mode']!r})", "u4")


@CHAPTER.form("cvta to=to? space=const|global|local|param|param::entry|shared|shared::cta|"
              "shared::cluster t=u64", 2)  # fmt: skip
def cvta(w: Writer, m: Matched) -> None:
    """Between an address in a memory and a generic one; there are none of 32 bits."""
    window = _WINDOWS[m["space"]]
    address = w.read(m.operands[1], "u8")
    if window:
        address = f"{address} {'-' if m['to'] else '+'} {w.const(window, 'u8')}"
    w.write(m.operands[0], address, "u8")


@CHAPTER.form("isspacep space=global|local|param|param::entry|shared|shared::cta|"
              "shared::cluster", 2)  # fmt: skip
def isspacep(w: Writer, m: Matched) -> None:
    """Constant memory has no window here, so that isspacep.const is not modelled."""
    address = w.read(m.operands[1], "u8")
    space = m["space"]
    top = w.temp(f"{address} >> {w.const(_WINDOW_BITS, 'u8')}")
    window = _WINDOWS[space] >> _WINDOW_BITS
    if window:
        found = f"{top} == {w.const(window, 'u8')}"
        if space in ("shared", "shared::cta"):
            found = f"({found}) & {w.fn(in_own_block)}(L, {address})"
    else:
        special = sorted({v >> _WINDOW_BITS for v in _WINDOWS.values() if v})
        found = " & ".join(f"({top} != {w.const(v, 'u8')})" for v in special)
    w.write(m.operands[0], found, "?")


def in_own_block(convoy: Any, address: Array) -> Array:
    """Whether shared addresses are in the window of the thread's own block of the cluster."""
    rank = convoy.machine.geometry.rank[convoy.lo : convoy.hi]
    own: Array = ((address & np.uint64(0xFFFF_FFFF)) >> np.uint64(CLUSTER_SHIFT)) == rank
    return own


@CHAPTER.form("mapa space=shared::cluster? t=u32|u64", 3)
def mapa(w: Writer, m: Matched) -> None:
    """The address of the same variable in another block of the cluster."""
    dtype = DTYPES[m["t"]]
    address, rank = w.read(m.operands[1], dtype), w.read(m.operands[2], "u4")
    kept = f"{address} & {w.const(~(0xFF << CLUSTER_SHIFT), dtype)}"
    shift = w.const(CLUSTER_SHIFT, dtype)
    w.write(m.operands[0], f"({kept}) | ({rank}.astype({dtype}) << {shift})", dtype)


@CHAPTER.form("getctarank space=shared::cluster? t=u32|u64", 2)
def getctarank(w: Writer, m: Matched) -> None:
    dtype = DTYPES[m["t"]]
    bits = f"{w.read(m.operands[1], dtype)} >> {w.const(CLUSTER_SHIFT, dtype)}"
    w.write(m.operands[0], f"(({bits}) & {w.const(0xFF, dtype)}).astype(u4)", "u4")
