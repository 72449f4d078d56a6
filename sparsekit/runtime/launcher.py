"""Packing arguments to a kernel's own parameter table, and launching.

What does not change between calls is packed once. A promise that the compiler was given is checked
against the actual value of every call; a value that does not fit its parameter is refused, never
truncated.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sparsekit.errors import ArgumentError, ArgumentTypeError, GpuError
from sparsekit.model.artifact import EntryRecord, Param
from sparsekit.model.tensor_map import MAP_BYTES, MapFacts, is_map
from sparsekit.runtime.device_driver import DeviceDriver
from sparsekit.runtime.loader import Loaded

_INTEGERS: dict[str, tuple[Any, int, int]] = {
    "i1": (ctypes.c_uint8, 0, 1), "i8": (ctypes.c_int8, -(2**7), 2**7 - 1),
    "u8": (ctypes.c_uint8, 0, 2**8 - 1), "i16": (ctypes.c_int16, -(2**15), 2**15 - 1),
    "u16": (ctypes.c_uint16, 0, 2**16 - 1), "i32": (ctypes.c_int32, -(2**31), 2**31 - 1),
    "u32": (ctypes.c_uint32, 0, 2**32 - 1), "i64": (ctypes.c_int64, -(2**63), 2**63 - 1),
    "u64": (ctypes.c_uint64, 0, 2**64 - 1),
}  # fmt: skip
_FLOATS: dict[str, tuple[Any, str]] = {
    "fp32": (ctypes.c_float, "<f"), "fp64": (ctypes.c_double, "<d"),
}  # fmt: skip
MAX_GRID = (2**31 - 1, 65535, 65535)
_KEPT_STREAMS = 64
_KEPT_MAPS = 64


class BoundLaunch:
    """One launch of a loaded entry with everything fixed but the addresses and the stream.

    numbers: the values of scalar parameters by name. pointers: for each pointer parameter the name
    of the tensor that it gets, and for each tensor map that of the tensor that it is of. maps: of
    tensor maps all but the address; None of a tensor without elements.
    Raises ArgumentError for a broken promise or a value out of range,
    GpuError for a grid that no GPU takes. Safe to use from several threads.
    """

    def __init__(
        self, driver: DeviceDriver, loaded: Loaded, grid: Sequence[int],
        numbers: Mapping[str, int | float], pointers: Mapping[str, str],
        maps: Mapping[str, MapFacts | None] | None = None,
    ) -> None:  # fmt: skip
        record = loaded.record
        check_grid(record.entry, grid)
        check_promises(record, numbers)
        promised = {p.arg: p.divisible_by for p in record.promises}
        self._driver, self._loaded = driver, loaded
        self._grid = tuple(grid)
        self._what = f"launching {record.entry} with grid {self._grid}"
        self._configs: dict[int, Any] = {}
        self._cells: list[Any] = []
        self._slots: list[tuple[int, str, Param, int]] = []
        self._maps = dict(maps or {})
        self._map_cells: dict[tuple[str, int], Any] = {}
        for index, param in enumerate(record.params):
            if param.type.startswith("*") or is_map(param.type):
                tensor = pointers.get(param.name, param.name)
                self._slots.append((index, tensor, param, promised.get(param.name, 1)))
                self._cells.append(None)
            else:
                self._cells.append(_cell(record.entry, param, numbers))

    @property
    def record(self) -> EntryRecord:
        return self._loaded.record

    def __call__(self, addresses: Mapping[str, int], stream: int) -> None:
        """Launch on the stream. addresses: by tensor name; one that is absent is null."""
        cells = self._cells.copy()
        for index, tensor, param, divisor in self._slots:
            address = addresses.get(tensor, 0)
            if address % divisor:
                raise _broken_promise(self.record.entry, param.name, divisor, address)
            if is_map(param.type):
                cells[index] = self._map_cell(param.name, address)
            else:
                cells[index] = ctypes.c_void_p(address)
        config = self._configs.get(stream) or self._new_config(stream)
        self._driver.launch(config, self._loaded.handle, cells, self._what)

    def _map_cell(self, name: str, address: int) -> Any:
        """The map at that address; none, which is 128 zero bytes, of a tensor without elements."""
        found = self._map_cells.get((name, address))
        if found is None:
            if len(self._map_cells) >= _KEPT_MAPS:
                self._map_cells.clear()
            facts = self._maps[name]
            data = bytes(MAP_BYTES) if facts is None else self._driver.tensor_map(facts, address)
            found = (ctypes.c_uint8 * MAP_BYTES).from_buffer_copy(data)
            self._map_cells[name, address] = found
        return found

    def _new_config(self, stream: int) -> Any:
        record = self.record
        if len(self._configs) >= _KEPT_STREAMS:
            self._configs.clear()
        config = self._driver.launch_config(
            self._grid, record.threads, record.cluster, record.dynamic_shared_bytes, stream
        )
        self._configs[stream] = config
        return config


def check_grid(entry: str, grid: Sequence[int]) -> None:
    for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
        if not 1 <= size <= limit:
            raise GpuError(f"{entry}: grid {tuple(grid)} has {axis} outside [1, {limit}]")


def check_promises(record: EntryRecord, values: Mapping[str, int | float]) -> None:
    """Raise ArgumentError naming the first value of which too much was promised."""
    for promise in record.promises:
        value = int(values.get(promise.arg, 0))
        if value % promise.divisible_by:
            raise _broken_promise(record.entry, promise.arg, promise.divisible_by, value)


def _broken_promise(entry: str, arg: str, divisor: int, value: int) -> ArgumentError:
    return ArgumentError(
        f"{entry}: {arg} must be a multiple of {divisor} as compiled, found {value}; nothing was "
        "launched"
    )


def _cell(entry: str, param: Param, values: Mapping[str, int | float]) -> Any:
    if param.name not in values:
        raise ArgumentTypeError(f"{entry} takes {param.name} ({param.type}), and it was not given")
    value = values[param.name]
    if param.type in _FLOATS:
        return _float_cell(entry, param, value)
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


def _float_cell(entry: str, param: Param, value: Any) -> Any:
    """inf and NaN pass when they are given; a finite number must stay one."""
    if not isinstance(value, (int, float)):
        raise ArgumentTypeError(f"{entry}: {param.name} is {param.type}, found {value!r}")
    kind, layout = _FLOATS[param.type]
    try:
        struct.pack(layout, float(value))
    except OverflowError:
        raise ArgumentError(
            f"{entry}: {param.name} = {value!r} does not fit its type {param.type}; nothing was "
            "launched"
        ) from None
    return kind(value)
