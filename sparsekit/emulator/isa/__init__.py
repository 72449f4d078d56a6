"""The instruction table, one module per chapter of the PTX ISA."""

from sparsekit.emulator.isa import (
    async_copy,
    atomics,
    bulk_copy,
    collective,
    comparison,
    control,
    conversion,
    floating,
    half,
    hints,
    integer,
    launch_control,
    logic,
    mbarrier,
    memory,
    mma,
    movement,
    proxies,
    synchronisation,
    tcgen05_copy,
    tcgen05_memory,
    tcgen05_mma,
    tensor_copy,
    tensormap,
    warp_matrix,
    wgmma,
)
from sparsekit.emulator.table import Table

CHAPTERS = (
    integer, floating, half, comparison, logic, movement, conversion, memory, async_copy,
    collective, warp_matrix, mma, control, synchronisation,
    mbarrier, bulk_copy, tensor_copy, tensormap, proxies, wgmma, tcgen05_memory,
    tcgen05_copy, tcgen05_mma, launch_control, atomics, hints,
)  # fmt: skip

TABLE = Table(module.CHAPTER for module in CHAPTERS)
