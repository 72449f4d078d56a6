"""Tensor copies against a scalar model of tiles, swizzles and fill; tensor maps and misuse."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from whole_block import clean, kinds, run_block

from sparsekit.emulator import Schedule, TensorMap
from sparsekit.errors import ArgumentError

BYTES = 8192
SHARED = f".shared .align 8 .b64 bar; .shared .align 1024 .b8 cells[{BYTES}];"
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1)]
START = """mov.u32 r0, bar; mov.u32 r5, cells; setp.eq.u32 p0, tid, 0;
@p0 mbarrier.init.shared.b64 [r0], 1; @p0 fence.mbarrier_init.release.cluster; bar.sync 0;"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 p1, [r0], 0; @!p1 bra W;"
IMAGE = """mov.u32 r1, tid; L: setp.ge.u32 p2, r1, SIZE; @p2 bra E; add.u32 r2, r5, r1;
ld.shared.u8 h1, [r2]; cvt.u64.u32 l1, r1; add.u64 l1, l1, out; st.global.u8 [l1], h1;
add.u32 r1, r1, 32; bra L; E:"""
FILL = """mov.u32 r1, tid; F: setp.ge.u32 p2, r1, SIZE; @p2 bra G; add.u32 r2, r5, r1;
cvt.u64.u32 l1, r1; add.u64 l1, l1, image; ld.global.u8 h1, [l1]; st.shared.u8 [r2], h1;
add.u32 r1, r1, 32; bra F; G: fence.proxy.async.shared::cta; bar.sync 0;"""
NUMPY = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIZES = {"u8": 1, "bf16": 2, "fp16": 2, "fp32": 4, "u32": 4, "i32": 4, "i64": 8, "u64": 8}


def swizzled_place(offset: int, mode: str) -> int:
    """Where a byte of a tile is: the ISA's tables of 16-byte (or 32-byte) chunks by row of 128."""
    row = offset // 128
    if mode == "128B":
        return offset // 128 * 128 + (offset // 16 % 8 ^ row % 8) * 16 + offset % 16
    if mode == "64B":  # rows of 64 bytes: the pattern changes every other one
        return offset // 64 * 64 + (offset // 16 % 4 ^ row % 4) * 16 + offset % 16
    if mode == "32B":
        return offset // 32 * 32 + (offset // 16 % 2 ^ row % 2) * 16 + offset % 16
    if mode == "128B_atom_32B":
        return offset // 128 * 128 + (offset // 32 % 4 ^ row % 4) * 32 + offset % 32
    return offset


def tile_elements(tensor, coordinates, dims, box, step):
    """[(offset in elements in the tile, value or None)] with the inner dimension first."""
    counts = [-(-b // s) for b, s in zip(box, step, strict=True)]
    found = []
    for position, index in enumerate(product(*(range(n) for n in reversed(counts)))):
        where = [c + i * s for c, i, s in zip(coordinates, reversed(index), step, strict=True)]
        inside = all(0 <= w < d for w, d in zip(where, dims, strict=True))
        found.append((position, tuple(reversed(where)) if inside else None))
    return found


CASES = [
    # dtype, dims, box, coordinates, swizzle, step
    ("fp32", (40,), (32,), (4,), "none", (1,)),
    ("fp32", (40,), (32,), (-8,), "none", (1,)),
    ("bf16", (72, 20), (64, 8), (8, 3), "128B", (1, 1)),
    ("bf16", (72, 20), (64, 16), (32, -5), "128B", (1, 1)),
    ("bf16", (72, 20), (64, 16), (3, 9), "128B", (1, 1)),
    ("bf16", (40, 20), (32, 16), (-7, 8), "64B", (1, 1)),
    ("u8", (48, 24), (32, 16), (0, 2), "32B", (1, 1)),
    ("fp32", (32, 30), (32, 16), (0, 1), "128B_atom_32B", (1, 1)),
    ("i64", (8, 6, 5), (4, 3, 2), (2, -1, 4), "none", (1, 1, 1)),
    ("fp16", (16, 5, 4, 3), (8, 2, 3, 2), (8, 4, 2, -1), "none", (1, 1, 1, 1)),
    ("bf16", (64, 3, 2, 3, 2), (64, 2, 2, 2, 1), (0, 1, 0, 2, 1), "128B", (1,) * 5),
    ("fp32", (32, 20), (16, 12), (4, 3), "none", (1, 3)),
    ("fp32", (32, 20), (32, 4), (1, 2), "none", (2, 2)),
]


def prepared(dtype, dims, box, swizzle, step, seed=0, fill="zero"):
    kind = NUMPY[SIZES[dtype]]
    rng = np.random.default_rng(seed)
    row = -(-dims[0] * SIZES[dtype] // 16) * 16 // SIZES[dtype]  # strides are multiples of 16 bytes
    padded = rng.integers(0, 256, (*reversed(dims[1:]), row * SIZES[dtype]), np.uint8).view(kind)
    strides, size = [], row * SIZES[dtype]
    for extent in dims[1:]:
        strides.append(size)
        size *= extent
    make = lambda places: TensorMap(  # noqa: E731
        places["source"], dtype, dims, box, strides, step, swizzle, fill
    )
    return padded, make


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[1])}d-{c[4]}")
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
def test_tiles_to_shared_memory(case, schedule):
    dtype, dims, box, coordinates, swizzle, step = case
    source, make = prepared(dtype, dims, box, swizzle, step)
    size = SIZES[dtype]
    elements = tile_elements(source, coordinates, dims, box, step)
    total = len(elements) * size
    names = ", ".join(map(str, coordinates))
    body = START + (
        f"@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], {total}; @p0 cp.async.bulk.tensor."
        f"{len(dims)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r5], "
        f"[map, {{{names}}}], [r0];"
    ) + WAIT + IMAGE.replace("SIZE", str(total))  # fmt: skip
    arrays = {"source": source, "map": make, "out": np.zeros(total, np.uint8)}
    image = clean(body, arrays, 32, shared=SHARED, schedule=schedule)["out"]
    for position, where in elements:
        wanted = source[where].tobytes() if where is not None else b"\0" * size
        start = swizzled_place(position * size, swizzle)
        assert image[start : start + size].tobytes() == wanted, (position, where)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{len(c[1])}d-{c[4]}")
@pytest.mark.parametrize("schedule", SCHEDULES[:2], ids=str)
def test_tiles_to_global_memory(case, schedule):
    dtype, dims, box, coordinates, swizzle, step = case
    before, make = prepared(dtype, dims, box, swizzle, step)
    size = SIZES[dtype]
    elements = tile_elements(before, coordinates, dims, box, step)
    total = len(elements) * size
    image = np.random.default_rng(5).integers(0, 256, total, np.uint8)
    names = ", ".join(map(str, coordinates))
    body = START + FILL.replace("SIZE", str(total)) + (
        f"@p0 cp.async.bulk.tensor.{len(dims)}d.global.shared::cta.tile.bulk_group "
        f"[map, {{{names}}}], [r5]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    )  # fmt: skip
    arrays = {"source": before.copy(), "map": make, "image": image}
    after = clean(body, arrays, 32, shared=SHARED, schedule=schedule)["source"]
    wanted = before.copy()
    for position, where in elements:
        if where is not None:
            start = swizzled_place(position * size, swizzle)
            wanted[where] = image[start : start + size].view(wanted.dtype)[0]
    assert (after.reshape(wanted.shape) == wanted).all()


ROWS = [3, 17, -1, 9]


@pytest.mark.parametrize("group", ["", ".cta_group::1"])
def test_gather4(group):
    """Four rows, one below the other; a row outside of the tensor is filled."""
    source, make = prepared("bf16", (72, 20), (64, 1), "128B", (1, 1))
    for column in (0, 5):
        body = START + (
            "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 512; @p0 cp.async.bulk.tensor.2d"
            f".shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes{group} [r5], "
            f"[map, {{{column}, {', '.join(map(str, ROWS))}}}], [r0];"
        ) + WAIT + IMAGE.replace("SIZE", "512")  # fmt: skip
        arrays = {"source": source, "map": make, "out": np.zeros(512, np.uint8)}
        image = clean(body, arrays, 32, shared=SHARED)["out"]
        for i, row in enumerate(ROWS):
            for j in range(64):
                start = swizzled_place(i * 128 + j * 2, "128B")
                inside = 0 <= row < 20 and column + j < 72
                wanted = int(source[row, column + j]) if inside else 0
                assert int(image[start : start + 2].view(np.uint16)[0]) == wanted


def test_scatter4():
    before, make = prepared("bf16", (72, 20), (64, 1), "none", (1, 1))
    image = np.random.default_rng(5).integers(0, 256, 512, np.uint8)
    body = START + FILL.replace("SIZE", "512") + (
        "@p0 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
        f"[map, {{8, {', '.join(map(str, ROWS))}}}], [r5]; cp.async.bulk.commit_group; "
        "cp.async.bulk.wait_group 0;"
    )  # fmt: skip
    arrays = {"source": before.copy(), "map": make, "image": image}
    after = clean(body, arrays, 32, shared=SHARED)["source"].reshape(before.shape)
    wanted = before.copy()
    for i, row in enumerate(ROWS):
        if row >= 0:
            wanted[row, 8:72] = image[i * 128 : i * 128 + 128].view(np.uint16)
    assert (after == wanted).all()


def test_reductions_of_tiles():
    before, make = prepared("i64", (8, 6), (8, 4), "none", (1, 1))
    image = np.arange(256, dtype=np.uint8)
    body = START + FILL.replace("SIZE", "256") + (
        "@p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
        "[map, {0, 3}], [r5]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    )  # fmt: skip
    arrays = {"source": before.copy(), "map": make, "image": image}
    after = clean(body, arrays, 32, shared=SHARED)["source"].reshape(before.shape)
    wanted = before.copy()
    wanted[3:6] += image.view(np.uint64).reshape(4, 8)[:3]
    assert (after == wanted).all()


OPERATIONS = {
    "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}  # fmt: skip
TWO_DIMS = [(op, kind) for op in ("add", "and", "or", "xor", "min", "max") for kind in
            ("u32", "i32", "u64", "i64") if (op, kind) != ("add", "i64")]  # fmt: skip
REDUCED = [*((op, kind, (8, 6)) for op, kind in TWO_DIMS), ("inc", "u32", (8, 6)),
           ("dec", "u32", (8, 6)), ("add", "u32", (24,)), ("max", "i32", (8, 3, 4)),
           ("xor", "u64", (4, 3, 2, 2)), ("add", "u32", (4, 3, 2, 2, 2))]  # fmt: skip


@pytest.mark.parametrize(("op", "kind", "dims"), REDUCED, ids=str)
@pytest.mark.parametrize("mode", ["", ".tile"])
def test_every_reduction_of_a_tile(op, kind, dims, mode):
    """A box at the origin, as large as the tensor but for the last dimension, combined with it."""
    size, is_signed = int(kind[1:]) // 8, kind[0] == "i"
    inner, outermost = dims[:-1], dims[-1]
    box = (*inner, max(outermost - 1, 1)) if inner else (16,)
    before, make = prepared(kind, dims, box, "none", (1,) * len(dims))
    count = int(np.prod(box))
    total = -(-count * size // 512) * 512
    edges = [0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), 3]
    rng = np.random.default_rng(7)
    words = rng.integers(0, 2 ** (8 * size - 1), total // size, dtype=f"u{size}")
    words[: len(edges)] = edges
    old = before.reshape(-1).view(f"u{size}").copy()
    old[:3] = [2 ** (8 * size) - 1, 0, 2]
    body = START + FILL.replace("SIZE", str(total)) + (
        f"@p0 cp.reduce.async.bulk.tensor.{len(dims)}d.global.shared::cta.{op}{mode}.bulk_group "
        f"[map, {{{', '.join('0' * len(dims))}}}], [r5]; cp.async.bulk.commit_group; "
        "cp.async.bulk.wait_group 0;"
    )  # fmt: skip
    arrays = {"source": old.view(before.dtype).reshape(before.shape), "map": make,
              "image": words.view(np.uint8)}  # fmt: skip
    after = clean(body, arrays, 32, shared=SHARED)["source"].reshape(-1).view(f"u{size}")

    def value(bits):
        bits = int(bits)
        return bits - (1 << 8 * size) if is_signed and bits >> (8 * size - 1) else bits

    wanted = [int(x) for x in old]
    for k in range(count):  # the box is the tensor's first elements
        wanted[k] = OPERATIONS[op](value(old[k]), value(words[k])) % 2 ** (8 * size)
    assert after.tolist() == wanted


def test_fill_by_nan():
    source, make = prepared("fp32", (8, 4), (8, 4), "none", (1, 1), fill="nan")
    body = START + (
        "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 128; @p0 cp.async.bulk.tensor.2d"
        ".shared::cta.global.tile.mbarrier::complete_tx::bytes [r5], [map, {4, 2}], [r0];"
    ) + WAIT + IMAGE.replace("SIZE", "128")  # fmt: skip
    arrays = {"source": source, "map": make, "out": np.zeros(128, np.uint8)}
    found = clean(body, arrays, 32, shared=SHARED)["out"].view(np.float32).reshape(4, 8)
    assert np.isnan(found[2:]).all()
    assert np.isnan(found[:, 4:]).all()
    assert (found[:2, :4].view(np.uint32) == source[2:, 4:]).all()


MULTICAST = """mov.u32 r0, bar; mov.u32 r5, cells; setp.eq.u32 p0, tid, 0;
mov.u32 r9, %cluster_ctarank; @p0 mbarrier.init.shared.b64 [r0], 1;
@p0 fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;
setp.eq.u32 p3, r9, {sender}; and.pred p4, p0, p3; {expect}
mov.u16 h1, 3; {address} @p4 cp.async.bulk.tensor.2d.shared::cluster.global.tile
.mbarrier::complete_tx::bytes.multicast::cluster{group} [r5], [map, {{0, 0}}], [r7], h1;
{wait} barrier.cluster.arrive; barrier.cluster.wait;
mov.u32 r1, tid; L: setp.ge.u32 p2, r1, 1024; @p2 bra E; add.u32 r2, r5, r1;
ld.shared.u8 h1, [r2]; mad.lo.u32 r3, cta, 1024, r1; cvt.u64.u32 l1, r3; add.u64 l1, l1, out;
st.global.u8 [l1], h1; add.u32 r1, r1, 32; bra L; E: barrier.cluster.arrive; barrier.cluster.wait;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_multicast_of_tiles(schedule):
    source, make = prepared("bf16", (64, 8), (64, 8), "128B", (1, 1))
    options = {"grid": 2, "cluster": (2,), "schedule": schedule, "shared": SHARED}
    arrays = {"source": source, "map": make, "out": np.zeros(2048, np.uint8)}
    wait = "W: mbarrier.try_wait.parity.shared.b64 p1, [r0], 0; @!p1 bra W;"
    own = MULTICAST.format(
        sender=1, expect="@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 1024;",
        address="mov.u32 r7, r0;", group="", wait=wait,
    )  # fmt: skip
    # with cta_group::2 both copies may signal the mbarrier of the pair's first block
    leader = MULTICAST.format(
        sender=1, group=".cta_group::2",
        expect="setp.ne.u32 p5, r9, 0; @p5 bra GO; "
        "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 2048; GO: ",
        address="and.b32 r7, r0, 0xFEFFFFFF;",
        wait=f"@p5 bra ON; {wait} ON:",
    )  # fmt: skip
    for body in (own, leader.replace("mov.u32 r0, bar;", "mov.u32 r0, bar;", 1)):
        body = body.replace("tile\n.mb", "tile.mb")
        out = clean(body, arrays, 32, **options)["out"].reshape(2, 1024)
        raw = source.view(np.uint8).reshape(-1)
        for position in range(0, 1024, 16):
            start = swizzled_place(position, "128B")
            for block in range(2):
                assert (out[block, start : start + 16] == raw[position : position + 16]).all()


def load_faults(edit=str, tensor=None, **options):
    source, make = prepared("bf16", (72, 20), (64, 8), "128B", (1, 1))
    body = START + (
        "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 1024; @p0 cp.async.bulk.tensor.2d"
        ".shared::cta.global.tile.mbarrier::complete_tx::bytes [r5], [map, {0, 0}], [r0];"
    ) + WAIT  # fmt: skip
    arrays = {"source": source, "map": tensor or make}
    return run_block(edit(body), arrays, 32, shared=SHARED, **options)[0].faults


def test_misuse_of_tiles():
    assert load_faults() == ()
    assert [f.kind for f in load_faults(lambda t: t.replace("[r5],", "[r5+16],"))] == ["alignment"]
    assert [f.kind for f in load_faults(lambda t: t.replace("[r5],", "[r5+8192],"))] == ["bounds"]
    (fault,) = load_faults(lambda t: t.replace("2d", "3d").replace("{0, 0}", "{0, 0, 0}"))
    assert fault.kind == "descriptor"
    assert "3 dimensions with a tensor map of 2" in fault.message
    (fault,) = load_faults(lambda t: t.replace("[map, ", "[source, "))
    assert "are no tensor map" in fault.message
    (fault,) = load_faults(lambda t: t.replace("[map, ", "[map+16, "))
    assert "not aligned to 64" in fault.message
    gather = "tile::gather4", "{0, 0, 1, 2, 3}"
    (fault,) = load_faults(
        lambda t: t.replace("global.tile.", f"global.{gather[0]}.").replace("{0, 0}", gather[1])
    )
    assert "tile::gather4 with a tensor map of 2 dimensions and box (64, 8)" in fault.message
    short = lambda places: TensorMap(places["source"], "bf16", (72, 40), (64, 8), swizzle="128B")  # noqa: E731
    late = lambda t: t.replace("{0, 0}", "{0, 16}")  # noqa: E731
    assert [f.kind for f in load_faults(late, short)] == ["bounds"]  # the map exceeds its memory


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"box": (72, 8)}, "inner box of 144 bytes"),
        ({"box": (60, 8)}, "no multiple of 16"),
        ({"box": (64, 257)}, "each extent is 1 to 256"),
        ({"box": (64,)}, "2 dimensions with a box of 1"),
        ({"stride_bytes": (100,)}, "not multiples of 16"),
        ({"base": 24}, "not multiples of 16"),
        ({"step": (1, 9)}, "each is 1 to 8"),
        ({"box": (32, 8)}, "not modelled"),
        ({"dtype": "fp4"}, "fp4"),
        ({"swizzle": "256B"}, "256B"),
        ({"fill": "one"}, "fill one"),
    ],
)
def test_maps_that_the_driver_refuses(change, text):
    good = {"base": 0, "dtype": "bf16", "dims": (72, 20), "box": (64, 8), "swizzle": "128B"}
    TensorMap(**good)
    with pytest.raises(ArgumentError, match=text.replace("(", r"\(")):
        TensorMap(**{**good, **change})


def test_prefetches_are_hints():
    source, make = prepared("bf16", (72, 20), (64, 8), "128B", (1, 1))
    body = "prefetch.tensormap [map];"
    for rank in range(1, 6):
        for mode in ("", ".tile"):
            coordinates = ", ".join("0" * rank)
            body += (
                f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global{mode} [map, {{{coordinates}}}];"
            )
    body += "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [map, {0, 1, 2, 3, 4}];"
    assert kinds(body, {"source": source, "map": make}) == []
