"""tcgen05 against scalar models: loads and stores, copies, products, allocation, order."""

from __future__ import annotations

import numpy as np
import pytest
from test_wgmma import encode, place_of, strides_of
from whole_block import clean, run_block

from sparsekit.emulator import CHECKS, Schedule, UnsupportedError

BYTES = 65536
SHARED = (
    ".shared .align 8 .b64 bar; .shared .align 16 .b32 slot; "
    f".shared .align 1024 .b8 cells[{BYTES}];"
)
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]
MODES = {"none": 0, "128B": 2, "64B": 4, "32B": 6}
B_START = 32768
ALLOC = """mov.u32 r0, slot; mov.u32 r5, cells; mov.u32 r6, bar; setp.eq.u32 p0, tid, 0;
setp.lt.u32 p4, tid, 32; @!p4 bra A1;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0], COLUMNS;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
A1: @p0 mbarrier.init.shared.b64 [r6], 1; @p0 fence.mbarrier_init.release.cluster;
tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
ld.shared.u32 r1, [r0];""".replace("COLUMNS", "512")
FREE = """bar.sync 0; @!p4 bra A2;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 r1, 512; A2:"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 p1, [r6], 0; @!p1 bra W;"
COMMIT = "@p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [r6];"
WAIT_ST, WAIT_LD = "tcgen05.wait::st.sync.aligned;", "tcgen05.wait::ld.sync.aligned;"


def cell_of(shape: str, thread: int, register: int) -> tuple[int, int]:
    """(lane, column) by the figures of the ISA (Data Movement Shape)."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":  # rows 0 and 8 alternate, two columns of pairs
        return thread // 4 + (8 if thread % 2 else 0), 2 * register + (thread % 4) // 2
    if shape == "16x128b":  # a row of 4 threads, then 8 rows further down
        return thread // 4 + (8 if register % 2 else 0), 4 * (register // 2) + thread % 4
    # 16x256b: as the accumulator of mma.sync m16n8
    row = thread // 4 + (8 if register % 4 >= 2 else 0)
    return row, 8 * (register // 4) + 2 * (thread % 4) + register % 2


PER_X1 = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}


def registers(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"{prefix}{i}" for i in range(count)) + "}"


def write_all(columns: int) -> str:
    """Every cell holds its lane times 1000 plus its column."""
    count = min(columns, 64)
    lines = ["mad.lo.u32 r9, tid, 1000, 0; and.b32 r3, tid, 96; shl.b32 r3, r3, 16;"
             "add.u32 r8, r1, r3;"]  # fmt: skip
    for start in range(0, columns, count):
        lines += [f"add.u32 w{i}, r9, {start + i};" for i in range(count)]
        lines.append(
            f"tcgen05.st.sync.aligned.32x32b.x{count}.b32 [r8+{start}], {registers('w', count)};"
        )
    return " ".join(lines) + WAIT_ST


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
@pytest.mark.parametrize("number", [1, 2, 8, 16])
@pytest.mark.parametrize("shape", PER_X1)
def test_loads(shape, number, schedule):
    count = PER_X1[shape] * number
    body = (
        ".reg .b32 w<64>; .reg .b32 v<128>;" + ALLOC + write_all(192)
        + f"add.u32 r7, r8, {4};" + ("" if shape == "32x32b" else "add.u32 r7, r7, 0x100000;")
        + f"tcgen05.ld.sync.aligned.{shape}.x{number}.b32 {registers('v', count)}, [r7];" + WAIT_LD
        + f"mad.wide.u32 l0, tid, {4 * count}, out;"
        + "".join(f"st.global.u32 [l0+{4 * i}], v{i};" for i in range(count)) + FREE
    )  # fmt: skip
    out = clean(body, {"out": 128 * count * 4}, 128, shared=SHARED, schedule=schedule)["out"]
    for thread in range(128):
        for register in range(count):
            lane, column = cell_of(shape, thread % 32, register)
            lane += thread // 32 * 32 + (0 if shape == "32x32b" else 16)
            assert out[thread * count + register] == 1000 * lane + column + 4


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("shape", PER_X1)
def test_stores(shape, number):
    count = PER_X1[shape] * number
    width = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape] * number
    body = (
        ".reg .b32 w<64>; .reg .b32 v<128>;" + ALLOC + write_all(64) + "bar.sync 0;"
        + "".join(f"mad.lo.u32 v{i}, tid, 64, {500000 + i};" for i in range(count))
        + f"tcgen05.st.sync.aligned.{shape}.x{number}.b32 [r8], {registers('v', count)};" + WAIT_ST
        + f"tcgen05.ld.sync.aligned.32x32b.x64.b32 {registers('w', 64)}, [r8];" + WAIT_LD
        + "mad.wide.u32 l0, tid, 256, out;"
        + "".join(f"st.global.u32 [l0+{4 * i}], w{i};" for i in range(64)) + FREE
    )  # fmt: skip
    out = clean(body, {"out": 128 * 256}, 128, shared=SHARED)["out"].reshape(128, 64)
    wanted = np.arange(128)[:, None] * 1000 + np.arange(64)
    for thread in range(128):
        for register in range(count):
            lane, column = cell_of(shape, thread % 32, register)
            wanted[thread // 32 * 32 + lane, column] = thread * 64 + 500000 + register
    assert width <= 64
    assert (out == wanted).all()


LARGEST = [("32x32b", 128), ("16x64b", 128), ("16x128b", 64), ("16x256b", 32), ("32x32b", 32),
           ("16x32bx2", 128), ("16x32bx2", 32), ("16x32bx2", 16), ("16x32bx2", 1)]  # fmt: skip


@pytest.mark.parametrize(("shape", "number"), LARGEST)
def test_what_one_store_writes_one_load_reads(shape, number):
    """Stored by the shape, read back by it, and read cell by cell."""
    count = PER_X1.get(shape, 1) * number
    split = {"16x32bx2": ", 256"}.get(shape, "")
    body = (
        f".reg .b32 w<32>; .reg .b32 v<{count}>;" + ALLOC + write_float(512) + "bar.sync 0;"
        + "".join(f"mad.lo.u32 v{i}, tid, 1000, {i};" for i in range(count))
        + f"tcgen05.st.sync.aligned.{shape}.x{number}.b32 [r8]{split}, {registers('v', count)};"
        + WAIT_ST + "".join(f"mov.b32 v{i}, 0;" for i in range(count))
        + f"tcgen05.ld.sync.aligned.{shape}.x{number}.b32 {registers('v', count)}, [r8]{split};"
        + WAIT_LD + f"mad.wide.u32 l0, tid, {4 * count}, back;"
        + "".join(f"st.global.u32 [l0+{4 * i}], v{i};" for i in range(count))
        + "mad.wide.u32 l1, tid, 2048, cells_out;"
    ).replace(".reg .b32 w<32>", ".reg .b32 w<64>")  # fmt: skip
    for start in range(0, 512, 64):
        body += f"tcgen05.ld.sync.aligned.32x32b.x64.b32 {registers('w', 64)}, [r8+{start}];"
        body += WAIT_LD
        body += "".join(f"st.global.u32 [l1+{4 * (start + i)}], w{i};" for i in range(64))
    arrays = {"back": 128 * count * 4, "cells_out": 128 * 512 * 4}
    after = clean(body + FREE, arrays, 128, shared=SHARED)
    numbers = np.arange(128)[:, None] * 1000 + np.arange(count)
    assert (after["back"].reshape(128, count) == numbers).all()
    plain = (np.arange(128)[:, None] + np.arange(512)).astype(np.float32).view(np.uint32)
    wanted = plain.copy()
    for thread in range(128):
        for register in range(count):
            if split:
                lane, column = thread % 16, register + (256 if thread % 32 >= 16 else 0)
            else:
                lane, column = cell_of(shape, thread % 32, register)
            wanted[thread // 32 * 32 + lane, column] = numbers[thread, register]
    assert (after["cells_out"].reshape(128, 512) == wanted).all()


def test_halves_apart():
    """16x32bx2: the second 16 threads have the same lanes, so many columns further."""
    body = (
        ".reg .b32 w<64>; .reg .b32 v<4>;" + ALLOC + write_all(64)
        + f"tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {registers('v', 4)}, [r8+3], 32;" + WAIT_LD
        + "mad.wide.u32 l0, tid, 16, out; st.global.v4.u32 [l0], {v0, v1, v2, v3};" + FREE
    )  # fmt: skip
    out = clean(body, {"out": 128 * 16}, 128, shared=SHARED)["out"].reshape(128, 4)
    for thread in range(128):
        lane = thread // 32 * 32 + thread % 16
        start = 3 + (32 if thread % 32 >= 16 else 0)
        assert out[thread].tolist() == [1000 * lane + start + i for i in range(4)]


def test_two_columns_in_a_register():
    body = (
        ".reg .b32 w<64>; .reg .b32 v<4>;" + ALLOC + write_all(64)
        + f"tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {registers('v', 4)}, [r8];" + WAIT_LD
        + "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [r8+16], {v1, v2};" + WAIT_ST
        + "tcgen05.ld.sync.aligned.32x32b.x4.b32 {w0, w1, w2, w3}, [r8+16];" + WAIT_LD
        + "mad.wide.u32 l0, tid, 32, out; st.global.v4.u32 [l0], {v0, v1, v2, v3};"
        + "st.global.v4.u32 [l0+16], {w0, w1, w2, w3};" + FREE
    )  # fmt: skip
    out = clean(body, {"out": 128 * 32}, 128, shared=SHARED)["out"].reshape(128, 8)
    for lane in range(128):
        cells = [(1000 * lane + c) & 0xFFFF for c in range(8)]
        assert out[lane, :4].tolist() == [cells[2 * i] | cells[2 * i + 1] << 16 for i in range(4)]
        assert out[lane, 4:].tolist() == cells[2:6]


# ---- products and copies

FILL = f"""mov.u32 r2, tid; F: setp.ge.u32 p2, r2, {BYTES // 16}; @p2 bra G;
mad.lo.u32 r3, r2, 16, r5; mad.wide.u32 l1, r2, 16, image;
ld.global.v4.u32 {{r10, r11, r12, r13}}, [l1]; st.shared.v4.u32 [r3], {{r10, r11, r12, r13}};
add.u32 r2, r2, 128; bra F; G: fence.proxy.async; bar.sync 0; shr.u32 r2, r5, 4;
cvt.u64.u32 l2, r2;"""
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}
SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


def descriptor(start, leading, stride, mode):
    return start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | MODES[mode] << 61


def put(image, matrix, kind, mode, mn_major, start):
    size = SIZES[kind]
    leading, stride = strides_of(len(matrix), size, mode, mn_major)
    for r, row in enumerate(matrix.tolist()):
        for k, value in enumerate(row):
            at = start + place_of(r, k, size, mode, mn_major, leading, stride)
            word = encode(value, kind).to_bytes(size, "little")
            image[at : at + size] = np.frombuffer(word, np.uint8)
    return descriptor(start, leading, stride, mode)


def instruction(kind_a, kind_b, m, n, majors=(False, False), signs=(1, 1)) -> int:
    bits = 1 << 4 | CODES[kind_a] << 7 | CODES[kind_b] << 10 | n // 8 << 17 | m // 16 << 24
    bits |= (signs[0] < 0) << 13 | (signs[1] < 0) << 14
    return bits | majors[0] << 15 | majors[1] << 16


def row_lanes(m: int, stationary: bool, column: int, n: int) -> tuple[list[int], int]:
    """(lane of each row of D, column of tensor memory) of a column of D."""
    if m == 128:
        return list(range(128)), column
    if m == 64 and not stationary:
        return [r // 16 * 32 + r % 16 for r in range(64)], column
    parts = 128 // m  # the columns are cut into parts, one below the other
    width = n // parts
    return [r + m * (column // width) for r in range(m)], column % width


def product(kind_a="bf16", kind_b="bf16", m=128, n=32, mode="128B", majors=(False, False),
            signs=(1, 1), adds=0, stationary=False, in_memory=False, schedule=None, edit=str,
            masked="", tail="", **options):  # fmt: skip
    """(D found in tensor memory, D by scalar sums, report)."""
    rng = np.random.default_rng(m + n)
    k = 32 // SIZES[kind_a]
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (n, k))
    image = np.zeros(BYTES, np.uint8)
    da = put(image, a, kind_a, mode, majors[0], 0)
    db = put(image, b, kind_b, mode, majors[1], B_START)
    name = {"f16": "f16", "bf16": "f16", "tf32": "tf32"}.get(kind_a, "f8f6f4")
    words = np.zeros((128, 8), np.uint32)
    if in_memory:
        for column in range(0, n, max(n // (128 // m), 1)):
            for row, lane in enumerate(row_lanes(m, stationary, column, n)[0]):
                packed = b"".join(
                    encode(int(v), kind_a).to_bytes(SIZES[kind_a], "little") for v in a[row]
                )
                words[lane] = np.frombuffer(packed, np.uint32)
    ws = ".ws" if stationary else ""
    left = "[r14]" if in_memory else "l3"
    wide = 8 if n % 64 else 64
    body = (
        ".reg .b32 w<64>; .reg .b32 v<8>;" + ALLOC + FILL + write_float(n)
        + "add.u32 r14, r1, 256; mad.wide.u32 l5, tid, 32, words; add.u32 r15, r8, 256;"
        + "ld.global.v4.u32 {v0, v1, v2, v3}, [l5]; ld.global.v4.u32 {v4, v5, v6, v7}, [l5+16];"
        + f"tcgen05.st.sync.aligned.32x32b.x8.b32 [r15], {registers('v', 8)};" + WAIT_ST
        + f"bar.sync 0; add.u64 l3, l2, {da}; add.u64 l4, l2, {db}; setp.ne.u32 p3, {adds}, 0;"
        + f"mov.u32 r16, {instruction(kind_a, kind_b, m, n, majors, signs)};"
        + f"@p0 tcgen05.mma{ws}.cta_group::1.kind::{name} [r1], {left}, l4, r16, p3{masked};"
        + COMMIT + WAIT
    )  # fmt: skip
    for start in range(0, n, wide):
        body += (
            f"tcgen05.ld.sync.aligned.32x32b.x{wide}.b32 {registers('w', wide)}, [r8+{start}];"
            + WAIT_LD + f"mad.wide.u32 l6, tid, {4 * n}, out;"
            + "".join(f"st.global.u32 [l6+{4 * (start + i)}], w{i};" for i in range(wide))
        )  # fmt: skip
    body += tail + FREE
    arrays = {"image": image, "words": words, "out": 4 * 128 * n}
    report, after = run_block(edit(body), arrays, 128, shared=SHARED, schedule=schedule, **options)
    cells = after["out"].view(np.float32).reshape(128, n)
    wanted = signs[0] * signs[1] * (a @ b.T).astype(float)
    found = np.zeros((m, n))
    for column in range(n):
        lanes, place = row_lanes(m, stationary, column, n)
        found[:, column] = cells[lanes, place]
        wanted[:, column] += adds * (np.array(lanes) + place)
    return found, wanted, report


def write_float(columns: int) -> str:
    """Every cell holds its lane plus its column, as f32."""
    count = 8 if columns % 64 else 64
    lines = ["and.b32 r3, tid, 96; shl.b32 r3, r3, 16; add.u32 r8, r1, r3;"]
    for start in range(0, columns, count):
        lines += [
            f"add.u32 w{i}, tid, {start + i}; cvt.rn.f32.u32 f0, w{i}; mov.b32 w{i}, f0;"
            for i in range(count)
        ]
        lines.append(
            f"tcgen05.st.sync.aligned.32x32b.x{count}.b32 [r8+{start}], {registers('w', count)};"
        )
    return " ".join(lines) + WAIT_ST


def check(**how):
    found, wanted, report = product(**how)
    report.raise_faults()
    assert (found == wanted).all()


@pytest.mark.parametrize("in_memory", [False, True], ids=["SS", "TS"])
@pytest.mark.parametrize(
    ("m", "n", "stationary"),
    [(64, 8, False), (64, 72, False), (128, 16, False), (128, 256, False), (32, 64, True),
     (64, 128, True), (128, 64, True)],
)  # fmt: skip
def test_extents(m, n, stationary, in_memory):
    for adds in (0, 1):
        check(m=m, n=n, stationary=stationary, in_memory=in_memory, adds=adds)


def test_a_mask_of_columns_is_none():
    check(m=64, n=64, stationary=True, masked=", 0")
    with pytest.raises(UnsupportedError, match="a mask of columns"):
        check(m=64, n=64, stationary=True, masked=", 1")


@pytest.mark.parametrize(("kind_a", "kind_b"), [("tf32", "tf32"), ("e4m3", "e5m2"), ("f16", "f16")])
def test_types_of_stationary_products(kind_a, kind_b):
    for in_memory in (False, True):
        check(kind_a=kind_a, kind_b=kind_b, m=64, n=64, stationary=True, in_memory=in_memory)


USES = ("fill", "use", "lastuse", "discard")


@pytest.mark.parametrize("use", USES)
def test_collectors_change_no_product(use):
    """What a collector keeps is what the operand holds: a fill, and the same product again."""

    def again(name):
        def edit(text):
            (line,) = [x for x in text.split(";") if ".kind::" in x]
            first, second = (
                line.replace(" [r1]", f".collector::{name}::{how} [r1]") for how in ("fill", use)
            )
            return text.replace(line, f"{first};{second}")

        return edit

    check(m=64, n=64, edit=again("a"))
    for k in range(4):
        check(m=64, n=64, stationary=True, edit=again(f"b{k}"))


@pytest.mark.parametrize("mode", MODES)
def test_layouts(mode):
    for majors in ((False, False), (True, False), (False, True)):
        check(mode=mode, majors=majors, kind_a="f16", kind_b="f16", n=64)


@pytest.mark.parametrize(
    ("kind_a", "kind_b"), [("f16", "f16"), ("f16", "bf16"), ("tf32", "tf32"), ("e4m3", "e5m2")]
)
def test_types(kind_a, kind_b):
    for in_memory in (False, True):
        check(kind_a=kind_a, kind_b=kind_b, in_memory=in_memory)
    check(kind_a=kind_a, kind_b=kind_b, signs=(-1, 1))
    check(kind_a=kind_a, kind_b=kind_b, signs=(-1, -1))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules(schedule):
    check(schedule=schedule, adds=1)


def test_lanes_left_out_and_powers():
    def edit(text):
        text = text.replace("r16, p3;", "r16, {r20, r21, r22, r23}, p3, 2;")
        return text.replace("setp.ne.u32 p3", "mov.u32 r20, 0xF0; mov.u32 r21, 0; mov.u32 r22, 0; "
                            "mov.u32 r23, 0x80000000; setp.ne.u32 p3")  # fmt: skip

    found, wanted, report = product(edit=edit, adds=1)
    report.raise_faults()
    before = np.arange(128)[:, None] + np.arange(32)
    left_out = np.isin(np.arange(128), [4, 5, 6, 7, 127])
    wanted = np.where(left_out[:, None], before, wanted - before + before / 4)
    assert (found == wanted).all()


COPIES = [("128x256b", "", 8), ("128x128b", "", 4), ("64x128b", ".warpx2::02_13", 4),
          ("64x128b", ".warpx2::01_23", 4), ("32x128b", ".warpx4", 4)]  # fmt: skip


@pytest.mark.parametrize("mode", ["none", "32B", "128B"])
@pytest.mark.parametrize(("shape", "multicast", "words"), COPIES)
def test_copies(shape, multicast, words, mode):
    rows = int(shape.split("x")[0])
    data = np.random.default_rng(1).integers(0, 2**32, (rows, words), np.uint32)
    image = np.zeros(BYTES, np.uint8)
    leading, stride = strides_of(rows, 4, mode, False)
    for r in range(rows):
        for word in range(words):
            at = place_of(r, word, 4, mode, False, leading, stride)
            image[at : at + 4] = data[r : r + 1, word].view(np.uint8)
    body = (
        ".reg .b32 w<8>;" + ALLOC + FILL
        + f"add.u64 l3, l2, {descriptor(0, leading, stride, mode)};"
        + f"@p0 tcgen05.cp.cta_group::1.{shape}{multicast} [r1], l3;" + COMMIT + WAIT
        + "and.b32 r3, tid, 96; shl.b32 r3, r3, 16; add.u32 r8, r1, r3;"
        + f"tcgen05.ld.sync.aligned.32x32b.x{words}.b32 {registers('w', words)}, [r8];" + WAIT_LD
        + f"mad.wide.u32 l6, tid, {4 * words}, out;"
        + "".join(f"st.global.u32 [l6+{4 * i}], w{i};" for i in range(words)) + FREE
    )  # fmt: skip
    out = clean(body, {"image": image, "out": 512 * words}, 128, shared=SHARED)["out"]
    out = out.reshape(128, words)
    for lane in range(128):
        quarter = lane // 32
        if rows == 128:
            row = lane
        elif rows == 64:
            half = {".warpx2::02_13": quarter % 2, ".warpx2::01_23": quarter // 2}[multicast]
            row = 32 * half + lane % 32
        else:
            row = lane % 32
        assert out[lane].tolist() == data[row].tolist()


# ---- order


def names(**how):
    return {f.kind for f in product(n=32, **how)[2].faults}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_orders_products(schedule):
    options = {"schedule": schedule}
    gone = lambda part, instead="": {"edit": lambda t: t.replace(part, instead, 1)}  # noqa: E731
    assert names(**options) == set()
    assert names(**gone(COMMIT), **options) == {"deadlock"}
    assert "race" in names(**gone(WAIT), **options)
    no_fence = names(**gone("fence.proxy.async;"), **options)
    assert no_fence == {"proxy-fence"}
    early = COMMIT + "@p0 mbarrier.arrive.shared.b64 _, [r6];"
    moved = names(
        edit=lambda t: t.replace(COMMIT + WAIT, early.replace(COMMIT, "") + WAIT), **options
    )
    assert moved == {"race"}
    overwrite = "st.shared.u32 [r5], 0;"
    assert names(**gone(COMMIT + WAIT, COMMIT + overwrite + WAIT), **options) >= {"race"}


def test_what_orders_loads_and_stores():
    body = (
        ".reg .b32 w<64>; .reg .b32 v<8>;" + ALLOC + "and.b32 r3, tid, 96; shl.b32 r3, r3, 16;"
        "add.u32 r8, r1, r3; mov.u32 w0, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [r8], {w0};"
        + WAIT_ST + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {w1}, [r8];" + WAIT_LD
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [r8], {w0};" + WAIT_ST + FREE
    )  # fmt: skip

    def found(text):
        return {f.kind for f in run_block(text, {}, 128, shared=SHARED)[0].faults}

    assert found(body) == set()
    assert found(body.replace(WAIT_ST, "", 1)) == {"race"}
    assert found(body.replace(WAIT_LD, "", 1)) == {"race"}
    assert found(body[::-1].replace(WAIT_ST[::-1], "", 1)[::-1]) == {"race"}  # before it is freed
    assert found(body.replace("[r8], {w0};", "[r8+1], {w0};", 1)) == {"uninitialised"}
    assert found(body.replace("add.u32 r8, r1, r3;", "add.u32 r8, r1, 0x200000;")) == {
        "tensor-memory"
    }


def test_allocation():
    def found(text):
        report, _ = run_block(text, {}, 128, shared=SHARED)
        return [(f.kind, f.message) for f in report.faults]

    body = ALLOC + FREE
    assert found(body) == []
    (fault,) = found(ALLOC)
    assert "never freed" in fault[1]
    assert "takes a power of two" in found(body.replace("512", "48"))[0][1]
    assert "takes a power of two" in found(body.replace("512", "16"))[0][1]
    assert "are freed; 512 were allocated" in found(body.replace("r1, 512;", "r1, 256;"))[0][1]
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0], {};"
    twice = body.replace("tcgen05.relinquish", alloc.format(32) + "tcgen05.relinquish", 1)
    assert found(twice)[0][0] == "deadlock"
    late = body.replace("512", "64").replace("A1:", alloc.format(64) + "A1:", 1)
    assert "after the permit was relinquished" in found(late)[0][1]
    outside = ALLOC.replace("512", "32") + (
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [r1+32], {tid};" + WAIT_ST
    )
    (fault,) = found(outside)
    assert fault[0] == "tensor-memory"
    assert "columns 32 to 32 of tensor memory are not allocated" in fault[1]


def test_two_allocations_are_neighbours():
    text = ALLOC.replace("512", "64").replace(
        "tcgen05.relinquish",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r0+-4], 64; tcgen05.relinquish",
        1,
    )
    body = text + FREE.replace("512", "64").replace(
        "A2:", "add.u32 r2, r1, 64; tcgen05.dealloc.cta_group::1.sync.aligned.b32 r2, 64; A2:"
    )
    shared = SHARED.replace(".align 16 .b32 slot", ".align 16 .b32 other; .shared .b32 slot")
    assert run_block(body, {}, 128, shared=shared)[0].faults == ()


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda t: t.replace("cta_group::1.kind", "cta_group::1.kind"), None),
        (lambda t: t.replace("mov.u32 r16, ", "mov.u32 r16, 4; mov.u32 r17, "), "not modelled"),
        (lambda t: t.replace("kind::f16 [r1]", "kind::tf32 [r1]"), "element types"),
        (lambda t: t.replace("add.u64 l4, l2, ", "mov.u64 l4, "), None),
        (lambda t: t.replace("kind::f16 [r1]", "kind::i8 [r1]"), "not modelled"),
        (lambda t: t.replace("kind::f16 [r1]", "kind::mxf4 [r1]"), "not modelled"),
    ],
)  # fmt: skip
def test_what_is_not_modelled(edit, why):
    if why is None:
        product(edit=edit)
        return
    with pytest.raises(UnsupportedError, match=why):
        product(edit=edit)


def test_descriptors():
    assert names(edit=lambda t: t.replace("mov.u32 r16, ", "mov.u32 r16, 0x1040490; mov.u32 r17, ")
                 ) == {"descriptor"}  # fmt: skip
    with pytest.raises(UnsupportedError, match="0b001"):
        product(
            edit=lambda t: t.replace("setp.ne.u32 p3", "and.b64 l4, l4, 0x3FFF; setp.ne.u32 p3")
        )


def test_registers_before_their_wait():
    """Hardware waits where a register is used; the strict check wants the instruction."""
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {w1}, [r8];"
    body = (
        ".reg .b32 w<64>;" + ALLOC + write_all(8) + load
        + "{wait} mov.b32 w3, w1; add.u32 w2, w3, 1; {late}" + FREE
    )  # fmt: skip
    strict = [*CHECKS, "tensor-load"]

    def found(wait, late, **options):
        text = body.replace("{wait}", wait).replace("{late}", late)
        return [f.kind for f in run_block(text, {}, 128, shared=SHARED, **options)[0].faults]

    assert found(WAIT_LD, "", checks=strict) == []
    assert found("", WAIT_LD) == []
    assert found("", WAIT_LD, checks=strict) == ["tensor-load"]


FENCES = "tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;"


def test_fences_between_warps():
    """Warps 0 and 4 have the same lanes: one stores, the other loads."""
    body = (
        ".reg .b32 w<64>;" + ALLOC + "mov.u32 w0, 5; @!p4 bra B1;"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [r1], {w0};" + WAIT_ST + "B1: {before} bar.sync 0;"
        "{after} setp.lt.u32 p5, tid, 128; @p5 bra B2; setp.ge.u32 p5, tid, 160; @p5 bra B2;"
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {w1}, [r1];" + WAIT_LD + "B2: " + FREE
    )  # fmt: skip
    strict = [*CHECKS, "tensor-fence"]

    def found(before=FENCES[0], after=FENCES[1], checks=strict):
        text = body.replace("{before}", before).replace("{after}", after)
        return [f.kind for f in run_block(text, {}, 256, shared=SHARED, checks=checks)[0].faults]

    assert found() == []
    assert found(before="") == ["tensor-fence"]
    assert found(after="") == ["tensor-fence"]
    assert found(before="", after="", checks=CHECKS) == []


def test_fences_between_a_load_and_what_overwrites_it():
    """Warps 0 and 4 have the same lanes: 0 loads between two stores of 4 (PTX ISA, Non-pipelined
    instructions, different thread)."""
    meet = f"{FENCES[0]} bar.sync 0; {FENCES[1]}"
    store = (
        "setp.lt.u32 p5, tid, 128; @p5 bra NAME; setp.ge.u32 p5, tid, 160; @p5 bra NAME;"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [r1], {w0};" + WAIT_ST + "NAME: "
    )
    body = (
        ".reg .b32 w<64>;" + ALLOC + "mov.u32 w0, 5;" + store.replace("NAME", "B0") + meet
        + "@!p4 bra B1; tcgen05.ld.sync.aligned.32x32b.x1.b32 {w1}, [r1];" + WAIT_LD
        + "B1: {before} bar.sync 0; {after}" + store.replace("NAME", "B2") + meet + FREE
    )  # fmt: skip
    strict = [*CHECKS, "tensor-fence"]

    def found(before=FENCES[0], after=FENCES[1]):
        text = body.replace("{before}", before).replace("{after}", after)
        faults = run_block(text, {}, 256, shared=SHARED, checks=strict)[0].faults
        return [(f.kind, f.message.partition(";")[0]) for f in faults]

    read = "writes cells of tensor memory that tcgen05.ld of warp 0 has read"
    assert found() == []
    assert found(before="") == [("tensor-fence", read)]
    assert found(after="") == [("tensor-fence", read)]
