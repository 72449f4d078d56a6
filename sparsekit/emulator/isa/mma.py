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
    # [group, k half, row half, warp, g, t x element] and [group, k half, warp, g, t x element]
    words = np.concatenate(a).reshape(groups_a, halves, 2, warps, 8, 4)
    left = _as_doubles(words, kind_a, (3, 0, 2, 4, 1, 5)).reshape(warps, groups_a * 16, -1)
    words = np.concatenate(b).reshape(groups_b, halves, warps, 8, 4)
    right = _as_doubles(words, kind_b, (2, 0, 3, 1, 4)).reshape(warps, groups_b * 8, -1)
    if cells is None:
        pairs = left.reshape(warps, count, 16, -1), right.reshape(warps, count, 8, -1)
        product = np.matmul(pairs[0], pairs[1].swapaxes(2, 3)).astype(np.float32)
        # [warp, product, row half, g, t, parity] -> [product, row half, parity, warp, g, t]
        fragments = product.reshape(warps, count, 2, 8, 4, 2).transpose(1, 2, 5, 0, 3, 4)
    else:
        product = np.matmul(left, right.swapaxes(1, 2)).astype(np.float32)
        parts = product.reshape(warps, groups_a, 2, 8, groups_b, 4, 2)
        fragments = parts.transpose(1, 4, 2, 6, 0, 3, 5)
        order = [i * groups_b + j for i, j in cells]
        if order != list(range(count)):
            fragments = fragments.reshape(count, *fragments.shape[2:])[order]
    return _accumulate(fragments, c, kind_d, saturating)


def _as_doubles(words: Array, kind: str, axes: tuple[int, ...]) -> Array:
    """The elements of words as f64, contiguous, with the axes of the words in another order."""
    found: Array = ELEMENTS[kind](words).transpose(axes).astype(np.float64, order="C")
    return found


def _accumulate(fragments: Array, c: tuple[Array, ...], kind: str, saturating: bool) -> Array:
    """fragments: [..., warps, g, t] f32, the elements of each product in the order of C."""
    if kind == "f32":
        total = np.concatenate(c).reshape(fragments.shape)
        np.add(fragments, total, out=total)
        return total.reshape(len(c), -1)
    product = np.ascontiguousarray(fragments).reshape(-1, c[0].size)
    if kind == "s32":
        whole: Array = product.astype(np.int64) + np.concatenate(c).reshape(product.shape)
        if saturating:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        return whole.astype(np.int32)
    addend = np.stack(c).view(np.float16).reshape(len(c), -1, 2).transpose(0, 2, 1)
    total = (product + addend.reshape(product.shape).astype(np.float32)).astype(np.float16)
    pairs = total.reshape(len(c), 2, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(pairs).view(np.uint32).reshape(len(c), -1)
