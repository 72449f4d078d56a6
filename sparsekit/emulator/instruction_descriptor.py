"""Instruction descriptors of tcgen05.mma: types, signs, transpositions, and extents.

Source: PTX ISA, TensorCore 5th Generation, Instruction Descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass

_RESULTS = {0: "f16", 1: "f32", 2: "s32"}
_TYPES = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2"},
}
_SPARSE_OR_SATURATING = 0b1100
_MOST_COLUMNS = 256


@dataclass(frozen=True)
class Instruction:
    """A decoded descriptor. problem: why it cannot be executed; fault: whether that is an error."""

    a: str
    b: str
    sign: int
    transpose_a: bool
    transpose_b: bool
    m: int
    n: int
    problem: str = ""
    fault: bool = False


def decode(bits: int, kind: str, groups: int, *, weight_stationary: bool) -> Instruction:
    """kind: f16, tf32 or f8f6f4; groups: 1 or 2 blocks."""
    types = _TYPES[kind]
    a, b = types.get(bits >> 7 & 7, ""), types.get(bits >> 10 & 7, "")
    m, n = (bits >> 24 & 31) * 16, (bits >> 17 & 63) * 8
    problem, fault = "", False
    if bits & _SPARSE_OR_SATURATING or bits & 3:
        problem = "sparse or saturating products are not modelled"
    elif not a or not b:
        problem = f"element types {bits >> 7 & 7} and {bits >> 10 & 7} of kind::{kind}"
    elif _RESULTS.get(bits >> 4 & 3) != "f32":
        problem = f"results {_RESULTS.get(bits >> 4 & 3)} in tensor memory are not modelled"
    elif weight_stationary and bits >> 30:
        problem = "shifts of B are not modelled"
    elif text := _extents(m, n, groups, weight_stationary):
        problem, fault = text, True
    sign = (-1) ** ((bits >> 13 & 1) + (bits >> 14 & 1))
    return Instruction(a, b, sign, bool(bits >> 15 & 1), bool(bits >> 16 & 1), m, n, problem, fault)


def _extents(m: int, n: int, groups: int, weight_stationary: bool) -> str:
    if weight_stationary:
        good = m in (32, 64, 128) and n in (64, 128, 256)
    elif groups == 2:
        good = m in (128, 256) and n % 16 == 0
    else:
        good = (m == 64 and n % 8 == 0) or (m == 128 and n % 16 == 0)
    if good and 0 < n <= _MOST_COLUMNS:
        return ""
    return f"a product of {m} x {n} by {groups} block{'s' if groups == 2 else ''}"
