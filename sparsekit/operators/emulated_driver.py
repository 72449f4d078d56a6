"""The emulator as a device: loads PTX, launches it on the CPU, and keeps what was found."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparsekit.emulator import (
    SM_COUNT,
    FaultError,
    HostMemory,
    Launches,
    Memory,
    Piece,
    Report,
    Schedule,
    TensorMap,
    load,
)
from sparsekit.errors import GpuError
from sparsekit.model.arch import SHARED_BYTES_OPTIN, Arch, Capability
from sparsekit.model.call import Device
from sparsekit.model.tensor_map import MapFacts
from sparsekit.runtime.driver import KernelHandle
from sparsekit.runtime.tensors import placement


@dataclass(frozen=True)
class Launched:
    """A launch that was made. reused: the report is of an earlier one, of like code and data."""

    report: Report
    reused: bool


@dataclass(frozen=True)
class _Config:
    grid: tuple[int, ...]
    threads: int
    cluster: tuple[int, ...]
    shared_bytes: int


class _Call(threading.local):
    """What a thread's call has placed and launched."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.host: HostMemory | None = None
        self.launched: list[Launched] = []


class EmulatedDriver:
    """A device of one arch on the CPU, as `runtime.device_driver.DeviceDriver` wants it.

    capability: what it stands for; only: the one target that it runs, None for the best of each
    kernel. checks: names from `emulator.CHECKS` and `STRICT_CHECKS`, None for the former.
    schedule: may be changed between calls. launches: where known launches are kept, if they are.
    Safe to use from several threads.
    """

    torch_type: Literal["cpu"] = "cpu"
    runs: Literal["ptx"] = "ptx"

    def __init__(
        self, capability: Capability, only: Arch | None = None, *,
        checks: Iterable[str] | None = None, launches: Launches | None = None,
    ) -> None:  # fmt: skip
        self._facts = Device(
            capability, SM_COUNT, SHARED_BYTES_OPTIN[capability], name="emulated", only=only
        )
        self.schedule = Schedule()
        self._call = _Call()
        self._checks = None if checks is None else tuple(sorted(checks))
        self._launches = launches

    @property
    def launched(self) -> list[Launched]:
        """The launches of this thread's last call."""
        return self._call.launched

    def device(self, index: int) -> Device:
        if index:
            raise GpuError(f"there is one CPU to emulate on, found cpu:{index}")
        return self._facts

    def load(self, image: bytes, entry: str, what: str) -> KernelHandle:
        text = image.rstrip(b"\0").decode()
        code, _ = load(text).prepared(entry)
        offsets = [code.layout.param[p.name] for p in code.entry.params]
        return KernelHandle((text, entry), what, tuple(offsets))

    def allow_shared(self, kernel: KernelHandle, dynamic_bytes: int, device: int) -> None:
        """The build has checked it against the arch."""

    def addresses(self, tensors: Mapping[str, Any], written: frozenset[str]) -> dict[str, int]:
        call = self._call
        call.launched, call.memory = [], Memory()
        places = {name: placement(tensor) for name, tensor in tensors.items()}
        pieces = [
            Piece(n, p.storage_address, p.offset_bytes, p.span_bytes, n in written, p.lines)
            for n, p in places.items()
        ]
        call.host = HostMemory(call.memory, pieces)
        return call.host.addresses

    def tensor_map(self, facts: MapFacts, address: int) -> bytes:
        return TensorMap(
            address, facts.dtype, facts.dims, facts.box, facts.stride_bytes, swizzle=facts.swizzle
        ).packed()

    def launch_config(
        self, grid: Sequence[int], threads: int, cluster: Sequence[int] | None, shared_bytes: int,
        stream: int,
    ) -> _Config:  # fmt: skip
        return _Config(tuple(grid), threads, tuple(cluster or (1, 1, 1)), shared_bytes)

    def launch(self, config: Any, kernel: KernelHandle, cells: Sequence[Any], what: str) -> None:
        """Raises FaultError where a fault has ended the launch: nothing can follow it."""
        text, entry = kernel.handle
        params = _packed(cells, kernel.params)
        options = {
            "shared_bytes": config.shared_bytes, "cluster": config.cluster,
            "schedule": self.schedule, "checks": self._checks,
        }  # fmt: skip
        launches = self._launches or Launches()
        report, reused = launches.launch(
            text, entry, config.grid, config.threads, params, self._call.memory, **options
        )
        self.launched.append(Launched(report, reused))
        if report.stopped:
            self.finish()

    def finish(self) -> None:
        """Raises FaultError when the launches had faults, results being in place."""
        call = self._call
        if call.host is not None:
            call.host.copy_out()
        call.host, call.memory = None, Memory()
        faults = tuple(f for done in self.launched for f in done.report.faults)
        if faults:
            raise FaultError(faults, stopped=any(d.report.stopped for d in self.launched))


def _packed(cells: Sequence[Any], params: Sequence[tuple[int, int]]) -> bytes:
    """The parameter buffer from ctypes values, as the driver API would copy them."""
    buffer = bytearray(max((offset + size for offset, size in params), default=0))
    for cell, (offset, size) in zip(cells, params, strict=True):
        buffer[offset : offset + size] = ctypes.string_at(ctypes.addressof(cell), size)
    return bytes(buffer)
