"""The instruction table, one module per chapter of the PTX ISA."""

from sparsekit.emulator.isa import (
    async_copy,
    atomics,
    collective,
    comparison,
    control,
    conversion,
    floating,
    half,
    hints,
    integer,
    logic,
    memory,
    mma,
    movement,
    synchronisation,
    warp_matrix,
)
from sparsekit.emulator.table import Table

CHAPTERS = (
    integer, floating, half, comparison, logic, movement, conversion, memory, async_copy,
    collective, warp_matrix, mma, control, synchronisation, atomics, hints,
)  # fmt: skip

TABLE = Table(module.CHAPTER for module in CHAPTERS)
