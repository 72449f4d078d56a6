"""Executing loads and stores: addresses to elements of a memory, and back.

Loads ignore masks: a lane that does not take part reads something, which nobody looks at.
Accesses outside of all memory end the launch when the log is checked, so what they read or
overwrite meanwhile does not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.storage import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

_PACKED = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_WINDOW_SHIFT = np.uint64(40)


def load_shared(
    c: Convoy, address: Array, offset: int, size: int, count: int, mask: Array | None, kind: int,
    at: int,
) -> Array:  # fmt: skip
    """count elements of size bytes per lane: [lanes], or [count, lanes]. address: u4."""
    index = c.shared_index(address, offset)
    if c.log is not None:
        c.log.add("shared", kind, size * count, index, mask, False, c, at)
    return _gather(c, "shared", index >> c.shift_u4[size * count], size, count, mask, at)


def load_global(
    c: Convoy, address: Array, offset: int, size: int, count: int, mask: Array | None, kind: int,
    at: int,
) -> Array:  # fmt: skip
    """The same of global memory. address: u8."""
    index = c.global_index(address, offset)
    if c.log is not None:
        c.log.add("global", kind, size * count, index, mask, False, c, at)
    return _gather(c, "global", index >> c.shift_i8[size * count], size, count, mask, at)


def load_local(
    c: Convoy, address: Array, offset: int, size: int, count: int, mask: Array | None, kind: int,
    at: int,
) -> Array:  # fmt: skip
    """The same of a thread's own memory. address: u4 or u8."""
    index = c.local_index(address, offset)
    if c.log is not None:
        c.log.add("local", kind, size * count, index, mask, False, c, at)
    return _gather(c, "local", index >> c.shift_i8[size], size, 1, mask, at, count)


def load_params(
    c: Convoy, address: Array, offset: int, size: int, count: int, mask: Array | None, kind: int,
    at: int,
) -> Array:  # fmt: skip
    """The same of the kernel's parameters, by a computed address."""
    index = address.astype("i8") + offset
    end = c.machine.code.layout.param_bytes
    inside = (index >= 0) & (index + size * count <= end)
    if mask is not None:
        inside |= ~mask
    if np.count_nonzero(inside) != c.n:
        lane = int(inside.argmin())
        text = f"{size * count} bytes at {int(index[lane])} of {end} bytes of parameters"
        c.machine.fault("bounds", text, at, c.lo + lane)
    return _gather(c, "params", index // size, size, 1, mask, at, count)


def _gather(
    c: Convoy, space: str, index: Array, size: int, count: int, mask: Array | None, at: int,
    parts: int = 1,
) -> Array:  # fmt: skip
    """index: rows of the memory as rows of count elements; parts: how many rows in turn."""
    table = c.machine.storage.table(space, size, count)
    if parts > 1:
        index = (index + np.arange(parts)[:, None]).reshape(-1)
    try:
        if count == 1:
            found = table.take(index) if mask is None else table.take(index, mode="clip")
            return found.reshape(parts, -1) if parts > 1 else found
        return table.take(index, axis=0, mode="raise" if mask is None else "clip").T
    except IndexError:
        outside(c, at)
        return _gather(c, space, np.zeros_like(index), size, count, mask, at)


def outside(c: Convoy, at: int) -> None:
    """An access outside of all memory: the log's check names it."""
    if c.log is not None:
        c.log.flush()
    c.machine.findings.add(
        c.machine.geometry, "outside", "an access outside of all memory", at, c.lo
    )


def store_shared(
    c: Convoy, address: Array, offset: int, size: int, values: tuple[Array, ...],
    mask: Array | None, kind: int, at: int,
) -> None:  # fmt: skip
    """One or more elements (bits) of size bytes per lane."""
    index = c.shared_index(address, offset)
    lanes = None
    if mask is not None:
        lanes = mask.nonzero()[0]
        if not lanes.size:
            return
        index, values = index[lanes], tuple(v[lanes] for v in values)
    width = size * len(values)
    if c.log is not None:
        c.log.add("shared", kind, width, index, lanes, True, c, at, _kept(values, lanes))
    _scatter(c, "shared", index >> np.uint32(width.bit_length() - 1), size, values, at)


def _kept(values: tuple[Array, ...], lanes: Array | None) -> tuple[Array, ...]:
    """Values for the log: copies of what may be a register's storage."""
    return values if lanes is not None else tuple(v.copy() for v in values)


def store_global(
    c: Convoy, address: Array, offset: int, size: int, values: tuple[Array, ...],
    mask: Array | None, kind: int, at: int,
) -> None:  # fmt: skip
    """The same in global memory."""
    index = c.global_index(address, offset)
    lanes = None
    if mask is not None:
        lanes = mask.nonzero()[0]
        if not lanes.size:
            return
        index, values = index[lanes], tuple(v[lanes] for v in values)
    width = size * len(values)
    if c.log is not None:
        c.log.add("global", kind, width, index, lanes, True, c, at)
    _scatter(c, "global", index >> (width.bit_length() - 1), size, values, at)


def store_local(
    c: Convoy, address: Array, offset: int, size: int, values: tuple[Array, ...],
    mask: Array | None, kind: int, at: int,
) -> None:  # fmt: skip
    """The same in a thread's own memory."""
    index = c.local_index(address, offset)
    lanes = None
    if mask is not None:
        lanes = mask.nonzero()[0]
        index, values = index[lanes], tuple(v[lanes] for v in values)
    if c.log is not None:
        c.log.add("local", kind, size * len(values), index, lanes, True, c, at)
    for part, value in enumerate(values):
        _scatter(c, "local", (index >> (size.bit_length() - 1)) + part, size, (value,), at)


def _scatter(
    c: Convoy, space: str, index: Array, size: int, values: tuple[Array, ...], at: int
) -> None:
    """index: rows of the memory as rows of so many elements."""
    count = len(values)
    try:
        if count == 1:
            c.machine.storage.table(space, size, 1)[index] = values[0]
            return
        width = size * count
        packed = np.empty((index.size, count), values[0].dtype)
        for part, value in enumerate(values):
            packed[:, part] = value
        if width in _PACKED:
            flat: Array = packed.view(_PACKED[width]).reshape(-1)
            c.machine.storage.table(space, width, 1)[index] = flat
        else:
            c.machine.storage.table(space, size, count)[index] = packed
    except IndexError:
        outside(c, at)


# ---- generic addresses


def load_generic(
    c: Convoy, address: Array, offset: int, size: int, count: int, mask: Array | None, kind: int,
    at: int,
) -> Array:  # fmt: skip
    """The same of whatever memory each lane's address is in."""
    windows = _windows(c, address, offset, mask)
    if len(windows) == 1:
        (function, own) = windows[0][:2]
        result: Array = function(c, own, offset, size, count, mask, kind, at)
        return result
    shape = (c.n,) if count == 1 else (count, c.n)
    found = np.zeros(shape, c.machine.storage.table("global", size, 1).dtype)
    for function, own, lanes in windows:
        part = function(c, own, offset, size, count, lanes, kind, at)
        found = np.where(lanes, part, found)
    return found


def store_generic(
    c: Convoy, address: Array, offset: int, size: int, values: tuple[Array, ...],
    mask: Array | None, kind: int, at: int,
) -> None:  # fmt: skip
    """The same in whatever memory each lane's address is in."""
    stores = {load_global: store_global, load_shared: store_shared, load_local: store_local}
    windows = _windows(c, address, offset, mask)
    for function, own, lanes in windows:
        if function not in stores:
            c.machine.fault("bounds", "a store to the kernel's parameters", at, c.lo)
            continue
        chosen = mask if len(windows) == 1 else lanes
        stores[function](c, own, offset, size, values, chosen, kind, at)


def _windows(c: Convoy, address: Array, offset: int, mask: Array | None) -> list[Any]:
    """[(load function, address in its memory, lanes)] of the memories that the lanes address."""
    moved = address if offset == 0 else address + np.uint64(offset % (1 << 64))
    window = moved >> _WINDOW_SHIFT
    if mask is not None:
        window = np.where(mask, window, window[int(mask.argmax())])
    first = window[0]
    kinds = [first] if (window == first).all() else np.unique(window)
    found: list[Any] = []
    for kind in kinds:
        lanes = (window == kind) if mask is None else (window == kind) & mask
        base = int(kind) << int(_WINDOW_SHIFT)
        if base == SHARED_WINDOW:
            found.append((load_shared, address.astype("u4"), lanes))
        elif base == LOCAL_WINDOW:
            found.append((load_local, address - np.uint64(LOCAL_WINDOW), lanes))
        elif base == PARAM_WINDOW:
            found.append((load_params, address - np.uint64(PARAM_WINDOW), lanes))
        elif not any(f is load_global for f, _, _ in found):
            others = ~np.isin(window, _SPECIAL_WINDOWS)
            found.append((load_global, address, others if mask is None else others & mask))
    return found


def generic_windows(
    c: Convoy, space: str, address: Array, offset: int, mask: Array | None
) -> list[tuple[str, Array, Array]]:
    """[(memory, address in it, lanes)]: one for a named space, else by the generic address."""
    if space:
        return [(space, address, c.active(mask))]
    names = {load_global: "global", load_shared: "shared", load_local: "local"}
    return [
        (names.get(function, "global"), own, lanes)
        for function, own, lanes in _windows(c, address, offset, mask)
    ]


_SPECIAL_WINDOWS = np.array(
    [w >> int(_WINDOW_SHIFT) for w in (SHARED_WINDOW, LOCAL_WINDOW, PARAM_WINDOW)], np.uint64
)
