"""What ncu calls what we want to know, per chip.

Source: names read from libnvperf_host 13.5 per chip; stall reasons as in ncu's WarpStateStats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sparsekit.model.arch import Capability

# How the launches of one call are put together: added, or averaged by their durations.
Joined = Literal["added", "averaged"]
STALL_PREFIX, STALL_SUFFIX = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction",
    "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_CHIPS: dict[Capability, str] = {
    (8, 0): "ga100", (8, 6): "ga102", (8, 9): "ad102", (9, 0): "gh100", (10, 0): "gb100",
    (10, 3): "gb110", (12, 0): "gb202",
}  # fmt: skip
_DRAM_OPS = ((12, 0), (12, 1))  # where DRAM counters bear `op`


@dataclass(frozen=True)
class Metric:
    """One of ncu's metrics. joined: over the launches of a call."""

    name: str
    joined: Joined = "added"

    @property
    def counter(self) -> str:
        """The name without its roll-up, as `--query-metrics` lists it."""
        return self.name.partition(".")[0]


def metrics_for(capability: Capability) -> dict[str, Metric]:
    """The metrics of that compute capability by our names; stalls as `stall REASON`."""
    dram = "dram__bytes_op" if capability in _DRAM_OPS else "dram__bytes"
    found = {
        "duration_s": Metric("gpu__time_duration.sum"),
        "tensor_cycles": Metric("sm__pipe_tensor_cycles_active.avg"),
        "tensor_percent": Metric(
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "averaged"
        ),
        "dram_read_bytes": Metric(f"{dram}_read.sum"),
        "dram_write_bytes": Metric(f"{dram}_write.sum"),
        "l2_bytes": Metric("lts__t_bytes.sum"),
        "global_loads": Metric("smsp__sass_inst_executed_op_global_ld.sum"),
        "cp_async": Metric("smsp__sass_inst_executed_op_ldgsts.sum"),
        "bank_conflicts": Metric("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        "occupancy_percent": Metric(
            "sm__warps_active.avg.pct_of_peak_sustained_active", "averaged"
        ),
    }
    if capability >= (9, 0):
        found["tma_loads"] = Metric("smsp__sass_inst_executed_op_tma_ld.sum")
    for reason in STALLS:
        found[f"stall {reason}"] = Metric(f"{STALL_PREFIX}{reason}{STALL_SUFFIX}", "averaged")
    return found


def chip_of(capability: Capability) -> str | None:
    """ncu's name of the chip; None for one that we do not know."""
    return _CHIPS.get(capability)


def known_metrics(
    wanted: Mapping[str, Metric], counters: frozenset[str]
) -> tuple[dict[str, Metric], tuple[str, ...]]:
    """What of the metrics the profiler lists for the chip, and our names of the rest.

    counters: as `--query-metrics` lists them; empty when it could not be asked, and all are kept.
    """
    if not counters:
        return dict(wanted), ()
    kept = {name: m for name, m in wanted.items() if m.counter in counters}
    return kept, tuple(name for name in wanted if name not in kept)
