"""PTX ISA, Data Movement and Conversion Instructions: ld, ldu, st."""

from __future__ import annotations

from sparsekit.emulator import access
from sparsekit.emulator.access_kinds import READ, STRONG_READ, STRONG_WRITE, WRITE
from sparsekit.emulator.source import DTYPES, WIDTH_BYTES
from sparsekit.emulator.table import Chapter, Matched
from sparsekit.emulator.writer import Writer, elements_of
from sparsekit.ptx.operands import Address, Immediate, Operand, Register, Sink, Symbol

CHAPTER = Chapter("Data Movement and Conversion Instructions: ld, st")
TYPES = "b8|b16|b32|b64|b128|u8|u16|u32|u64|s8|s16|s32|s64|f32|f64"
SPACES = "const|global|local|param|shared|shared::cta|shared::cluster|param::entry|param::func"
_STORED = "global|local|param|shared|shared::cta|shared::cluster|param::func"
_STRONG = "global|shared|shared::cta|shared::cluster"
_EVICT = "$evict $evict2 $policy"
_SCOPE = "scope=cta|cluster|gpu|sys"
_VEC = "vec=v2|v4|v8?"
_LOADS = {
    "shared": access.load_shared, "global": access.load_global, "const": access.load_global,
    "local": access.load_local, "": access.load_generic,
}  # fmt: skip
_STORES = {
    "shared": access.store_shared, "global": access.store_global, "local": access.store_local,
    "": access.store_generic,
}  # fmt: skip
_WORD = 1 << 64
_LARGEST_BYTES = 16
_LARGEST_GLOBAL_BYTES = 32  # of elements of 4 or 8 bytes
_BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def space_of(m: Matched) -> str:
    return m["space"].partition("::")[0]


def sized_address(w: Writer, m: Matched, operand: Operand, space: str) -> tuple[str, int]:
    """(name of the base's value, offset in bytes) of `[base + offset]`.

    The base comes in the type that the space's accesses take: u4 for shared memory, u8 for global
    and generic addresses, either for the others.
    """
    if not isinstance(operand, Address):
        raise m.unsupported(f"{operand} is no address")
    base, offset = operand.base, operand.offset_bytes
    dtype = "u8"
    if isinstance(base, Register):
        dtype = "u4" if w.width_of(base) == 4 else "u8"
        name = w.read(base, dtype)
    elif isinstance(base, Immediate):
        name, offset = w.const((base.value + offset) % _WORD, "u8"), 0
    else:
        name = w.read(base, "u8")
    if space == "shared" and dtype == "u8":
        name = w.temp(f"{name}.astype(u4)")
    elif space in ("global", "const", "") and dtype == "u4":
        name = w.temp(f"{name}.astype(u8)")
    return name, offset


def _without_policy(m: Matched) -> tuple[Operand, Operand]:
    """Destination and source, without the cache policy that follows them."""
    if len(m.operands) != (3 if m["$policy"] else 2):
        raise m.unsupported("a cache policy without .L2::cache_hint, or the other way round")
    return m.operands[0], m.operands[1]


def _check_width(m: Matched, size: int, count: int, space: str) -> None:
    total = size * count
    is_wide = total == _LARGEST_GLOBAL_BYTES and size < _LARGEST_BYTES and space in ("global", "")
    if total > _LARGEST_BYTES and (not is_wide or m.form.base == "ldu"):
        raise m.unsupported(f"{total} bytes at once")


def _param(w: Writer, m: Matched, operand: Operand) -> tuple[str, int] | None:
    """Where a .param access by name goes: ("entry", offset in the kernel's) or ("local", 0).

    None for an address in a register.
    """
    base = operand.base if isinstance(operand, Address) else operand
    if not isinstance(base, Symbol):
        return None
    layout = w.code.layout
    if (w.block.function, base.name) in layout.local:
        return "local", 0
    if base.name in layout.param:
        offset = operand.offset_bytes if isinstance(operand, Address) else 0
        return "entry", layout.param[base.name][0] + base.offset_bytes + offset
    raise m.unsupported(f"{base.name} is no parameter here")


@CHAPTER.form(
    f"ld sem=weak? space={SPACES}? $nc $cache {_EVICT} $prefetch {_VEC} t={TYPES}", (2, 3)
)
@CHAPTER.form(f"ld sem=volatile space=local|{_STRONG}? $prefetch {_VEC} t={TYPES}", 2)
@CHAPTER.form(
    f"ld sem=relaxed|acquire {_SCOPE} space={_STRONG}? {_EVICT} $prefetch {_VEC} t={TYPES}", (2, 3)
)
@CHAPTER.form(f"ldu space=global? vec=v2|v4? t={TYPES}", 2)
def ld(w: Writer, m: Matched) -> None:
    target, source = _without_policy(m)
    kind, space = m["t"], space_of(m)
    elements = elements_of(target)
    if len(elements) != int(m["vec"].removeprefix("v") or 1):
        raise m.unsupported("a destination of another width than the load")
    dtype = DTYPES[kind]
    size, count = WIDTH_BYTES[dtype], len(elements)
    _check_width(m, size, count, space)
    if m["$nc"] and space != "global":
        raise m.unsupported("the read-only cache is of global memory")
    if space == "param":
        named = _param(w, m, source)
        if named is not None and named[0] == "entry":
            for position, element in enumerate(elements):
                offset = named[1] + position * size
                w.write(element, w.bind("param", offset, dtype), dtype)
            return
        in_entry = w.block.function == len(w.code.functions) - 1
        space = "param" if named is None and in_entry else "local"
    function = access.load_params if space == "param" else _LOADS[space]
    base, offset = sized_address(w, m, source, space)
    strength = READ if m["sem"] in ("", "weak") else STRONG_READ
    arguments = f"L, {base}, {offset}, {size}, {count}, {w.mask}, {strength}, {w.at}"
    name = w.temp(f"{w.fn(function)}({arguments})")
    if strength == STRONG_READ and space in ("shared", "global", ""):
        _order(w, m, space, base, offset, "r")
    bits = _BITS[size]
    for position, element in enumerate(elements):
        if not isinstance(element, Sink):
            part = name if count == 1 else f"{name}[{position}]"
            w.write(element, part if dtype == bits else f"{part}.view({dtype})", dtype)


@CHAPTER.form(f"st sem=weak? space={_STORED}? $cache {_EVICT} {_VEC} t={TYPES}", (2, 3))
@CHAPTER.form(f"st sem=volatile space=local|{_STRONG}? {_VEC} t={TYPES}", 2)
@CHAPTER.form(f"st sem=relaxed|release {_SCOPE} space={_STRONG}? {_EVICT} {_VEC} t={TYPES}", (2, 3))
def st(w: Writer, m: Matched) -> None:
    target, source = _without_policy(m)
    space = space_of(m)
    elements = elements_of(source)
    if len(elements) != int(m["vec"].removeprefix("v") or 1):
        raise m.unsupported("a source of another width than the store")
    size = WIDTH_BYTES[DTYPES[m["t"]]]
    _check_width(m, size, len(elements), space)
    if space == "param":
        named = _param(w, m, target)
        if named is not None and named[0] == "entry":
            raise m.unsupported("a store to the kernel's parameters")
        space = "local"
    values = "".join(f"{w.read(e, _BITS[size])}, " for e in elements)
    base, offset = sized_address(w, m, target, space)
    strength = WRITE if m["sem"] in ("", "weak") else STRONG_WRITE
    if strength == STRONG_WRITE and space in ("shared", "global", ""):
        _order(w, m, space, base, offset, "w")
    arguments = f"L, {base}, {offset}, {size}, ({values}), {w.mask}, {strength}, {w.at}"
    w.line(f"{w.fn(_STORES[space])}({arguments})")


def _order(w: Writer, m: Matched, space: str, base: str, offset: int, what: str) -> None:
    """A strong access takes part in the order that fences make."""
    order, scope = m["sem"] or "weak", m["scope"] or "sys"
    place = f"L, {space!r}, {base}, {offset}, {w.mask}"
    w.line(f"L.machine.fences.access({place}, {order!r}, {scope!r}, {what!r})")
