"""Swizzles of shared memory: 16-byte chunks of a row change places with the row's number.

Source: PTX ISA, Tensors, Swizzling Modes. They work on absolute addresses, so that a tile may start
anywhere in a pattern.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array

_CHUNK_BITS = 4
_PATTERNS = {
    # by mode: (how far right the row bits are moved, which of them count, how far left again)
    "32B": (7, 1, 4), "64B": (7, 3, 4), "128B": (7, 7, 4), "128B_atom_32B": (7, 3, 5),
}  # fmt: skip


def swizzled(address: Array, mode: str) -> Array:
    """Where the bytes of unswizzled addresses are."""
    if mode == "none":
        return address
    right, bits, left = _PATTERNS[mode]
    kind = address.dtype.type
    moved: Array = address ^ (((address >> kind(right)) & kind(bits)) << kind(left))
    return moved


def chunk_addresses(start: int, count: int) -> Array:
    """The addresses of so many 16-byte chunks in a row, i8."""
    return start + (np.arange(count, dtype=np.int64) << _CHUNK_BITS)
