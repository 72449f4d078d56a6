"""Packing arguments to a kernel's own parameter table, and launching.

A promise that the compiler was given is checked against the actual value each time; a value that
does not fit its parameter is refused, never truncated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from sparsekit.errors import ArgumentError, ArgumentTypeError, GpuError
from sparsekit.model.artifact import EntryRecord, Param
from sparsekit.runtime.driver import Driver
from sparsekit.runtime.loader import Loaded

_INTEGERS: dict[str, tuple[Any, int, int]] = {
    "i1": (ctypes.c_uint8, 0, 1), "i8": (ctypes.c_int8, -(2**7), 2**7 - 1),
    "u8": (ctypes.c_uint8, 0, 2**8 - 1), "i16": (ctypes.c_int16, -(2**15), 2**15 - 1),
    "u16": (ctypes.c_uint16, 0, 2**16 - 1), "i32": (ctypes.c_int32, -(2**31), 2**31 - 1),
    "u32": (ctypes.c_uint32, 0, 2**32 - 1), "i64": (ctypes.c_int64, -(2**63), 2**63 - 1),
    "u64": (ctypes.c_uint64, 0, 2**64 - 1),
}  # fmt: skip
_FLOATS: dict[str, Any] = {"fp32": ctypes.c_float, "fp64": ctypes.c_double}
MAX_GRID = (2**31 - 1, 65535, 65535)


def launch(
    driver: Driver, loaded: Loaded, grid: Sequence[int], values: Mapping[str, int | float],
    stream: int,
) -> None:  # fmt: skip
    """Launch one entry. values: every parameter by name, pointers as addresses.

    Raises ArgumentError for a broken promise or a value out of range, GpuError for a grid that no
    GPU takes or a launch that the driver refuses.
    """
    record = loaded.record
    check_grid(record.entry, grid)
    check_promises(record, values)
    cells = [_cell(record.entry, param, values) for param in record.params]
    driver.launch(
        loaded.handle, grid, record.threads, record.cluster, record.dynamic_shared_bytes, stream,
        cells, f"launching {record.entry} with grid {tuple(grid)}",
    )  # fmt: skip


def check_grid(entry: str, grid: Sequence[int]) -> None:
    for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
        if not 1 <= size <= limit:
            raise GpuError(f"{entry}: grid {tuple(grid)} has {axis} outside [1, {limit}]")


def check_promises(record: EntryRecord, values: Mapping[str, int | float]) -> None:
    """Raise ArgumentError naming the first argument of which too much was promised."""
    for promise in record.promises:
        value = values.get(promise.arg, 0)
        if int(value) % promise.divisible_by:
            raise ArgumentError(
                f"{record.entry}: {promise.arg} must be a multiple of {promise.divisible_by} as "
                f"compiled, found {value}; nothing was launched"
            )


def _cell(entry: str, param: Param, values: Mapping[str, int | float]) -> Any:
    if param.name not in values:
        raise ArgumentTypeError(f"{entry} takes {param.name} ({param.type}), and it was not given")
    value = values[param.name]
    if param.type.startswith("*"):
        return ctypes.c_void_p(int(value))
    if param.type in _FLOATS:
        return _FLOATS[param.type](value)
    if param.type not in _INTEGERS:
        raise ArgumentTypeError(f"{entry}: parameters of type {param.type} cannot be passed yet")
    if not isinstance(value, int):
        raise ArgumentTypeError(f"{entry}: {param.name} is {param.type}, found {value!r}")
    kind, low, high = _INTEGERS[param.type]
    if not low <= value <= high:
        raise ArgumentError(
            f"{entry}: {param.name} = {value} does not fit its type {param.type} "
            f"([{low}, {high}]); nothing was launched"
        )
    return kind(value)
