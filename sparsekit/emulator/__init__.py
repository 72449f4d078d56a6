"""PTX on the CPU: runs any kernel from its PTX, with numpy, and finds what is wrong with it.

    memory = Memory()
    x = memory.allocate(numpy.arange(1024, dtype="f4"), "x")
    y = memory.allocate(4096, "y")                      # 4096 bytes that nobody has written
    report = launch(load(ptx_text), "scale", (8, 1, 1), 128, [x, y, 2.0, 1024], memory)
    report.raise_faults()
    result = memory.read(y, "f4")

A TensorMap goes where a kernel takes one: as a parameter, or packed() in memory. Asynchronous
operations (copies, bulk and tensor copies, products of tensor cores) take effect when the schedule
says so; what orders them is checked under every schedule alike.

What it cannot see: what ptxas makes of the PTX; weak memory beyond races, missing fences and the
order that barriers make; timing; paths that the inputs do not take (the report names them); races
between the lanes of one warp; between warps of a block in global memory; the order and rounding of
sums in tensor cores and of approximate functions, which are within the ISA's bounds, not to the
bit; and what emulator and kernel get wrong alike. An mbarrier knows arrivals by warp, wgmma by
warpgroup. Not modelled, and refused with their PTX line: im2col and interleaved tensor copies,
sub-byte elements, sparse and block-scaled products, results in f16 in tensor memory,
tcgen05.shift, base offsets of matrix descriptors.
"""

from sparsekit.emulator.faults import (
    CHECKS,
    STRICT_CHECKS,
    Fault,
    FaultError,
    Report,
    Uncovered,
    UnsupportedError,
    chosen_checks,
)
from sparsekit.emulator.geometry import SM_COUNT
from sparsekit.emulator.host import Program, launch, load
from sparsekit.emulator.host_memory import HostMemory, Piece, is_wide, require_room
from sparsekit.emulator.memory import Allocation, Memory, sparse_zeros
from sparsekit.emulator.reuse import Launches
from sparsekit.emulator.schedule import Schedule
from sparsekit.emulator.tensor_map import TensorMap

__all__ = [
    "CHECKS",
    "SM_COUNT",
    "STRICT_CHECKS",
    "Allocation",
    "Fault",
    "FaultError",
    "HostMemory",
    "Launches",
    "Memory",
    "Piece",
    "Program",
    "Report",
    "Schedule",
    "TensorMap",
    "Uncovered",
    "UnsupportedError",
    "chosen_checks",
    "is_wide",
    "launch",
    "load",
    "require_room",
    "sparse_zeros",
]
