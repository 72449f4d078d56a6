"""cp.async.bulk and cp.reduce.async.bulk: results, order, proxies, and misuse."""

from __future__ import annotations

import random

import numpy as np
import pytest
from samples import FORMATS, floats, near, same_float
from scalar_model import BF16, F16, F32, add, decode, encode, extreme
from whole_block import clean, kinds, run_block

from sparsekit.emulator import CHECKS, Schedule

SHARED = ".shared .align 8 .b64 bar; .shared .align 128 .b8 cells[2048];"
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]
SOURCE = np.arange(1024, dtype=np.uint32) * 7 + 3
START = """mov.u32 r0, bar; mov.u32 r5, cells; setp.eq.u32 p0, tid, 0;
@p0 mbarrier.init.shared.b64 [r0], 1; @p0 fence.mbarrier_init.release.cluster; bar.sync 0;"""
WAIT = "W{0}: mbarrier.try_wait.parity.shared.b64 p1, [r0], {0}; @!p1 bra W{0};"
GIVE = """mad.lo.u32 r1, tid, 16, r5; ld.shared.v4.u32 {r10, r11, r12, r13}, [r1];
mad.wide.u32 l1, tid, 16, out; st.global.v4.u32 [l1], {r10, r11, r12, r13};"""
LOAD = (
    "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 512;"
    "@p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r5], [source+64], 512,"
    " [r0];"
)


def found(body, arrays, threads=32, **options):
    return set(kinds(body, arrays, threads, shared=SHARED, **options))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_to_shared_memory(schedule):
    arrays, options = {"source": SOURCE, "out": 512}, {"schedule": schedule}
    body = START + LOAD + WAIT.format(0) + GIVE
    out = clean(body, arrays, 32, shared=SHARED, **options)["out"]
    assert out.tolist() == SOURCE[16:144].tolist()
    cta = body.replace("shared::cluster.global", "shared::cta.global")
    assert found(cta, arrays, **options) == set()
    assert "race" in found(body.replace(WAIT.format(0), ""), arrays, **options)
    fewer = found(body.replace("_, [r0], 512", "_, [r0], 496"), arrays, **options)
    assert fewer == {"deadlock"}
    assert found(body.replace("_, [r0], 512", "_, [r0], 528"), arrays, **options) == {"deadlock"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_ring_needs_its_empty_barrier(schedule):
    """The next copy overwrites what other warps read: they must have arrived somewhere before."""
    ring = (
        START.replace("[r0], 1;", "[r0], 1; @p0 mbarrier.init.shared.b64 [r0+8], 64;")
        + LOAD + WAIT.format(0) + GIVE + "mbarrier.arrive.shared.b64 _, [r0+8];"
        + "@!p0 bra LAST; NEXT LAST: " + WAIT.format(1) + GIVE
    )  # fmt: skip
    shared = ".shared .align 8 .b64 bar; .shared .align 8 .b64 empty; " + SHARED.split(";", 1)[1]
    empty = "V: mbarrier.try_wait.parity.shared.b64 p2, [r0+8], 0; @!p2 bra V;"
    arrays, options = {"source": SOURCE, "out": 1024}, {"shared": shared, "schedule": schedule}
    body = ring.replace("[r5], [source+64], 512", "[r5], [source+64], 1024")
    body = body.replace("_, [r0], 512", "_, [r0], 1024")
    load = LOAD.replace("512", "1024").replace("@p0 ", "").replace("+64", "+128")
    assert kinds(body.replace("NEXT", empty + load), arrays, 64, **options) == []
    assert set(kinds(body.replace("NEXT", load), arrays, 64, **options)) & {"race", "mbarrier"}


STORE = """mov.u32 r5, cells; setp.eq.u32 p0, tid, 0; mad.lo.u32 r1, tid, 16, r5;
add.u32 r2, tid, 100; st.shared.v4.u32 [r1], {tid, r2, 7, tid}; fence.proxy.async.shared::cta;
bar.sync 0; @!p0 bra END;
cp.async.bulk.global.shared::cta.bulk_group [out], [r5], 1024;
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; st.shared.u32 [r5], 0; END:"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_to_global_memory(schedule):
    arrays, options = {"out": 1024}, {"schedule": schedule}
    out = clean(STORE, arrays, 64, shared=SHARED, **options)["out"]
    assert out.reshape(64, 4).tolist() == [[t, t + 100, 7, t] for t in range(64)]
    for gone in ("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;", "bar.sync 0;"):
        assert "race" in found(STORE.replace(gone, ""), arrays, 64, **options)
    no_fence = STORE.replace("fence.proxy.async.shared::cta;", "")
    assert found(no_fence, arrays, 64, **options) == {"proxy-fence"}
    after = no_fence.replace("bar.sync 0;", "bar.sync 0; fence.proxy.async;")
    assert found(after, arrays, 64, **options) == set()  # by the reader, of all it knows
    other = no_fence.replace("bar.sync 0;", "fence.proxy.async.global; bar.sync 0;")
    assert found(other, arrays, 64, **options) == {"proxy-fence"}
    no_end = STORE.replace("cp.async.bulk.wait_group.read 0; st.shared.u32 [r5], 0;", "")
    assert found(no_end, arrays, 64, **options) == {"race"}  # the block exits too early


def test_some_bytes_of_each_chunk():
    body = STORE.replace("bulk_group [out], [r5], 1024", "bulk_group.cp_mask [out], [r5], 1024, h1")
    body = body.replace("bar.sync 0;", "mov.u16 h1, 0xF00C; bar.sync 0;")
    out = clean(body, {"out": np.full(256, 0x55, np.uint32)}, 64, shared=SHARED)["out"]
    raw = out.view(np.uint8).reshape(-1, 16)
    full = np.array([[t, t + 100, 7, t] for t in range(64)], np.uint32).view(np.uint8)
    before = np.full((64, 4), 0x55, np.uint32).view(np.uint8)
    chosen = np.array([0xF00C >> i & 1 for i in range(16)], bool)
    assert (raw == np.where(chosen, full, before)).all()


@pytest.mark.parametrize("wait", ["0", "1", "2"])
def test_groups_complete_in_order(wait):
    body = """mov.u32 r5, cells; st.shared.v4.u32 [r5], {1, 2, 3, 4};
    st.shared.v4.u32 [r5+16], {5, 6, 7, 8}; fence.proxy.async;
    cp.async.bulk.global.shared::cta.bulk_group [out], [r5], 16; cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [out+16], [r5+16], 16;
    cp.async.bulk.commit_group; """
    body += f"cp.async.bulk.wait_group.read {wait}; st.shared.u32 [r5+OFFSET], 9;"
    body += "cp.async.bulk.wait_group 0;"
    for offset, free_with in ((0, "01"), (16, "0")):
        wanted = set() if wait in free_with else {"race"}
        assert found(body.replace("OFFSET", str(offset)), {"out": 32}, 1) == wanted


INTEGERS = {
    "add": lambda a, b, n: (a + b) % n, "and": lambda a, b, n: a & b, "or": lambda a, b, n: a | b,
    "xor": lambda a, b, n: a ^ b, "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b), "inc": lambda a, b, n: 0 if a >= b else a + 1,
    "dec": lambda a, b, n: b if a == 0 or a > b else a - 1,
}  # fmt: skip
KINDS = [
    *(("add", kind) for kind in ("u32", "s32", "u64")),
    *((op, f"b{bits}") for op in ("and", "or", "xor") for bits in (32, 64)),
    *((op, f"{sign}{bits}") for op in ("min", "max") for sign in "us" for bits in (32, 64)),
    ("inc", "u32"), ("dec", "u32"),
]  # fmt: skip


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize(("op", "kind"), KINDS, ids=lambda x: str(x))
@pytest.mark.parametrize("where", ["global", "shared"])
def test_integer_reductions(op, kind, where):
    if where == "shared" and "64" in kind and op != "add":
        pytest.skip("no such reduction")
    bits = int(kind[1:])
    rng = random.Random(1)
    edges = [0, 1, 2**bits - 1, 2 ** (bits - 1), 5]
    count = 512 // (bits // 8)
    old, new = ([rng.choice([*edges, rng.getrandbits(bits)]) for _ in range(count)] for _ in "ab")
    dtype = np.dtype(f"u{bits // 8}")
    arrays = {"new": np.array(new, dtype).view(np.uint32), "old": np.array(old, dtype)}
    out = clean(*_reduction(op, kind, where, arrays), shared=SHARED)["old"].view(dtype)
    fix = (lambda v: signed(v, bits)) if kind[0] == "s" else (lambda v: v)
    wanted = [
        INTEGERS[op](fix(a), fix(b), 2**bits) % 2**bits for a, b in zip(old, new, strict=True)
    ]
    assert out.tolist() == wanted


def _reduction(op, kind, where, arrays):
    load = """mov.u32 r5, cells; mad.lo.u32 r1, tid, 16, r5; mad.wide.u32 l1, tid, 16, new;
    ld.global.v4.u32 {r10, r11, r12, r13}, [l1]; st.shared.v4.u32 [r1], {r10, r11, r12, r13};
    mad.wide.u32 l2, tid, 16, old; setp.eq.u32 p0, tid, 0;"""
    if where == "global":
        body = (
            load + "fence.proxy.async; bar.sync 0; @!p0 bra END; "
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{kind} [old], [r5], 512; "
            "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
        )
        return body, arrays, 32
    body = START + load + (
        "ld.global.v4.u32 {r10, r11, r12, r13}, [l2]; "
        "st.shared.v4.u32 [r1+1024], {r10, r11, r12, r13}; fence.proxy.async; bar.sync 0; "
        "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 512; "
        "@p0 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes."
        f"{op}.{kind} [r5+1024], [r5], 512, [r0]; " + WAIT.format(0) +
        "ld.shared.v4.u32 {r10, r11, r12, r13}, [r1+1024]; "
        "st.global.v4.u32 [l2], {r10, r11, r12, r13};"
    )  # fmt: skip
    return body, arrays, 32


@pytest.mark.parametrize(("kind", "form"), [("f32", F32), ("f16", F16), ("bf16", BF16)])
def test_floating_point_reductions(kind, form):
    rng = np.random.default_rng(0)
    size = form.bits // 8
    old, new = (rng.normal(size=512 // size).astype(np.float32) for _ in "ab")
    if kind == "f16":
        old, new = old.astype(np.float16), new.astype(np.float16)
        wanted = (old + new).view(np.uint16)
    elif kind == "bf16":
        old, new = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (old, new))
        total = (old.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        total = total + (new.astype(np.uint32) << 16).view(np.float32)
    else:
        wanted = (old + new).view(np.uint32)
    text = "add" if kind == "f32" else "add.noftz"
    arrays = {"new": new.view(np.uint32), "old": old}
    out = clean(*_reduction(text, kind, "global", arrays), shared=SHARED)["old"].view(f"u{size}")
    if kind == "bf16":
        exact = (out.astype(np.uint32) << 16).view(np.float32)
        assert np.abs(exact - total).max() <= np.abs(total).max() * 2**-8
    else:
        assert all(same_float(int(a), int(b), form) for a, b in zip(out, wanted, strict=True))


CLUSTER = """mov.u32 r0, bar; mov.u32 r5, cells; setp.eq.u32 p0, tid, 0;
mov.u32 r9, %cluster_ctarank;
@p0 mbarrier.init.shared.b64 [r0], 1; @p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.relaxed; barrier.cluster.wait; setp.eq.u32 p3, r9, 0; and.pred p4, p0, p3;
@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r0], 512; {}
W: mbarrier.try_wait.parity.shared.b64 p1, [r0], 0; @!p1 bra W;
mad.lo.u32 r1, tid, 16, r5; ld.shared.v4.u32 {{r10, r11, r12, r13}}, [r1];
mad.lo.u32 r2, cta, 32, tid; mad.wide.u32 l1, r2, 16, out;
st.global.v4.u32 [l1], {{r10, r11, r12, r13}}; barrier.cluster.arrive; barrier.cluster.wait;"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_multicast(schedule):
    copy = (
        "mov.u16 h1, {}; @p4 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [r5], [source], 512, [r0], h1;"
    )
    options = {"grid": 2, "cluster": (2,), "schedule": schedule, "shared": SHARED}
    arrays = {"source": SOURCE, "out": 1024}
    out = clean(CLUSTER.format(copy.format(3)), arrays, 32, **options)["out"]
    assert out.tolist() == SOURCE[:128].tolist() * 2
    assert kinds(CLUSTER.format(copy.format(1)), arrays, 32, **options) == ["deadlock"]
    assert kinds(CLUSTER.format(copy.format(7)), arrays, 32, **options) == ["bounds"]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_from_block_to_block(schedule):
    """Each block sends the other one its cells, and the mbarrier there counts the bytes."""
    send = """mad.lo.u32 r2, cta, 1000, tid; mad.lo.u32 r1, tid, 16, r5;
    st.shared.v4.u32 [r1+1024], {r2, cta, 1, 2}; {fence} bar.sync 0; xor.b32 r8, r9, 1;
    mapa.shared::cluster.u32 r3, r5, r8; mapa.shared::cluster.u32 r4, r0, r8; add.u32 r6, r5, 1024;
    @p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r3], [r6], 512,
    [{bar}];"""
    options = {"grid": 2, "cluster": (2,), "schedule": schedule, "shared": SHARED}
    arrays = {"out": 1024}

    def body(fence="fence.proxy.async;", bar="r4"):
        return CLUSTER.format(send.replace("{fence}", fence).replace("{bar}", bar))

    out = clean(body(), arrays, 32, **options)["out"].reshape(2, 32, 4)
    for cta in range(2):
        assert out[cta].tolist() == [[1000 * (1 - cta) + t, 1 - cta, 1, 2] for t in range(32)]
    assert set(kinds(body(fence=""), arrays, 32, **options)) == {"proxy-fence"}


def test_misuse():
    arrays = {"source": SOURCE, "out": 512}
    body = START + LOAD + WAIT.format(0)
    assert found(body, arrays) == set()
    odd = body.replace("512", "500")
    assert found(odd, arrays) == {"bounds"}
    assert found(body.replace("source+64", "source+8"), arrays) == {"alignment"}
    assert found(body.replace("[r5],", "[r5+8],"), arrays) == {"alignment"}
    assert found(body.replace("512", "4096"), arrays) == {"bounds"}
    assert found(body.replace("source+64", "source+3600"), arrays) == {"bounds"}
    assert found(START + LOAD, arrays) == set()  # the copy ends before the block does
    short = START.replace("@p0 fence.mbarrier_init.release.cluster;", "") + LOAD + WAIT.format(0)
    strict = [*CHECKS, "mbarrier-proxy-fence"]
    assert found(short, arrays) == set()
    assert found(short, arrays, checks=strict) == {"mbarrier-proxy-fence"}
    assert found(body, arrays, checks=strict) == set()


def test_overwriting_what_threads_have_stored():
    """No fence is needed in practice; the strict check wants one."""
    write = "mad.lo.u32 r1, tid, 16, r5; st.shared.u32 [r1], tid; {} bar.sync 0;"
    body = START + write + LOAD + WAIT.format(0)
    strict = [*CHECKS, "proxy-overwrite"]
    arrays = {"source": SOURCE}
    assert found(body.format(""), arrays) == set()
    assert found(body.format(""), arrays, checks=strict) == {"proxy-overwrite"}
    assert found(body.format("fence.proxy.async;"), arrays, checks=strict) == set()


def test_prefetches_are_hints():
    body = "cp.async.bulk.prefetch.L2.global [source], 64;"
    assert run_block(body, {"source": SOURCE})[0].faults == ()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_threads_store_in_global_memory(schedule):
    """A bulk copy of it needs a proxy fence that is not for shared memory only."""
    store = "mad.wide.u32 l2, tid, 16, source; st.global.v4.u32 [l2+64], {tid, 1, 2, 3}; {} "
    body = START + store.replace("{}", "FENCE") + "bar.sync 0;" + LOAD + WAIT.format(0) + GIVE
    arrays, options = {"source": 1024, "out": 512}, {"schedule": schedule}
    for fence in ("fence.proxy.async;", "fence.proxy.async.global;"):
        assert found(body.replace("FENCE", fence), arrays, **options) == set()
    for fence in ("", "fence.proxy.async.shared::cta;", "membar.gl;"):
        assert found(body.replace("FENCE", fence), arrays, **options) == {"proxy-fence"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_reading_what_a_bulk_copy_stores(schedule):
    """The wait with .read is for the source only."""
    body = STORE.replace("st.shared.u32 [r5], 0; END:", "ld.global.u32 r9, [out+32]; END:")
    options = {"schedule": schedule}
    assert found(body, {"out": 1024}, 64, **options) >= {"race"}
    whole = body.replace("wait_group.read", "wait_group")
    assert found(whole, {"out": 1024}, 64, **options) == set()
    later = body.replace("END:", "END: bar.sync 0; ld.global.u32 r9, [out+64];")
    assert "race" in found(later, {"out": 1024}, 64, **options)
    assert (
        found(later.replace("wait_group.read", "wait_group"), {"out": 1024}, 64, **options) == set()
    )


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_warp_that_spins_keeps_no_copy_from_ending(schedule):
    """One warp waits for the copy and sets a flag, another one polls the flag."""
    body = START + "setp.ge.u32 p3, tid, 32; @p3 bra POLL;" + LOAD + WAIT.format(0) + (
        "st.release.cta.shared.u32 [r5+1024], 1; bra END;"
        "POLL: ld.acquire.cta.shared.u32 r9, [r5+1024]; setp.eq.u32 p4, r9, 1; @!p4 bra POLL; END:"
    )  # fmt: skip
    first = body.replace("bar.sync 0;", "@p0 st.shared.u32 [r5+1024], 0; bar.sync 0;", 1)
    options = {"schedule": schedule, "step_limit": 20_000}
    assert found(first, {"source": SOURCE}, 64, **options) == set()


def test_without_the_bounds_check_the_others_survive():
    checks = [c for c in CHECKS if c != "bounds"]
    for chosen in (checks, ()):
        for body in (
            START + LOAD.replace("[r5],", "[r5+60000],") + WAIT.format(0),
            START + LOAD.replace("[source+64]", "[source+1048576]") + WAIT.format(0),
            STORE.replace("[out], [r5]", "[out+16777216], [r5]"),
        ):
            arrays = {"source": SOURCE, "out": 1024}
            assert "bounds" not in found(body, arrays, 64, checks=chosen)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_copies_in_flight_to_one_place(schedule):
    """Of one thread and on one mbarrier, and one after the other has ended."""
    arrays, options = {"source": SOURCE}, {"schedule": schedule}
    copy = LOAD.split(";", 1)[1]
    twice = START + LOAD.replace("_, [r0], 512", "_, [r0], 1024") + copy + WAIT.format(0)
    assert "race" in found(twice, arrays, **options)
    assert (
        found(twice.replace(copy, copy.replace("[r5]", "[r5+512]"), 1), arrays, **options) == set()
    )
    in_turn = START + LOAD + WAIT.format(0) + LOAD + WAIT.format(1)
    assert found(in_turn, arrays, **options) == set()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_warp_is_in_order_with_itself_around_a_copy(schedule):
    """Its accesses before and after are looked at together, and each at its time."""
    body = START + "{} " + LOAD + "{} " + WAIT.format(0)
    store, load = "@p0 st.shared.u32 [r5+1024], 1;", "@p0 ld.shared.u32 r9, [r5+1024];"
    for before, after in ((store, store), (store, load), (store + load, store)):
        assert found(body.format(before, after), {"source": SOURCE}, schedule=schedule) == set()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_the_last_read_counts_whatever_the_sizes(schedule):
    """Reads of 4 and 16 bytes, one behind what a writer waits for: that one it overtakes."""
    shared = ".shared .align 8 .b64 bar; .shared .align 8 .b64 other; " + SHARED.split(";", 1)[1]
    start = START.replace("[r0], 1;", "[r0], 1; @p0 mbarrier.init.shared.b64 [r0+8], 1;")
    small, large = "ld.shared.u32 r20, [r5];", "ld.shared.v4.u32 {r21, r22, r23, r24}, [r5];"
    body = (
        "mov.u32 r5, cells; setp.eq.u32 p4, tid, 32; @p4 st.shared.v4.u32 [r5], {tid, 1, 2, 3};"
        + start + "setp.ne.u32 p3, warp, 0; @p3 bra OTHER;" + small
        + "bar.warp.sync -1; @p0 mbarrier.arrive.shared.b64 _, [r0+8];" + large
        + "bar.warp.sync -1; @p0 mbarrier.arrive.shared.b64 _, [r0]; LATE bra END;"
        + "OTHER: " + WAIT.format(0) + "@p4 st.shared.u32 [r5], 7; END:"
    )  # fmt: skip
    options = {"threads": 64, "shared": shared, "schedule": schedule}
    assert kinds(body.replace("LATE", ""), {}, **options) == []
    for late in (small, large):
        assert set(kinds(body.replace("LATE", late), {}, **options)) == {"race"}


@pytest.mark.parametrize(("op", "kind"), [("add", "f64"), *(
    (op, kind) for op in ("add.noftz", "min", "max") for kind in ("f16", "bf16")
)])  # fmt: skip
def test_reductions_of_edges(op, kind):
    """Subnormal numbers stay; min and max prefer a number to NaN, and -0 is less than +0."""
    form = FORMATS[kind]
    rng = random.Random(2)
    count = 512 * 8 // form.bits
    values = floats(form) + near(form, 20)
    old, new = ([rng.choice(values) for _ in range(count)] for _ in "ab")
    dtype = np.dtype(f"u{form.bits // 8}")
    arrays = {"new": np.array(new, dtype).view(np.uint32), "old": np.array(old, dtype)}
    out = clean(*_reduction(op, kind, "global", arrays), shared=SHARED)["old"].view(dtype)
    for a, b, found in zip(old, new, out.tolist(), strict=True):
        x, y = decode(a, form), decode(b, form)
        exact = add(x, y) if op.startswith("add") else extreme(x, y, op == "max", False)
        assert same_float(found, encode(exact, form), form), (op, hex(a), hex(b), hex(found))
