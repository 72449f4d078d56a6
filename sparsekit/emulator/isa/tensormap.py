"""PTX ISA, Data Movement and Conversion Instructions: tensormap.replace; Parallel Synchronization:
tensormap.cp_fenceproxy, fence.proxy.tensormap.

Tensor maps that kernels make or change. What a block has written of one in global memory it must
acquire before a copy uses it.
"""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.access import generic_windows
from sparsekit.emulator.access_kinds import READ, WRITE
from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.geometry import WARP
from sparsekit.emulator.isa.memory import sized_address, space_of
from sparsekit.emulator.memory import GLOBAL_BASE
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.tensor_map import FIELDS, MAP_ALIGN, MAP_BYTES, field_bytes
from sparsekit.emulator.tiles import CHUNK_BYTES
from sparsekit.emulator.writer import Writer
from sparsekit.ptx.operands import Immediate, Operand

CHAPTER = Chapter("Data Movement and Conversion Instructions: tensormap")
_ONE = "global_address|rank|elemtype|interleave_layout|swizzle_mode|fill_mode"
_MANY = "box_dim|global_dim|global_stride|element_stride"
_SPACE = "space=global|shared::cta?"


@CHAPTER.form(f"tensormap replace tile field={_ONE} {_SPACE} b1024 t=b32|b64", 2)
@CHAPTER.form(f"tensormap replace tile field={_MANY} {_SPACE} b1024 t=b32|b64", 3)
def replace(w: Writer, m: Matched) -> None:
    """[map] {, dimension}, value"""
    position = 0
    if len(m.operands) == 3:
        dimension = m.operands[1]
        if not isinstance(dimension, Immediate):
            raise m.unsupported("a dimension that is no constant")
        position = dimension.value
    field = FIELDS[m["field"]]
    if field.count <= position:
        raise m.unsupported(f"dimension {position} of {m['field']}")
    if m["t"] != f"b{64 if m['field'] in ('global_address', 'global_stride') else 32}":
        raise m.unsupported("a value of another width than its field")
    value = w.read(m.operands[-1], "u8" if m["t"] == "b64" else "u4")
    space = space_of(m)
    base, offset = sized_address(w, m, m.operands[0], space)
    w.line(
        f"{w.fn(set_field)}(L, {space!r}, {base}, {offset}, {m['field']!r}, {position}, {value}, "
        f"{w.mask}, {w.at})"
    )


def set_field(
    c: Convoy, space: str, address: Array, offset: int, name: str, position: int, values: Array,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    """Each lane changes one field of a tensor map."""
    machine = c.machine
    for where, own, lanes in generic_windows(c, space, address, offset, mask):
        chosen = lanes.nonzero()[0] if mask is None else (lanes & mask).nonzero()[0]
        if where == "shared":
            places = c.shared_index(own, offset).astype(np.int64)[chosen]
        else:
            places = c.global_index(own, offset)[chosen]
        _note(c, where, places, WRITE, chosen, at)
        table = machine.storage.table(where, 1, 1)
        for lane, place in zip(chosen.tolist(), places.tolist(), strict=True):
            content = bytearray(table[place : place + MAP_BYTES].tobytes())
            problem = field_bytes(content, name, position, int(values[lane]))
            if problem or place % MAP_ALIGN:
                text = problem or f"a tensor map that is not aligned to {MAP_ALIGN} bytes"
                machine.fault("descriptor", text, at, c.lo + lane)
            table[place : place + MAP_BYTES] = np.frombuffer(bytes(content), np.uint8)
            if where == "global":
                machine.written_maps.write(c.lo + lane, place + GLOBAL_BASE, at)


def _note(c: Convoy, where: str, places: Array, kind: int, lanes: Array, at: int) -> None:
    """Log an access to whole tensor maps."""
    if c.log is None:
        return
    chunks = (places[:, None] + np.arange(0, MAP_BYTES, CHUNK_BYTES)).reshape(-1)
    several = np.repeat(lanes, MAP_BYTES // CHUNK_BYTES)
    values = (np.zeros(chunks.size, np.complex128),) if kind == WRITE else ()
    index = chunks.astype(np.uint32) if where == "shared" else chunks
    c.log.add(where, kind, CHUNK_BYTES, index, several, True, c, at, values)
    c.log.flush()


@CHAPTER.form(
    "tensormap cp_fenceproxy to=global from=shared::cta tensormap::generic release "
    "scope=cta|cluster|gpu|sys sync aligned", 3,
)  # fmt: skip
def copy_map(w: Writer, m: Matched) -> None:
    """[target], [source], bytes: copied by the warp as one."""
    _whole(m, m.operands[2])
    target, target_offset = sized_address(w, m, m.operands[0], "global")
    source, source_offset = sized_address(w, m, m.operands[1], "shared")
    w.line(
        f"{w.fn(publish_map)}(L, {target}, {target_offset}, {source}, {source_offset}, {w.mask}, "
        f"{w.at})"
    )


def _whole(m: Matched, size: Operand) -> None:
    if not isinstance(size, Immediate) or size.value != MAP_BYTES:
        raise m.unsupported(f"other than the {MAP_BYTES} bytes of a tensor map")


def publish_map(
    c: Convoy, target: Array, target_offset: int, source: Array, source_offset: int,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    machine = c.machine
    lanes = c.warps(mask) * WARP - c.lo
    to = c.global_index(target, target_offset)[lanes]
    come = c.shared_index(source, source_offset).astype(np.int64)[lanes]
    _note(c, "shared", come, READ, lanes, at)
    _note(c, "global", to, WRITE, lanes, at)
    shared, content = (machine.storage.table(s, 1, 1) for s in ("shared", "global"))
    for lane, a, b in zip(lanes.tolist(), come.tolist(), to.tolist(), strict=True):
        content[b : b + MAP_BYTES] = shared[a : a + MAP_BYTES]
        machine.written_maps.write(c.lo + lane, b + GLOBAL_BASE, at)


@CHAPTER.form("fence proxy tensormap::generic acquire scope=cta|cluster|gpu|sys", 2)
def acquire(w: Writer, m: Matched) -> None:
    _whole(m, m.operands[1])
    base, offset = sized_address(w, m, m.operands[0], "")
    w.line(f"{w.fn(acquire_map)}(L, {base}, {offset}, {w.mask})")


def acquire_map(c: Convoy, address: Array, offset: int, mask: Array | None) -> None:
    for thread in c.lanes(mask).tolist():
        c.machine.written_maps.acquire(thread, int(address[thread - c.lo]) + offset)


CHAPTER.hint(
    "fence proxy tensormap::generic release scope=cta|cluster|gpu|sys", 0,
    "what a block has written of a tensor map is in memory at once",
)  # fmt: skip
