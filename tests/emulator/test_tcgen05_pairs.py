"""tcgen05 by pairs of blocks (cta_group::2): each has half of A, of B's rows and of D."""

from __future__ import annotations

import numpy as np
import pytest
from test_tcgen05 import BYTES, SHARED, descriptor, instruction, put, registers
from test_wgmma import place_of, strides_of
from whole_block import run_block

from sparsekit.emulator import Schedule

SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1)]
B_START = 32768
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
START = f"""mov.u32 r0, slot; mov.u32 r5, cells; mov.u32 r6, bar; setp.eq.u32 p0, tid, 0;
setp.lt.u32 p4, tid, 32; mov.u32 r9, %cluster_ctarank; @!p4 bra A1;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [r0], 512;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
A1: @p0 mbarrier.init.shared.b64 [r6], 1; @p0 fence.mbarrier_init.release.cluster;
mov.u32 r2, tid; F: setp.ge.u32 p2, r2, {BYTES // 16}; @p2 bra G;
mad.lo.u32 r3, r2, 16, r5; mad.lo.u32 r4, r9, {BYTES // 16}, r2; mad.wide.u32 l1, r4, 16, image;
ld.global.v4.u32 {{r10, r11, r12, r13}}, [l1]; st.shared.v4.u32 [r3], {{r10, r11, r12, r13}};
add.u32 r2, r2, 128; bra F; G: fence.proxy.async; {MEET} ld.shared.u32 r1, [r0];
and.b32 r2, r5, 0xFFFFFF; shr.u32 r2, r2, 4; cvt.u64.u32 l2, r2; setp.eq.u32 p5, r9, 0;
and.pred p6, p0, p5; and.b32 r3, tid, 96; shl.b32 r3, r3, 16; add.u32 r8, r1, r3;"""
WAIT = """mov.u16 h1, 3; @p6 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster
.multicast::cluster.b64 [r6], h1; W: mbarrier.try_wait.parity.shared.b64 p1, [r6], 0;
@!p1 bra W;""".replace("cluster\n.multi", "cluster.multi")
END = f"{MEET} @!p4 bra A2; tcgen05.dealloc.cta_group::2.sync.aligned.b32 r1, 512; A2:"


def give(columns: int) -> str:
    """All lanes of so many columns to out: [block, lane, column]."""
    text = f"mad.lo.u32 r14, r9, 128, tid; mad.wide.u32 l6, r14, {4 * columns}, out;"
    for start in range(0, columns, 32):
        text += (
            f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers('w', 32)}, [r8+{start}];"
            "tcgen05.wait::ld.sync.aligned;"
            + "".join(f"st.global.u32 [l6+{4 * (start + i)}], w{i};" for i in range(32))
        )
    return text


def run(body, arrays, schedule, **options):
    return run_block(
        ".reg .b32 w<32>;" + START + body + END, arrays, 128, shared=SHARED, grid=2, cluster=(2,),
        schedule=schedule, **options,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("m", [128, 256])
def test_products(m, n, schedule):
    rng = np.random.default_rng(m + n)
    a, b = rng.integers(-4, 5, (m, 16)), rng.integers(-4, 5, (n, 16))
    images = np.zeros((2, BYTES), np.uint8)
    for block in range(2):
        da = put(images[block], a[m // 2 * block :][: m // 2], "bf16", "128B", False, 0)
        db = put(images[block], b[n // 2 * block :][: n // 2], "bf16", "128B", False, B_START)
    columns = n if m == 256 else n // 2
    body = (
        f"add.u64 l3, l2, {da}; add.u64 l4, l2, {db}; setp.ne.u32 p3, 0, 0;"
        f"mov.u32 r16, {instruction('bf16', 'bf16', m, n)};"
        "@p6 tcgen05.mma.cta_group::2.kind::f16 [r1], l3, l4, r16, p3;" + WAIT + give(columns)
    )
    arrays = {"image": images.reshape(-1), "out": 2 * 128 * columns * 4}
    report, after = run(body, arrays, schedule)
    report.raise_faults()
    cells = after["out"].view(np.float32).reshape(2, 128, columns)
    wanted = a @ b.T
    for row in range(m):
        block, inside = divmod(row, m // 2)
        for column in range(n):
            lane, place = inside, column
            if m == 128:  # 64 rows a block: the second half of the columns is below the first
                lane, place = inside + 64 * (column // (n // 2)), column % (n // 2)
            assert cells[block, lane, place] == wanted[row, column]


def test_copies_go_to_both_blocks():
    data = np.random.default_rng(1).integers(0, 2**32, (2, 128, 8), np.uint32)
    images = np.zeros((2, BYTES), np.uint8)
    leading, stride = strides_of(128, 4, "32B", False)
    for block in range(2):
        for r in range(128):
            for word in range(8):
                at = place_of(r, word, 4, "32B", False, leading, stride)
                images[block, at : at + 4] = data[block, r : r + 1, word].view(np.uint8)
    body = (
        f"add.u64 l3, l2, {descriptor(0, leading, stride, '32B')};"
        "@p6 tcgen05.cp.cta_group::2.128x256b [r1], l3;" + WAIT + give(32)
    )
    arrays = {"image": images.reshape(-1), "out": 2 * 128 * 32 * 4}
    report, after = run(body, arrays, SCHEDULES[0], checks=("bounds", "race"))
    found = {f.kind for f in report.faults}
    assert found == set()
    assert (after["out"].reshape(2, 128, 32)[:, :, :8] == data).all()


COPIED = [("128x128b", "", 4), ("64x128b", ".warpx2::02_13", 4), ("64x128b", ".warpx2::01_23", 4),
          ("32x128b", ".warpx4", 4)]  # fmt: skip


@pytest.mark.parametrize(("shape", "multicast", "words"), COPIED)
def test_copies_of_every_shape(shape, multicast, words):
    """Each block's lanes get the rows of its own shared memory, as often as the shape says."""
    rows = int(shape.split("x")[0])
    data = np.random.default_rng(3).integers(0, 2**32, (2, rows, words), np.uint32)
    images = np.zeros((2, BYTES), np.uint8)
    leading, stride = strides_of(rows, 4, "none", False)
    for block in range(2):
        for r in range(rows):
            for word in range(words):
                at = place_of(r, word, 4, "none", False, leading, stride)
                images[block, at : at + 4] = data[block, r : r + 1, word].view(np.uint8)
    body = (
        f"add.u64 l3, l2, {descriptor(0, leading, stride, 'none')};"
        f"@p6 tcgen05.cp.cta_group::2.{shape}{multicast} [r1], l3;" + WAIT + give(32)
    )
    arrays = {"image": images.reshape(-1), "out": 2 * 128 * 32 * 4}
    report, after = run(body, arrays, SCHEDULES[0], checks=("bounds", "race"))
    assert report.faults == ()
    found = after["out"].reshape(2, 128, 32)[:, :, :words]
    for lane in range(128):
        warp, inside = divmod(lane, 32)
        row = {
            "": lane, ".warpx2::02_13": 32 * (warp % 2) + inside,
            ".warpx2::01_23": 32 * (warp // 2) + inside, ".warpx4": inside,
        }[multicast]  # fmt: skip
        assert (found[:, lane] == data[:, row]).all()


def test_a_pair_needs_two_blocks():
    body = (
        f"add.u64 l3, l2, {descriptor(0, 16, 256, '32B')};"
        "@p0 tcgen05.cp.cta_group::2.128x256b [r1], l3;"
    )
    text = ".reg .b32 w<32>;" + START.replace(MEET, "bar.sync 0;") + body
    report, _ = run_block(
        text + END.replace(MEET, "bar.sync 0;"), {"image": np.zeros(BYTES, np.uint8)}, 128,
        shared=SHARED,
    )  # fmt: skip
    assert ["which has no pairs" in f.message for f in report.faults] == [True]
