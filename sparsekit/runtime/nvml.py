"""What NVML tells of a GPU while it works: clocks, power, why it is held down, who else is there.

Source: NVML API reference, nvmlClocksEventReasons and device queries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sparsekit.errors import first_line
from sparsekit.model.bench import Reading

# nvmlClocksEventReason bits; "idle" is no restraint and is left out.
_REASONS = {
    0x002: "application clocks", 0x004: "software power cap", 0x008: "hardware slowdown",
    0x010: "sync boost", 0x020: "software thermal slowdown", 0x040: "hardware thermal slowdown",
    0x080: "hardware power brake", 0x100: "display clocks", 0x200: "board limit",
    0x400: "reliability",
}  # fmt: skip
_SM_CLOCK, _GPU_SENSOR = 1, 0


class Watch:
    """Readings of one GPU. problem: why there are none, else None; then every reading is empty.

    nvml: the library, handed in by a test. Made before the process uses the GPU, so that a process
    that is there already is somebody else's.
    """

    def __init__(self, pci_bus_id: str, nvml: Any = None) -> None:
        self.problem: str | None = None
        self._nvml, self._handle = nvml, None
        try:
            if nvml is None:
                from cuda.bindings import nvml as library

                self._nvml = library
            self._nvml.init_v2()
            self._handle = self._nvml.device_get_handle_by_pci_bus_id_v2(pci_bus_id)
        except Exception as error:  # the bindings raise their own kinds, and an old one has no nvml
            self.problem = f"no clocks, power or throttle reasons: {first_line(error)}"
        self._before = self._processes()

    def read(self) -> Reading:
        """Clock, power, temperature and restraints now; None for what this GPU does not tell."""
        if self._handle is None:
            return Reading()
        nvml, handle = self._nvml, self._handle
        power_mw = _told(lambda: nvml.device_get_power_usage(handle))
        mask = _told(lambda: nvml.device_get_current_clocks_event_reasons(handle)) or 0
        return Reading(
            sm_clock_mhz=_told(lambda: nvml.device_get_clock_info(handle, _SM_CLOCK)),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=_told(lambda: nvml.device_get_temperature_v(handle, _GPU_SENSOR)),
            reasons=tuple(name for bit, name in _REASONS.items() if mask & bit),
        )

    def others(self) -> tuple[str, ...]:
        """Other processes that compute on the GPU now, as `NAME (PID)`.

        Inside a container our own process may bear a number that it does not know: the first one
        that came since the watch began is then taken for it.
        """
        now, own = self._processes(), os.getpid()
        there = [pid for pid in now if pid in self._before and pid != own]
        come = [pid for pid in now if pid not in self._before and pid != own]
        if own not in now:
            come = come[1:]
        return tuple(f"{self._name(pid)} ({pid})" for pid in (*there, *come))

    def _processes(self) -> tuple[int, ...]:
        if self._handle is None:
            return ()
        nvml, handle = self._nvml, self._handle
        found = _told(lambda: nvml.device_get_compute_running_processes_v3(handle))
        if found is None:
            return ()
        return tuple(sorted(int(p.pid) for p in found))

    def _name(self, pid: int) -> str:
        nvml = self._nvml
        return _told(lambda: str(nvml.system_get_process_name(pid))) or "a process"


def _told(ask: Callable[[], Any]) -> Any:
    """The answer, or None where the GPU or the driver does not give it."""
    try:
        return ask()
    except Exception:  # NVML's own kinds, one per reason
        return None
