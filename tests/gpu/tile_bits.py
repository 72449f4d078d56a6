"""Matrices of small elements: values to bits and back, by torch and numpy and not by the emulator.

A matrix of bits is uint32, one element each. kinds are PTX's names of element types.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

SIZES: Mapping[str, int] = {
    "bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "f32": 4, "s32": 4,
}  # fmt: skip
"""Bytes of an element."""
INTEGERS = ("s8", "u8", "s32")
FP8 = ("e4m3", "e5m2")
TF32_BITS = np.uint32(0xFFFF_E000)
_TORCH = {
    "bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}  # fmt: skip
_CELLS = {1: torch.uint8, 2: torch.int16}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def encode(values: np.ndarray, kind: str) -> np.ndarray:
    """Doubles as bits of the type, rounded to nearest; tf32: with the low bits cut off."""
    if kind in INTEGERS:
        mask = (1 << 8 * SIZES[kind]) - 1
        return (values.astype(np.int64) & mask).astype(np.uint32)
    single = np.ascontiguousarray(values, np.float32)
    if kind in ("f32", "tf32"):
        bits = single.view(np.uint32)
        return bits & TF32_BITS if kind == "tf32" else bits
    narrow = torch.from_numpy(single).to(_TORCH[kind])
    found = narrow.view(_CELLS[SIZES[kind]]).numpy()
    return found.view(_UNSIGNED[SIZES[kind]]).astype(np.uint32)


def decode(bits: np.ndarray, kind: str) -> np.ndarray:
    """Bits of the type as doubles."""
    if kind in INTEGERS:
        signed = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}[kind]
        return bits.astype(_UNSIGNED[SIZES[kind]]).view(signed).astype(np.float64)
    if kind in ("f32", "tf32"):
        return np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
    cells = np.ascontiguousarray(bits.astype(_UNSIGNED[SIZES[kind]]))
    signed = torch.from_numpy(cells.view(np.int16 if SIZES[kind] == 2 else np.uint8))
    return signed.view(_TORCH[kind]).to(torch.float64).numpy()


def words(bits: np.ndarray, kind: str) -> np.ndarray:
    """[..., n] elements packed into 32-bit words [..., n size / 4], the first lowest."""
    packed: np.ndarray = np.ascontiguousarray(bits.astype(_UNSIGNED[SIZES[kind]])).view(np.uint32)
    return packed


def elements(packed: np.ndarray, kind: str) -> np.ndarray:
    """The elements of 32-bit words, the reverse of `words`."""
    found: np.ndarray = np.ascontiguousarray(packed).view(_UNSIGNED[SIZES[kind]])
    return found.astype(np.uint32)
