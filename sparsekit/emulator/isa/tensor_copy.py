"""PTX ISA, Data Movement and Conversion Instructions: cp.async.bulk.tensor, tiled modes."""

from __future__ import annotations

from sparsekit.emulator.arrays import Array
from sparsekit.emulator.convoy import Convoy
from sparsekit.emulator.findings import StopLaunch
from sparsekit.emulator.isa.bulk_copy import (
    SIGNALS,
    finish,
    optional,
    shared_address,
    start_load,
    start_store,
)
from sparsekit.emulator.memory import GLOBAL_BASE
from sparsekit.emulator.storage import PARAM_WINDOW
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.tensor_map import MAP_ALIGN, MAP_BYTES, TensorMap, unpack_map
from sparsekit.emulator.tiles import Tile, box_of, rows_of
from sparsekit.emulator.writer import Writer
from sparsekit.errors import ArgumentError
from sparsekit.ptx.operands import Address, Immediate, Operand, Register, Vector

CHAPTER = Chapter("Data Movement and Conversion Instructions: cp.async.bulk.tensor")
_DIMS = "dim=1d|2d|3d|4d|5d"
_WINDOW_BITS = 40
_SHARED_ALIGN = 128
_FOUR = 4
_REDUCTION_TYPES = {
    "u32": "u32", "i32": "s32", "u64": "u64", "i64": "s64", "fp16": "f16", "bf16": "bf16",
    "fp32": "f32", "fp32_ftz": "f32", "fp64": "f64",
}  # fmt: skip
_BITWISE = {"u32": "b32", "i32": "b32", "u64": "b64", "i64": "b64"}


def tensor_address(w: Writer, m: Matched, operand: Operand) -> tuple[str, str]:
    """(addresses of the tensor map, u8, generic; the coordinates) of `[map, {x, y, ...}]`."""
    if not isinstance(operand, Address) or len(operand.extra) != 1:
        raise m.unsupported(f"{operand} is no tensor map with coordinates")
    (vector,) = operand.extra
    elements = vector.elements if isinstance(vector, Vector) else (vector,)
    wanted = 1 + _FOUR if "4" in m["mode"] else int(m["dim"][0])
    if len(elements) != wanted:
        raise m.unsupported(f"{len(elements)} coordinates where {wanted} are needed")
    coordinates = "".join(f"{w.read(e, 'i4')}, " for e in elements)
    return map_address(w, m, operand), f"({coordinates})"


def map_address(w: Writer, m: Matched, operand: Address) -> str:
    base, offset = operand.base, operand.offset_bytes
    if isinstance(base, Register):
        name = w.read(base, "u4" if w.width_of(base) == 4 else "u8")
        name = w.temp(f"{name}.astype(u8)") if w.width_of(base) == 4 else name
    elif isinstance(base, Immediate):
        name = w.const(base.value, "u8")
    else:
        name = w.read(base, "u8")
    return w.temp(f"{name} + {w.const(offset, 'u8')}") if offset else name


def tensor_at(c: Convoy, address: int, at: int, thread: int) -> TensorMap:
    """The tensor map at a generic address; one below all windows is in the parameters."""
    machine, data = c.machine, b""
    window = address >> _WINDOW_BITS
    if window == PARAM_WINDOW >> _WINDOW_BITS or address < machine.code.layout.param_bytes:
        start = address % (1 << _WINDOW_BITS)
        data = machine.storage.params[start : start + MAP_BYTES].tobytes()
    elif GLOBAL_BASE <= address < GLOBAL_BASE + machine.storage.memory.content().size:
        start = address - GLOBAL_BASE
        data = machine.storage.memory.content()[start : start + MAP_BYTES].tobytes()
    text = "" if len(data) == MAP_BYTES else f"no tensor map can be at {address:#x}"
    if address % MAP_ALIGN:
        text = f"a tensor map at {address:#x}, which is not aligned to {MAP_ALIGN} bytes"
    if not text:
        try:
            found = unpack_map(data)
            if found is not None:
                machine.written_maps.check(thread, address, at)
                return found
            text = f"the {MAP_BYTES} bytes at {address:#x} are no tensor map"
        except ArgumentError as error:
            text = str(error)
    machine.fault("descriptor", text, at, thread)
    machine.fault("outside", text, at, thread)
    raise StopLaunch


def tile_of(
    c: Convoy, tensor: TensorMap, coordinates: tuple[int, ...], mode: str, at: int, thread: int
) -> Tile:
    """The tile of a copy, its shape checked against the instruction's."""
    rank = len(tensor.dims)
    if "4" in mode:
        if rank != 2 or tensor.box[1] != 1:
            text = f"{mode} with a tensor map of {rank} dimensions and box {tuple(tensor.box)}"
            c.machine.fault("descriptor", text, at, thread)
        return rows_of(tensor, coordinates[0], coordinates[1:])
    if rank != len(coordinates):
        text = f"a copy in {len(coordinates)} dimensions with a tensor map of {rank}"
        c.machine.fault("descriptor", text, at, thread)
    return box_of(tensor, coordinates)


def check_shared(c: Convoy, address: int, at: int, thread: int) -> None:
    if address % _SHARED_ALIGN:
        text = f"a tile in shared memory that is not aligned to {_SHARED_ALIGN} bytes"
        c.machine.fault("alignment", text, at, thread)


@CHAPTER.form(
    f"cp async bulk tensor {_DIMS} to=shared::cluster|shared::cta from=global "
    f"mode=tile|tile::gather4? signal={SIGNALS} multicast=multicast::cluster? "
    "group=cta_group::1|cta_group::2? $policy", (3, 4, 5),
)  # fmt: skip
def load(w: Writer, m: Matched) -> None:
    """[target], [map, coordinates], [mbarrier] {, blocks} {, policy}"""
    target, tensor, barrier, *rest = m.operands
    blocks = optional(w, rest, bool(m["multicast"]), "u2")
    finish(m, rest)
    address, coordinates = tensor_address(w, m, tensor)
    pairs = m["group"] == "cta_group::2"
    w.line(
        f"{w.fn(load_tiles)}(L, {shared_address(w, m, target)}, {address}, {coordinates}, "
        f"{m['mode']!r}, {shared_address(w, m, barrier)}, {blocks}, {pairs}, {w.mask}, {w.at})"
    )


def load_tiles(
    c: Convoy, target: Array, maps: Array, coordinates: tuple[Array, ...], mode: str,
    barriers: Array, blocks: Array | None, pairs: bool, mask: Array | None, at: int,
) -> None:  # fmt: skip
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        tensor = tensor_at(c, int(maps[lane]), at, thread)
        tile = tile_of(c, tensor, tuple(int(x[lane]) for x in coordinates), mode, at, thread)
        check_shared(c, int(target[lane]), at, thread)
        start_load(
            c, tile, int(target[lane]), tensor.swizzle, int(barriers[lane]),
            None if blocks is None else int(blocks[lane]), pairs, at, thread,
        )  # fmt: skip


@CHAPTER.form(
    f"cp async bulk tensor {_DIMS} to=global from=shared::cta mode=tile|tile::scatter4? "
    "bulk_group $policy", (2, 3),
)  # fmt: skip
@CHAPTER.form(
    f"cp reduce async bulk tensor {_DIMS} to=global from=shared::cta "
    "op=add|min|max|inc|dec|and|or|xor mode=tile? bulk_group $policy", (2, 3),
)  # fmt: skip
def store(w: Writer, m: Matched) -> None:
    """[map, coordinates], [source] {, policy}"""
    tensor, source, *rest = m.operands
    finish(m, rest)
    address, coordinates = tensor_address(w, m, tensor)
    w.line(
        f"{w.fn(store_tiles)}(L, {shared_address(w, m, source)}, {address}, {coordinates}, "
        f"{m['mode']!r}, {m['op']!r}, {w.mask}, {w.at})"
    )


def store_tiles(
    c: Convoy, source: Array, maps: Array, coordinates: tuple[Array, ...], mode: str, op: str,
    mask: Array | None, at: int,
) -> None:  # fmt: skip
    for thread in c.lanes(mask).tolist():
        lane = thread - c.lo
        tensor = tensor_at(c, int(maps[lane]), at, thread)
        tile = tile_of(c, tensor, tuple(int(x[lane]) for x in coordinates), mode, at, thread)
        check_shared(c, int(source[lane]), at, thread)
        how = None
        if op:
            types = _BITWISE if op in ("and", "or", "xor") else _REDUCTION_TYPES
            if tensor.dtype not in types or (op in ("inc", "dec") and tensor.dtype != "u32"):
                text = f"a reduction {op} of elements {tensor.dtype}"
                c.machine.fault("descriptor", text, at, thread)
            how = (op, types[tensor.dtype])
        start_store(c, tile, int(source[lane]), tensor.swizzle, how, at, thread)


CHAPTER.hint(
    f"cp async bulk prefetch tensor {_DIMS} to=L2 from=global mode=tile|tile::gather4? $policy",
    (1, 2), "there is no cache",
)  # fmt: skip
