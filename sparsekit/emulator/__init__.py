"""PTX on the CPU: runs any kernel from its PTX, with numpy, and finds what is wrong with it."""

from sparsekit.emulator.faults import (
    CHECKS,
    STRICT_CHECKS,
    Fault,
    FaultError,
    Report,
    Uncovered,
    UnsupportedError,
)
from sparsekit.emulator.host import Program, launch, load, pack_values
from sparsekit.emulator.memory import Allocation, Memory
from sparsekit.emulator.schedule import Schedule

__all__ = [
    "CHECKS",
    "STRICT_CHECKS",
    "Allocation",
    "Fault",
    "FaultError",
    "Memory",
    "Program",
    "Report",
    "Schedule",
    "Uncovered",
    "UnsupportedError",
    "launch",
    "load",
    "pack_values",
]
