"""PTX ISA, Parallel Synchronization and Communication Instructions: atom, red.

The lanes of an instruction act one after the other, in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsekit.emulator.access import generic_windows, outside
from sparsekit.emulator.access_kinds import STRONG_WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.isa.half import half_sum, rounded_half
from sparsekit.emulator.isa.memory import sized_address, space_of
from sparsekit.emulator.numeric.extremes import maximum_of, minimum_of
from sparsekit.emulator.numeric.narrow import bf16_value, f16_value
from sparsekit.emulator.numeric.rounding import flush
from sparsekit.emulator.source import DTYPES, WIDTH_BYTES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Sink

CHAPTER = Chapter("Parallel Synchronization and Communication Instructions: atom, red")
_ORDERS = {"atom": "relaxed|acquire|release|acq_rel", "red": "relaxed|release"}
_SCOPE = "scope=cta|cluster|gpu|sys?"
_SPACE = "space=global|shared|shared::cta|shared::cluster?"
_ATOM = f"sem={_ORDERS['atom']}? {_SCOPE} {_SPACE} $policy"
_BITS = {2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_TYPES = {
    "and": "b32|b64", "or": "b32|b64", "xor": "b32|b64", "inc": "u32", "dec": "u32",
    "min": "u32|u64|s32|s64", "max": "u32|u64|s32|s64", "add": "u32|u64|s32|f32|f64",
}  # fmt: skip


def _inc(old: Array, b: Array) -> Array:
    result: Array = np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1))
    return result


def _dec(old: Array, b: Array) -> Array:
    return np.where((old == 0) | (old > b), b, old - old.dtype.type(1))


OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "add": np.add,
    "min": np.minimum, "max": np.maximum, "inc": _inc, "dec": _dec,
    "exch": lambda old, b: b,
}  # fmt: skip


def _halves(kind: str, op: str) -> Callable[[Array, Array], Array]:
    convert = f16_value if kind.startswith("f16") else bf16_value
    name = kind.removesuffix("x2")

    def combine(old: Array, b: Array) -> Array:
        x, y = (convert(np.ascontiguousarray(v).view(np.uint16)) for v in (old, b))
        if op == "add":
            total = half_sum(x, y)
        else:
            total = (minimum_of if op == "min" else maximum_of)(x, y, False).astype("f8")
        return rounded_half(total, name, False, False, False).view(old.dtype)

    return combine


def _add_f32(old: Array, b: Array) -> Array:
    """On global memory subnormal operands and results are flushed."""
    return flush(flush(np.ascontiguousarray(old)) + flush(np.ascontiguousarray(b)))


def _register(chapter: Chapter) -> None:
    for base, counts in (("atom", (3, 4)), ("red", (2, 3))):
        ordered = f"{base} sem={_ORDERS[base]}? {_SCOPE}"
        anywhere = f"{ordered} {_SPACE} $policy"
        for op, types in _TYPES.items():
            chapter.form(f"{anywhere} op={op} t={types}", counts)(rmw)
        chapter.form(f"{anywhere} op=add noftz t=f16|f16x2|bf16|bf16x2", counts)(rmw)
        vectors = f"{ordered} space=global? $policy"
        chapter.form(f"{vectors} op=add vec=v2|v4 t=f32", counts)(rmw)
        noftz = f"{vectors} op=add|min|max noftz"
        chapter.form(f"{noftz} vec=v2|v4|v8 t=f16|bf16", counts)(rmw)
        chapter.form(f"{noftz} vec=v2|v4 t=f16x2|bf16x2", counts)(rmw)
    chapter.form(f"atom {_ATOM} op=exch t=b32|b64|b128", (3, 4))(rmw)


def rmw(w: Writer, m: Matched) -> None:
    """[d,] [a], b: the old value to d, the operation's result to memory."""
    operands = list(m.operands)
    if m["$policy"]:
        operands.pop()
    wants_old = m.form.base == "atom"
    if len(operands) != 2 + wants_old:
        raise m.unsupported(f"{m.form.base} with these operands is not modelled")
    target = operands[0] if wants_old else Sink()
    address, source = operands[-2:]
    kind = m["t"]
    dtype = "u2" if kind in ("f16", "bf16") else DTYPES[kind]
    _emit(w, m, target, address, [source], kind, dtype)


@CHAPTER.form(f"atom {_ATOM} op=cas t=b16|b32|b64|b128", (4, 5))
def cas(w: Writer, m: Matched) -> None:
    """d, [a], b, c: c to memory where it holds b."""
    operands = list(m.operands)
    if m["$policy"]:
        operands.pop()
    if len(operands) != 4:
        raise m.unsupported("atom.cas with these operands is not modelled")
    target, address, *sources = operands
    _emit(w, m, target, address, sources, m["t"], DTYPES[m["t"]])


def _emit(
    w: Writer, m: Matched, target: Any, address: Any, sources: list[Any], kind: str, dtype: str
) -> None:
    space = space_of(m)
    size = WIDTH_BYTES[dtype]
    base, offset = sized_address(w, m, address, space)
    vectors = [elements_of(source) for source in sources]
    targets = elements_of(target)
    order = (m["sem"] or "relaxed", m["scope"] or "gpu")
    for position, parts in enumerate(zip(*vectors, strict=True)):
        values = "".join(f"{w.read(part, dtype)}, " for part in parts)
        call = (
            f"{w.fn(read_modify_write)}(L, {space!r}, {base}, {offset + position * size}, {size}, "
            f"{m['op']!r}, {kind!r}, ({values}), {order!r}, {w.mask}, {w.at})"
        )
        name = w.temp(call)
        if position < len(targets) and not isinstance(targets[position], Sink):
            w.write(targets[position], f"{name}.view({dtype})", dtype)


def read_modify_write(
    c: Convoy, space: str, address: Array, offset: int, size: int, op: str, kind: str,
    values: tuple[Array, ...], order: tuple[str, str], mask: Array | None, at: int,
) -> Array:  # fmt: skip
    """The old values, as bits; lanes with one address take turns."""
    old = np.zeros(c.n, np.dtype(_BITS[size]))
    c.machine.fences.access(c, space, address, offset, mask, *order, "rw")
    for where, own, lanes in generic_windows(c, space, address, offset, mask):
        chosen = lanes.nonzero()[0]
        if not chosen.size:
            continue
        index = c.shared_index(own, offset) if where == "shared" else c.global_index(own, offset)
        index = index[chosen]
        machine = c.machine
        if c.log is not None:
            c.log.add(where, STRONG_WRITE, size, index, chosen, True, c, at)
        rows = index >> index.dtype.type(size.bit_length() - 1)
        table = machine.storage.table(where, size, 1)
        try:
            old[chosen] = _in_turn(table, rows, op, kind, where, [v[chosen] for v in values])
        except IndexError:
            outside(c, at)
    return old


def _in_turn(
    table: Array, rows: Array, op: str, kind: str, where: str, values: list[Array]
) -> Array:
    old = np.zeros(rows.size, table.dtype)
    left = np.arange(rows.size)
    while left.size:
        _, first = np.unique(rows[left], return_index=True)
        now = left[first]
        before = table.take(rows[now])
        old[now] = before
        operands = [v[now] for v in values]
        table[rows[now]] = combined(before, op, kind, where, operands).view(table.dtype)
        left = np.delete(left, first)
    return old


def combined(before: Array, op: str, kind: str, where: str, values: list[Array]) -> Array:
    """What an operation makes of the bits before and its operands."""
    if op == "cas":
        bits = f"V{before.dtype.itemsize}"  # numbers would compare otherwise
        same = before.view(bits) == np.ascontiguousarray(values[0]).view(bits)
        return np.where(same, values[1].view(before.dtype), before)
    value = values[0]
    old = before.view(value.dtype)
    if kind.startswith(("f16", "bf16")):
        return _halves(kind, op)(old, value)
    if kind == "f32" and where == "global":
        return _add_f32(old, value)
    return np.ascontiguousarray(OPERATIONS[op](old, value))


_register(CHAPTER)
