"""wgmma against a scalar product over the ISA's layouts; registers in flight, fences, groups."""

from __future__ import annotations

import numpy as np
import pytest
from test_tensor_copy import swizzled_place
from whole_block import clean, kinds, run_block

from sparsekit.emulator import CHECKS, Schedule, UnsupportedError

BYTES = 65536
SHARED = f".shared .align 1024 .b8 cells[{BYTES}];"
SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
B_START = 32768
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]


def encode(value: int, kind: str) -> int:
    """The bits of a small integer in an element type."""
    if kind in ("s8", "u8"):
        return value % 256
    if kind == "f16":
        return int(np.float16(value).view(np.uint16))
    bits = int(np.float32(value).view(np.uint32))
    if kind == "tf32":
        return bits
    if kind == "bf16":
        return bits >> 16
    exponent, mantissa = (4, 3) if kind == "e4m3" else (5, 2)
    if value == 0:
        return 0
    bias = (1 << exponent - 1) - 1
    power = (bits >> 23 & 0xFF) - 127 + bias
    return (bits >> 31) << 7 | power << mantissa | bits >> (23 - mantissa) & (1 << mantissa) - 1


def place_of(r: int, k: int, size: int, mode: str, mn_major: bool, leading: int, stride: int):
    """The byte of an element of a matrix in one of the canonical layouts."""
    span, core = SPANS[mode], 16 // size
    if not mn_major:
        if span:
            offset = r // 8 * stride + r % 8 * span + k * size
        else:
            offset = r // 8 * stride + k // core * leading + r % 8 * 16 + k % core * size
    elif span:
        wide = span // size
        offset = r // wide * leading + k // 8 * stride + k % 8 * span + r % wide * size
    else:
        offset = r // core * stride + k // 8 * leading + k % 8 * 16 + r % core * size
    return swizzled_place(offset, mode)


def strides_of(rows: int, size: int, mode: str, mn_major: bool) -> tuple[int, int]:
    """(leading, stride) in bytes of a layout without overlaps."""
    span = SPANS[mode]
    if not mn_major:
        return (128, 256) if not span else (16, 8 * span)
    if span:
        blocks = -(-rows * size // span)
        return 8 * span, 8 * span * blocks
    return 128 * -(-rows * size // 16), 128


def descriptor(start: int, leading: int, stride: int, mode: str) -> int:
    return (start >> 4) | (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[mode] << 62


def put(image, matrix, kind, mode, mn_major, start):
    """Write a matrix of small integers into the image of shared memory; its (leading, stride)."""
    size = SIZES[kind]
    leading, stride = strides_of(len(matrix), size, mode, mn_major)
    for r, row in enumerate(matrix.tolist()):
        for k, value in enumerate(row):
            at = start + place_of(r, k, size, mode, mn_major, leading, stride)
            image[at : at + size] = np.frombuffer(
                encode(value, kind).to_bytes(size, "little"), np.uint8
            )
    return leading, stride


FILL = f"""mov.u32 r5, cells; mov.u32 r1, tid; F: setp.ge.u32 p2, r1, {BYTES // 16}; @p2 bra G;
mad.lo.u32 r2, r1, 16, r5; mad.wide.u32 l1, r1, 16, image;
ld.global.v4.u32 {{r10, r11, r12, r13}}, [l1]; st.shared.v4.u32 [r2], {{r10, r11, r12, r13}};
add.u32 r1, r1, THREADS; bra F; G: fence.proxy.async; bar.sync 0; shr.u32 r2, r5, 4;
cvt.u64.u32 l2, r2;"""
FENCE = "wgmma.fence.sync.aligned;"
END = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"


def fragment_of_a(lane: int, warp: int, register: int, position: int, per_word: int):
    """(row, column) of an element of A in registers, as for mma.sync."""
    row = 16 * warp + lane // 4 + 8 * (register % 2)
    return row, (lane % 4) * per_word + position + 4 * per_word * (register // 2)


def product(kind_a, kind_b, n, mode, mn_major, kind_d="f32", in_registers=False, signs=(1, 1),
            scale=1, seed=0, threads=128, schedule=None, saturating=False):  # fmt: skip
    """(D of the instruction, the same by scalar sums)."""
    rng = np.random.default_rng(seed)
    size = SIZES[kind_a]
    k = 32 // size
    low = 0 if "u8" in (kind_a, kind_b) else -4
    a, b = rng.integers(low, 5, (64, k)), rng.integers(low, 5, (n, k))
    c = rng.integers(-100, 100, (64, n))
    if saturating:
        c = rng.choice(np.array([5, 2**31 - 1, -(2**31)]), (64, n))
    image = np.zeros(BYTES, np.uint8)
    a_major, b_major = mn_major
    da = descriptor(0, *put(image, a, kind_a, mode, a_major, 0), mode)
    db = descriptor(B_START, *put(image, b, kind_b, mode, b_major, B_START), mode)
    count = n // 4 if kind_d == "f16" else n // 2
    register = {"f32": "f32", "f16": "b32", "s32": "b32"}[kind_d]
    d = ", ".join(f"d{i}" for i in range(count))
    words = np.zeros((threads, 4), np.uint32)
    held = np.zeros((threads, count), np.uint32)
    for thread in range(threads):
        lane, warp = thread % 32, thread // 32 % 4
        for r in range(4):
            for position in range(4 // size):
                where = fragment_of_a(lane, warp, r, position, 4 // size)
                words[thread, r] |= encode(int(a[where]), kind_a) << 8 * size * position
        for e in range(n // 2):
            y, x = 16 * warp + lane // 4 + 8 * (e // 2 % 2), lane % 4 * 2 + e % 2 + 8 * (e // 4)
            if kind_d == "f16":
                held[thread, e // 2] |= encode(int(c[y, x]), "f16") << 16 * (e % 2)
            elif kind_d == "s32":
                held[thread, e] = int(c[y, x]) % (1 << 32)
            else:
                held[thread, e] = np.float32(c[y, x]).view(np.uint32)
    signed = f", {signs[0]}, {signs[1]}" if kind_d != "s32" else ""
    flags = signed
    if size == 2:
        flags += f", {int(b_major)}" if in_registers else f", {int(a_major)}, {int(b_major)}"
    left = "{r20, r21, r22, r23}" if in_registers else "l3"
    body = (
        f".reg .{register} d<{count}>;" + FILL.replace("THREADS", str(threads))
        + f"add.u64 l3, l2, {da}; add.u64 l4, l2, {db}; mad.wide.u32 l5, tid, 16, words;"
        + "ld.global.v4.u32 {r20, r21, r22, r23}, [l5];"
        + f"mad.wide.u32 l6, tid, {4 * count}, held; mad.wide.u32 l7, tid, {4 * count}, out;"
        + "".join(f"ld.global.b32 d{i}, [l6+{4 * i}];" for i in range(count))
        + f"setp.ne.u32 p3, {scale}, 0; {FENCE} wgmma.mma_async.sync.aligned.m64n{n}k{k}"
        + f"{'.satfinite' * saturating}.{kind_d}."
        + f"{kind_a}.{kind_b} {{{d}}}, {left}, l4, p3{flags}; {END}"
        + "".join(f"st.global.b32 [l7+{4 * i}], d{i};" for i in range(count))
    )  # fmt: skip
    arrays = {"image": image, "words": words, "held": held, "out": 4 * count * threads}
    out = clean(body, arrays, threads, shared=SHARED, schedule=schedule)["out"]
    out = out.reshape(threads, count)
    wanted = signs[0] * signs[1] * (a @ b.T) + scale * c
    if saturating:
        wanted = np.clip(wanted, -(2**31), 2**31 - 1)
    found = np.zeros((threads // 128, 64, n))
    for thread in range(threads):
        lane, warp = thread % 32, thread // 32 % 4
        for e in range(n // 2):
            y, x = 16 * warp + lane // 4 + 8 * (e // 2 % 2), lane % 4 * 2 + e % 2 + 8 * (e // 4)
            word = out[thread, e // 2 if kind_d == "f16" else e]
            if kind_d == "f16":
                value = np.uint16(word >> (16 * (e % 2)) & 0xFFFF).view(np.float16)
            else:
                value = word.view(np.float32 if kind_d == "f32" else np.int32)
            found[thread // 128, y, x] = value
    return found, wanted


@pytest.mark.parametrize("in_registers", [False, True], ids=["SS", "RS"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_layouts_of_halves(kind, mode, in_registers):
    for mn_major in ((False, False), (True, True), (False, True)):
        found, wanted = product(kind, kind, 64, mode, mn_major, in_registers=in_registers)
        assert (found == wanted).all()


@pytest.mark.parametrize("in_registers", [False, True], ids=["SS", "RS"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind_a", "kind_b", "kind_d"),
    [("tf32", "tf32", "f32"), ("e4m3", "e4m3", "f32"), ("e5m2", "e4m3", "f32"),
     ("e4m3", "e5m2", "f16"), ("s8", "s8", "s32"), ("u8", "s8", "s32")],
)  # fmt: skip
def test_other_types(kind_a, kind_b, kind_d, mode, in_registers):
    found, wanted = product(
        kind_a, kind_b, 16, mode, (False, False), kind_d, in_registers=in_registers
    )
    assert (found == wanted).all()


@pytest.mark.parametrize("n", [*range(8, 257, 40), 256])
def test_widths(n):
    found, wanted = product("bf16", "bf16", n, "128B", (False, False))
    assert (found == wanted).all()


EIGHTS = [*range(8, 257, 8)]
OF_INTEGERS = [8, 16, 24, *range(32, 257, 16)]
ALL_WIDTHS = [
    ("bf16", "bf16", "f32", EIGHTS), ("f16", "f16", "f32", EIGHTS), ("f16", "f16", "f16", EIGHTS),
    ("tf32", "tf32", "f32", EIGHTS), ("e4m3", "e5m2", "f32", EIGHTS),
    ("e5m2", "e4m3", "f16", EIGHTS), ("s8", "u8", "s32", OF_INTEGERS),
    ("u8", "s8", "s32", OF_INTEGERS),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind_a", "kind_b", "kind_d", "n"),
    [(a, b, d, n) for a, b, d, widths in ALL_WIDTHS for n in widths],
)
def test_every_width_of_every_type(kind_a, kind_b, kind_d, n):
    found, wanted = product(kind_a, kind_b, n, "128B", (False, False), kind_d)
    assert (found == wanted).all()


@pytest.mark.parametrize("kind_a", ["s8", "u8"])
@pytest.mark.parametrize("kind_b", ["s8", "u8"])
def test_sums_that_are_clamped(kind_a, kind_b):
    found, wanted = product(kind_a, kind_b, 16, "128B", (False, False), "s32", saturating=True)
    assert (found == wanted).all()
    assert 2**31 - 1 in wanted
    assert -(2**31) in wanted or "u8" in (kind_a, kind_b)  # whose products are positive here


def test_factors_and_scale():
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        found, wanted = product("bf16", "bf16", 8, "128B", (False, False), signs=signs)
        assert (found == wanted).all()
    found, wanted = product("f16", "f16", 8, "none", (False, False), "f16", scale=0)
    assert (found == wanted).all()


@pytest.mark.parametrize("in_registers", [False, True], ids=["SS", "RS"])
@pytest.mark.parametrize("kind_d", ["f32", "f16"])
def test_a_sum_of_zero_is_positive(kind_d, in_registers):
    """As on an H200, docs/results/emulator-h200.json, whatever the factors are."""
    for signs in ((-1, 1), (1, -1), (-1, -1)):
        found, wanted = product("f16", "f16", 32, "128B", (False, False), kind_d, in_registers,
                                signs, scale=0)  # fmt: skip
        assert (found == wanted).all()
        assert (wanted == 0).any()
        assert not np.signbit(found[found == 0]).any()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_two_warpgroups(schedule):
    found, wanted = product(
        "bf16", "bf16", 16, "64B", (False, True), threads=256, schedule=schedule
    )
    assert (found == wanted).all()


# ---- order

OPERANDS = FILL.replace("THREADS", "128") + (
    "or.b64 l3, l2, 0x4000004000010000; mov.u32 r20, 0; mov.u32 r21, 0; mov.u32 r22, 0;"
    "mov.u32 r23, 0; mov.f32 f0, 0f00000000; mov.f32 f1, f0; mov.f32 f2, f0; mov.f32 f3, f0;"
)
MMA = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {f0, f1, f2, f3}, {A}, l3, 1, 1, 1, {T}0;"
)
SS = MMA.replace("{A}", "l3").replace("{T}", "0, ")
RS = MMA.replace("{A}", "{r20, r21, r22, r23}").replace("{T}", "")
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned {};"


def faults(body, threads=128, **options):
    arrays = {"image": np.zeros(BYTES, np.uint8), "out": 512}
    text = OPERANDS + body
    return run_block(text, arrays, threads, shared=SHARED, **options)[0].faults


def names(body, **options):
    return {f.kind for f in faults(body, **options)}


@pytest.mark.parametrize("mma", [SS, RS], ids=["SS", "RS"])
def test_registers_in_flight(mma):
    use = "add.f32 f8, f2, f1;"
    assert names(FENCE + mma + COMMIT + WAIT.format(0) + use) == set()
    for body in (
        mma + COMMIT + use,
        mma + WAIT.format(0) + use,
        mma + COMMIT + WAIT.format(1) + use,
    ):
        found = faults(FENCE + body)
        assert {f.kind for f in found} == {"wgmma"}
        assert "a result of a wgmma in flight" in found[0].message
    pipelined = FENCE + mma + COMMIT + mma.replace("f0, f1, f2, f3", "f4, f5, f6, f7") + COMMIT
    zero = "mov.f32 f4, f0; mov.f32 f5, f0; mov.f32 f6, f0; mov.f32 f7, f0;"
    assert names(zero + pipelined + WAIT.format(1) + use + WAIT.format(0)) == set()
    assert names(zero + pipelined + WAIT.format(1) + "add.f32 f8, f4, f1;") == {"wgmma"}
    write = "mul.f32 f3, f8, f8;"
    assert names("mov.f32 f8, f0;" + FENCE + mma + COMMIT + write) == {"wgmma"}


def test_fragments_of_a_in_flight():
    assert names(FENCE + RS + COMMIT + "add.u32 r1, r20, 1;" + WAIT.format(0)) == set()
    (fault, *_) = faults(FENCE + RS + COMMIT + "add.u32 r20, r21, 1;" + WAIT.format(0))
    assert "writes r20, a fragment of A of a wgmma in flight" in fault.message
    assert names(FENCE + RS + COMMIT + WAIT.format(0) + "add.u32 r20, r21, 1;") == set()


def test_fences_of_registers():
    end = COMMIT + WAIT.format(0)
    assert names(SS + end) == {"wgmma"}
    assert names(FENCE + SS + SS + end + SS + end) == set()  # one accumulator, one shape
    touch = "mul.f32 f1, f1, f2;"
    (fault, *_) = faults(FENCE + SS + end + touch + SS + end)
    assert fault.kind == "wgmma"
    assert "without a wgmma.fence" in fault.message
    assert names(FENCE + SS + end + touch + FENCE + SS + end) == set()
    assert names(FENCE + SS + end + "add.u32 r22, r20, 1;" + RS + end) == {"wgmma"}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_operands_in_shared_memory(schedule):
    options = {"schedule": schedule}
    store = "mad.lo.u32 r6, tid, 4, r5; st.shared.u32 [r6], 0;"
    body = FENCE + SS + COMMIT + WAIT.format(0)
    after = body + "bar.sync 0;" + store
    assert names(after, **options) == set()
    assert names(body + store, **options) == set()  # a group ends for the whole warpgroup
    for gone in (COMMIT, WAIT.format(0)):
        assert names(after.replace(gone, ""), **options) == {"race"}
    before = store + "fence.proxy.async; bar.sync 0;" + body
    assert names("bar.sync 0;" + before, **options) == set()
    assert names("bar.sync 0;" + before.replace("fence.proxy.async;", ""), **options) == {
        "proxy-fence"
    }
    found = names("bar.sync 0;" + before.replace(" bar.sync 0;", ""), **options)
    assert "race" in found


def test_a_warpgroup_executes_together():
    body = f"setp.lt.u32 p1, tid, 96; @!p1 bra L; {FENCE[:-1]}; {SS} L:"
    assert names(body) == {"divergence"}
    arrays = {"image": np.zeros(BYTES, np.uint8)}
    text = OPERANDS + FENCE + SS
    assert kinds(text, arrays, 96, shared=SHARED) == ["divergence"]
    rest = set(CHECKS) - {"divergence"}  # it has no meaning then, whoever looks
    assert kinds(text, arrays, 96, shared=SHARED, checks=rest) == ["outside"]


def test_what_is_not_modelled():
    for text, why in (
        (SS.replace("f2, f3", "f2"), "another number of registers"),
        (SS.replace("l3, 1, 1, 1, 0, 0", "l3, 1, 1, 2, 0, 0"), "a factor other"),
        (SS.replace("l3, 1, 1, 1, 0, 0", "l3, 1, 1, 1, 0"), "transpositions"),
        ("or.b64 l3, l3, 0x2000000000000;" + FENCE + SS, "base offset"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            faults(FENCE + text)


def test_matrices_reach_out_of_shared_memory():
    assert names("or.b64 l3, l3, 0x3FF8;" + FENCE + SS) == {"bounds"}
