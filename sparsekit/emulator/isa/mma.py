"""PTX ISA, Warp-Level Matrix Instructions: mma.sync.

Fragments, lane l, g = l / 4, t = l % 4, in 32-bit words of a row of A or of a column of B:
  A  register i: row g + 8 (i % 2), word t + 4 (i / 2)     B  register i: column g, word t + 4 i
  C  element i: row g + 8 (i / 2), column 2 t + i % 2
which holds for all element types alike. Products are summed in single precision, in no order that
is promised; a GPU rounds in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.numeric.narrow import E4M3, E5M2, decode
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer, elements_of

CHAPTER = Chapter("Warp-Level Matrix Instructions: mma")
_TF32_BITS = np.uint32(0xFFFF_E000)


def _bf16(words: Array) -> Array:
    halves = np.empty((*words.shape, 2), np.uint32)
    np.left_shift(words, np.uint32(16), out=halves[..., 0])
    np.bitwise_and(words, np.uint32(0xFFFF_0000), out=halves[..., 1])
    return halves.view(np.float32).reshape(*words.shape[:-1], -1)


def _f16(words: Array) -> Array:
    return words.view(np.float16).astype(np.float32)


def _tf32(words: Array) -> Array:
    return (words & _TF32_BITS).view(np.float32)


def _e4m3(words: Array) -> Array:
    return decode(words.view(np.uint8), E4M3).astype(np.float32)


def _e5m2(words: Array) -> Array:
    return decode(words.view(np.uint8), E5M2).astype(np.float32)


def _s8(words: Array) -> Array:
    return words.view(np.int8).astype(np.float32)


def _u8(words: Array) -> Array:
    return words.view(np.uint8).astype(np.float32)


ELEMENTS: dict[str, Callable[[Array], Array]] = {
    "bf16": _bf16, "f16": _f16, "tf32": _tf32, "e4m3": _e4m3, "e5m2": _e5m2, "s8": _s8, "u8": _u8,
}  # fmt: skip
"""32-bit words [..., n] of packed elements to f32 [..., elements]."""

_SHAPES = {
    # k of a row of 16 bytes, and of 32: how many registers A has
    "bf16": {"m16n8k8": 2, "m16n8k16": 4}, "f16": {"m16n8k8": 2, "m16n8k16": 4},
    "tf32": {"m16n8k4": 2, "m16n8k8": 4}, "e4m3": {"m16n8k16": 2, "m16n8k32": 4},
    "e5m2": {"m16n8k16": 2, "m16n8k32": 4}, "s8": {"m16n8k16": 2, "m16n8k32": 4},
    "u8": {"m16n8k16": 2, "m16n8k32": 4},
}  # fmt: skip
_PREFIX = "mma sync aligned"


def _shapes(kind: str) -> str:
    return "shape=" + "|".join(_SHAPES[kind])


@CHAPTER.form(f"{_PREFIX} {_shapes('bf16')} row col d=f32 a=bf16 b=bf16 c=f32", 4)
@CHAPTER.form(f"{_PREFIX} {_shapes('tf32')} row col d=f32 a=tf32 b=tf32 c=f32", 4)
@CHAPTER.form(f"{_PREFIX} {_shapes('f16')} row col d=f32 a=f16 b=f16 c=f32", 4)
@CHAPTER.form(f"{_PREFIX} {_shapes('f16')} row col d=f16 a=f16 b=f16 c=f16", 4)
@CHAPTER.form(f"{_PREFIX} {_shapes('e4m3')} row col d=f32 a=e4m3|e5m2 b=e4m3|e5m2 c=f32", 4)
@CHAPTER.form(f"{_PREFIX} m16n8k32 row col kind=kind::f8f6f4 d=f32 a=e4m3|e5m2 b=e4m3|e5m2 c=f32",
              4)  # fmt: skip
@CHAPTER.form(f"{_PREFIX} {_shapes('s8')} row col satfinite? d=s32 a=s8|u8 b=s8|u8 c=s32", 4)
def mma(w: Writer, m: Matched) -> None:
    d, a, b, c = map(elements_of, m.operands)
    registers = _SHAPES[m["a"]][m["shape"] or "m16n8k32"]
    accumulators = 2 if m["d"] == "f16" else 4
    if [len(a), len(b), len(c), len(d)] != [registers, registers // 2, accumulators, accumulators]:
        raise m.unsupported("fragments with another number of registers than their shape")
    kind = "f4" if m["d"] == "f32" else "i4" if m["d"] == "s32" else "u4"
    names = (
        tuple(w.read(e, "u4") for e in a),
        tuple(w.read(e, "u4") for e in b),
        tuple(w.read(e, kind) for e in c),
    )
    how = (m["a"], m["b"], m["d"], bool(m["satfinite"]))
    w.defer(_write_products, how, names, d, kind)


def _write_products(w: Writer, how: Any, items: list[Any], results: list[str]) -> None:
    """One call for many products: those of one group of A with one group of B in one go."""
    left = list(dict.fromkeys(a for a, _, _ in items))
    right = list(dict.fromkeys(b for _, b, _ in items))
    cells = [(left.index(a), right.index(b)) for a, b, _ in items]
    is_grid = len(items) == len(left) * len(right) and len(set(cells)) == len(cells)
    if not is_grid:
        left, right = [a for a, _, _ in items], [b for _, b, _ in items]
        cells = [(i, i) for i in range(len(items))]
    call = (
        f"{w.fn(multiply_fragments)}({how!r}, {_names(left)}, {_names(right)}, "
        f"{_names([c for _, _, c in items])}, {cells if is_grid else None})"
    )
    w.line(f"{', '.join(results)}, = {call}")


def _names(groups: list[tuple[str, ...]]) -> str:
    return "(" + "".join(f"{name}, " for group in groups for name in group) + ")"


def multiply_fragments(
    how: tuple[str, str, str, bool], a: tuple[Array, ...], b: tuple[Array, ...],
    c: tuple[Array, ...], cells: list[tuple[int, int]] | None,
) -> Array:  # fmt: skip
    """D = A B + C of many products: all registers of D in turn, [registers, lanes].

    A B is summed in fp64, where its order leaves no trace: numpy takes another one for each shape,
    and how many products stand side by side must not change a bit of any.
    cells: None: the i-th A with the i-th B; else the A and B of each product, all pairs once.
    """
    kind_a, kind_b, kind_d, saturating = how
    accumulators = 2 if kind_d == "f16" else 4
    count = len(c) // accumulators
    warps = a[0].size // WARP
    groups_a = count if cells is None else 1 + max(i for i, _ in cells)
    groups_b = count if cells is None else 1 + max(j for _, j in cells)
    halves = len(a) // groups_a // 2
    words = np.concatenate(a).reshape(groups_a, halves, 2, warps, 8, 4)
    left = ELEMENTS[kind_a](np.ascontiguousarray(words.transpose(3, 0, 2, 4, 1, 5)).reshape(
        warps, groups_a, 16, 4 * halves))  # fmt: skip
    words = np.concatenate(b).reshape(groups_b, halves, warps, 8, 4)
    right = ELEMENTS[kind_b](np.ascontiguousarray(words.transpose(2, 0, 3, 1, 4)).reshape(
        warps, groups_b, 8, 4 * halves))  # fmt: skip
    left, right = left.astype(np.float64), right.astype(np.float64)
    if cells is None:
        product = np.matmul(left, right.swapaxes(2, 3)).transpose(1, 0, 2, 3)
    else:
        k = left.shape[-1]
        whole = np.matmul(
            left.reshape(warps, groups_a * 16, k),
            right.reshape(warps, groups_b * 8, k).swapaxes(1, 2),
        ).reshape(warps, groups_a, 16, groups_b, 8)
        product = whole.transpose(1, 3, 0, 2, 4).reshape(-1, warps, 16, 8)
        order = [i * groups_b + j for i, j in cells]
        if order != list(range(count)):
            product = product[order]
    # [product, warp, row half, g, t, column parity] -> [product, row half, parity, warp, g, t]
    fragments = product.reshape(count, warps, 2, 8, 4, 2).transpose(0, 2, 5, 1, 3, 4)
    added = fragments.reshape(4 * count, -1).astype(np.float32)
    return _accumulate(added, c, kind_d, saturating)


def _accumulate(product: Array, c: tuple[Array, ...], kind: str, saturating: bool) -> Array:
    if kind == "f32":
        result: Array = product + np.concatenate(c).reshape(product.shape)
        return result
    if kind == "s32":
        whole: Array = product.astype(np.int64) + np.concatenate(c).reshape(product.shape)
        if saturating:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        return whole.astype(np.int32)
    addend = np.stack(c).view(np.float16).reshape(len(c), -1, 2).transpose(0, 2, 1)
    total = (product + addend.reshape(product.shape).astype(np.float32)).astype(np.float16)
    pairs = total.reshape(len(c), 2, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(len(c), -1)
