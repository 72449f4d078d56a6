"""Matrix operands in shared memory: where a descriptor says that each element is.

Source: PTX ISA, Asynchronous Warpgroup Level Matrix Shared Memory Layout; Matrix Descriptor. Rows
are those of M or N. K-major: 8 rows of a swizzle's span make an atom; MN-major: 8 columns of k do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.swizzle import swizzled
from sparsekit.emulator.tensor_map import SWIZZLES

_CORE_ROWS = 8
_CORE_BYTES = 16
_FIELD = 0x3FFF
_WARPGROUP_MODES = {0: "none", 1: "128B", 2: "64B", 3: "32B"}
_TENSOR_CORE_MODES = {0: "none", 1: "128B_atom_32B", 2: "128B", 4: "64B", 6: "32B"}
_TENSOR_CORE_VERSION = 1
_KEPT_PLACES = 512  # of some 30 KB


@dataclass(frozen=True)
class Operand:
    """A decoded descriptor. start, leading and stride: bytes. problem: why it cannot be used."""

    start: int
    leading: int
    stride: int
    swizzle: str
    problem: str = ""


@lru_cache(_KEPT_PLACES)
def warpgroup_operand(descriptor: int) -> Operand:
    """A descriptor of wgmma.mma_async."""
    problem = "a base offset is not modelled" if descriptor >> 49 & 7 else ""
    return _operand(descriptor, _WARPGROUP_MODES[descriptor >> 62 & 3], problem)


@lru_cache(_KEPT_PLACES)
def tensor_core_operand(descriptor: int) -> Operand:
    """A descriptor of tcgen05.mma and tcgen05.cp."""
    mode = _TENSOR_CORE_MODES.get(descriptor >> 61 & 7)
    problem = ""
    if descriptor >> 46 & 7 != _TENSOR_CORE_VERSION:
        problem = "the bits 46 to 48 of a descriptor for tcgen05 are 0b001"
    elif mode is None:
        problem = f"there is no swizzle mode {descriptor >> 61 & 7}"
    elif descriptor >> 49 & 7:
        problem = "a base offset is not modelled"
    elif descriptor >> 52 & 1:
        problem = "absolute leading dimension addresses are not modelled"
    return _operand(descriptor, mode or "none", problem)


def _operand(descriptor: int, mode: str, problem: str) -> Operand:
    start, leading, stride = ((descriptor >> shift & _FIELD) << 4 for shift in (0, 16, 32))
    return Operand(start, leading, stride, mode, problem)


@lru_cache(256)
def _offsets(
    leading: int, stride: int, span: int, rows: int, k: int, size: int, mn_major: bool
) -> Array:
    """[rows, k]: bytes from the start, before the swizzle."""
    r, c = np.arange(rows)[:, None], np.arange(k)[None]
    per_core = _CORE_BYTES // size
    if not mn_major:
        inside = r // _CORE_ROWS * stride + r % _CORE_ROWS * (span or _CORE_BYTES)
        if span:
            return inside + c * size
        return inside + c // per_core * leading + c % per_core * size
    if span:
        width = span // size
        across = r // width * leading + r % width * size
        return across + c // _CORE_ROWS * stride + c % _CORE_ROWS * span
    across = r // per_core * stride + r % per_core * size
    return across + c // _CORE_ROWS * leading + c % _CORE_ROWS * _CORE_BYTES


@lru_cache(_KEPT_PLACES)
def element_places(
    operand: Operand, base: int, rows: int, k: int, size: int, mn_major: bool
) -> Array:
    """[rows, k], i8: the place of each element in the machine's shared memory; read-only.

    base: the first place of the block's shared memory. size: bytes of an element. Kernels come back
    to the same few buffers.
    """
    span = SWIZZLES[operand.swizzle]
    offsets = _offsets(operand.leading, operand.stride, span, rows, k, size, mn_major)
    found = swizzled(offsets + (base + operand.start), operand.swizzle)
    found.flags.writeable = False
    return found


def chunks_of(places: Array, size: int, mn_major: bool) -> Array:
    """The 16-byte chunks that the elements are in."""
    step = _CORE_BYTES // size
    found: Array = (places[::step] if mn_major else places[:, ::step]).reshape(-1)
    return found & ~np.int64(_CORE_BYTES - 1)


@lru_cache(_KEPT_PLACES)
def matrix_chunks(
    operand: Operand, base: int, rows: int, k: int, size: int, mn_major: bool
) -> tuple[Array, Array]:
    """The same 16-byte chunks as bytes (u4) and as their numbers in memory (i8); read-only."""
    found = chunks_of(element_places(operand, base, rows, k, size, mn_major), size, mn_major)
    both = found.astype(np.uint32), found // _CORE_BYTES
    for vector in both:
        vector.flags.writeable = False
    return both


def read_matrix(
    memory: Array, numbers: Array, rows: int, size: int, mn_major: bool,
    decode: Callable[[Array], Array],
) -> Array:  # fmt: skip
    """[rows, k] f32 of a matrix whose chunks have these numbers. memory: as rows of 16 bytes."""
    chunks = memory.take(numbers, mode="clip")
    if not mn_major:
        return decode(chunks.view(np.uint32).reshape(rows, -1))
    step = _CORE_BYTES // size
    elements = chunks.view(f"u{size}").reshape(-(-rows // step), -1, step).transpose(0, 2, 1)
    return decode(np.ascontiguousarray(elements).reshape(-1, elements.shape[2])[:rows].view("u4"))
