"""The watch over a GPU, against a fake NVML."""

from __future__ import annotations

import os
from types import SimpleNamespace

from sparsekit.model.bench import Reading
from sparsekit.runtime.nvml import Watch


class FakeNvml:
    def __init__(self, mask=0, pids=(), lacks=()):
        self.mask, self.pids, self.lacks = mask, list(pids), set(lacks)

    def init_v2(self):
        self._ask("init_v2")

    def _ask(self, name):
        if name in self.lacks:
            raise RuntimeError(f"{name}: not supported\nmore")

    def device_get_handle_by_pci_bus_id_v2(self, bus):
        assert bus == "0000:18:00.0"
        return 7

    def device_get_power_usage(self, handle):
        self._ask("power")
        return 312_500

    def device_get_current_clocks_event_reasons(self, handle):
        self._ask("reasons")
        return self.mask

    def device_get_clock_info(self, handle, kind):
        assert kind == 1
        return 1755

    def device_get_temperature_v(self, handle, sensor):
        return 61

    def device_get_compute_running_processes_v3(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def system_get_process_name(self, pid):
        self._ask("name")
        return f"prog{pid}"


def watch(nvml):
    return Watch("0000:18:00.0", nvml)


def test_readings():
    found = watch(FakeNvml(mask=0x1 | 0x4 | 0x20)).read()
    assert found == Reading(1755, 312.5, 61, ("software power cap", "software thermal slowdown"))


def test_what_the_gpu_does_not_tell_is_none():
    found = watch(FakeNvml(lacks={"power", "reasons"})).read()
    assert found.power_w is None
    assert found.reasons == ()
    assert found.sm_clock_mhz == 1755


def test_without_nvml_everything_is_unknown_and_the_reason_is_told():
    found = watch(FakeNvml(lacks={"init_v2"}))
    assert found.problem == "no clocks, power or throttle reasons: init_v2: not supported"
    assert found.read() == Reading()
    assert found.others() == ()


def test_other_processes_are_named_and_we_are_not_one_of_them():
    nvml = FakeNvml(pids=[11])
    seen = watch(nvml)
    nvml.pids = [11, os.getpid(), 13]
    assert seen.others() == ("prog11 (11)", "prog13 (13)")


def test_we_are_not_a_stranger_even_where_the_watch_began_late():
    seen = watch(FakeNvml(pids=[os.getpid(), 11]))
    assert seen.others() == ("prog11 (11)",)


def test_in_a_container_our_own_number_is_not_known():
    nvml = FakeNvml(pids=[11], lacks={"name"})
    seen = watch(nvml)
    nvml.pids = [11, 4_000_001]
    assert seen.others() == ("a process (11)",)
