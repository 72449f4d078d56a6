"""ldmatrix, stmatrix, movmatrix, mma against loops over the fragments that the ISA draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
from samples import FORMATS, near
from scalar_model import E4M3, E5M2, F16, F32, decode, encode, finite, signed
from whole_block import clean

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count, trans):
    data = RNG.integers(0, 65536, (2, count, 8, 8), dtype=np.uint16)
    registers = ", ".join(f"r{10 + k}" for k in range(count))
    suffix = ".trans" if trans else ""
    stores = "".join(f"st.global.u32 [l1+{4 * k}], r{10 + k};" for k in range(count))
    body = f"""
    mov.u32 r0, cells; mov.u32 r3, 0;
    FILL: mad.lo.u32 r4, r3, 64, tid; mad.wide.u32 l0, r4, 4, source; ld.global.u32 r1, [l0];
    mad.lo.u32 r2, r4, 4, r0; st.shared.u32 [r2], r1; add.u32 r3, r3, 1;
    setp.lt.u32 p0, r3, {count}; @p0 bra FILL; bar.sync 0;
    mad.lo.u32 r2, warp, {128 * count}, r0; and.b32 r5, lane, {8 * count - 1};
    mad.lo.u32 r2, r5, 16, r2;
    ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {{{registers}}}, [r2];
    mad.wide.u32 l1, tid, {4 * count}, target; {stores}
    """
    after = clean(body, {"source": data, "target": 64 * 4 * count}, 64,
                  shared=".shared .align 16 .b8 cells[1024];")  # fmt: skip
    found = after["target"].reshape(2, 32, count)
    for warp in range(2):
        for lane in range(32):
            for m in range(count):
                row, column = lane // 4, 2 * (lane % 4)
                matrix = data[warp, m].T if trans else data[warp, m]
                wanted = int(matrix[row, column]) | int(matrix[row, column + 1]) << 16
                assert found[warp, lane, m] == wanted


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count, trans):
    data = RNG.integers(0, 2**32, (32, count), dtype=np.uint32)
    registers = ", ".join(f"r{10 + k}" for k in range(count))
    loads = "".join(f"ld.global.u32 r{10 + k}, [l1+{4 * k}];" for k in range(count))
    body = f"""
    mad.wide.u32 l1, tid, {4 * count}, source; {loads} mov.u32 r0, cells;
    and.b32 r5, lane, {8 * count - 1}; mad.lo.u32 r2, r5, 16, r0;
    stmatrix.sync.aligned.m8n8.x{count}{".trans" if trans else ""}.shared.b16 [r2], {{{registers}}};
    bar.warp.sync -1; mov.u32 r6, 0;
    BACK: mad.lo.u32 r3, r6, 32, tid; mad.lo.u32 r4, r3, 4, r0; ld.shared.u32 r7, [r4];
    mad.wide.u32 l2, r3, 4, target; st.global.u32 [l2], r7; add.u32 r6, r6, 1;
    setp.lt.u32 p0, r6, {count}; @p0 bra BACK;
    """
    after = clean(body, {"source": data, "target": 128 * count}, 32,
                  shared=".shared .align 16 .b8 cells[512];")  # fmt: skip
    found = after["target"].view(np.uint16).reshape(count, 8, 8)
    for m in range(count):
        wanted = np.zeros((8, 8), np.uint16)
        for lane in range(32):
            word = int(data[lane, m])
            wanted[lane // 4, 2 * (lane % 4)] = word & 0xFFFF
            wanted[lane // 4, 2 * (lane % 4) + 1] = word >> 16
        assert (found[m] == (wanted.T if trans else wanted)).all()


def test_byte_matrices():
    """ldmatrix of 16 x 16 and stmatrix of 16 x 8 bytes, both transposed, by CUTLASS's layouts."""
    data = RNG.integers(0, 256, (16, 16), dtype=np.uint8)
    body = """
    mov.u64 l0, cells; cvta.shared.u64 l0, l0; mad.wide.u32 l1, tid, 8, source;
    mad.wide.u32 l2, tid, 8, l0; ld.global.u64 l3, [l1]; st.u64 [l2], l3; bar.warp.sync -1;
    and.b32 r1, lane, 15; mad.wide.u32 l4, r1, 16, l0;
    ldmatrix.sync.aligned.m16n16.x1.trans.b8 {r2, r3}, [l4];
    mad.wide.u32 l5, tid, 8, loaded; st.global.v2.u32 [l5], {r2, r3}; bar.warp.sync -1;
    stmatrix.sync.aligned.m16n8.x2.trans.b8 [l4], {r2, r3}; bar.warp.sync -1;
    ld.u64 l3, [l2]; mad.wide.u32 l6, tid, 8, stored; st.global.u64 [l6], l3;
    """
    after = clean(body, {"source": data, "loaded": 256, "stored": np.zeros(32, np.uint64)},
                  shared=".shared .align 16 .b8 cells[256];")  # fmt: skip
    loaded = after["loaded"].view(np.uint8).reshape(32, 2, 4)
    stored = after["stored"].view(np.uint8).reshape(2, 8, 16)  # matrix, column, row
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for half in range(2):
            for e in range(4):
                assert loaded[lane, half, e] == data.T[g + 8 * half, 4 * t + e]
        for m in range(2):
            for e in range(4):
                assert stored[m, 2 * t + e % 2, g + 8 * (e // 2)] == loaded[lane, m, e]


def test_movmatrix():
    data = RNG.integers(0, 2**32, 64, dtype=np.uint32)
    body = """mad.wide.u32 l0, tid, 4, source; mad.wide.u32 l1, tid, 4, target;
    ld.global.u32 r0, [l0]; movmatrix.sync.aligned.m8n8.trans.b16 r1, r0; st.global.u32 [l1], r1;"""
    after = clean(body, {"source": data, "target": 256}, 64)
    for warp in range(2):
        part = slice(32 * warp, 32 * warp + 32)
        matrix = data[part].view(np.uint16).reshape(8, 8)
        assert (after["target"][part].view(np.uint16).reshape(8, 8) == matrix.T).all()


# Where element i of a lane's fragment lies, from the ISA's figures: bits of an element, k -> rule.


def place_a(bits, k, lane, i):
    g, t = lane // 4, lane % 4
    per = 32 // bits  # elements of a register
    register, inner = divmod(i, per)
    row = g if register % 2 == 0 else g + 8
    if bits == 16:
        column = t * 2 + inner + (8 if register >= 2 else 0)
    elif bits == 8:
        column = t * 4 + inner + (16 if register >= 2 else 0)
    else:
        column = t + (4 if register >= 2 else 0)
    return row, column


def place_b(bits, k, lane, i):
    g, t = lane // 4, lane % 4
    per = 32 // bits
    register, inner = divmod(i, per)
    row = {16: t * 2 + 8 * register, 8: t * 4 + 16 * register, 32: t + 4 * register}[bits] + inner
    return row, g


def place_c(lane, i):
    return lane // 4 + (8 if i >= 2 else 0), 2 * (lane % 4) + i % 2


KINDS = ".kind::f8f6f4"
SHAPES = [
    *((kind, kind, k, "") for kind, k in [("bf16", 8), ("bf16", 16), ("f16", 8), ("f16", 16),
                                          ("tf32", 4), ("tf32", 8)]),
    *((a, b, k, "") for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for k in (16, 32)),
    *((a, b, 32, KINDS) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *((a, b, k, s) for a in ("s8", "u8") for b in ("s8", "u8") for k in (16, 32)
      for s in ("", ".satfinite")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "kind_b", "k", "modifier"), SHAPES)
def test_mma(kind, kind_b, k, modifier):
    rng = random.Random(k)
    integer = kind in ("s8", "u8")
    bits = {"bf16": 16, "f16": 16, "tf32": 32}.get(kind, 8)

    def pattern(kind):
        """A small integer as an element, so that sums are exact whatever their order."""
        value = rng.randint(-3, 3)
        if integer:
            return rng.getrandbits(8)
        if kind == "tf32":
            return encode(finite(value), F32)
        return encode(finite(value), FORMATS[kind])

    def number(x, kind):
        if integer:
            return signed(x, 8) if kind == "s8" else x
        return decode(x, F32 if kind == "tf32" else FORMATS[kind]).value

    a = [[pattern(kind) for _ in range(k)] for _ in range(16)]
    b = [[pattern(kind_b) for _ in range(8)] for _ in range(k)]
    c = [[rng.randint(-50, 50) for _ in range(8)] for _ in range(16)]
    if integer:  # sums leave the range, and wrap or are clamped
        c = [[rng.choice([x, 2**31 - 1, -(2**31)]) for x in row] for row in c]
    a_registers, per = 16 * k * bits // 32 // 32, 32 // bits
    b_registers = max(a_registers // 2, 1)
    words = np.zeros((32, a_registers + b_registers + 4), np.uint32)
    for lane in range(32):
        for i in range(a_registers * per):
            row, column = place_a(bits, k, lane, i)
            words[lane, i // per] |= np.uint32(a[row][column] << bits * (i % per))
        for i in range(b_registers * per):
            row, column = place_b(bits, k, lane, i)
            words[lane, a_registers + i // per] |= np.uint32(b[row][column] << bits * (i % per))
        for i in range(4):
            row, column = place_c(lane, i)
            value = c[row][column]
            words[lane, a_registers + b_registers + i] = (
                value % 2**32 if integer else encode(finite(value), F32)
            )
    total = words.shape[1]
    names = [f"r{10 + i}" for i in range(total)]
    loads = "".join(f"ld.global.u32 {n}, [l0+{4 * i}];" for i, n in enumerate(names))
    out = "s32" if integer else "f32"
    d = [f"r{40 + i}" if integer else f"f{i}" for i in range(4)]
    cs = names[-4:]
    move = ""
    if not integer:
        cs = [f"f{10 + i}" for i in range(4)]
        move = "".join(f"mov.b32 {f}, {n};" for f, n in zip(cs, names[-4:], strict=True))
    ab = ", ".join(names[:a_registers]), ", ".join(names[a_registers : a_registers + b_registers])
    mma = f"mma.sync.aligned.m16n8k{k}.row.col{modifier}.{out}.{kind}.{kind_b}.{out}"
    body = f"""
    mad.wide.u32 l0, tid, {4 * total}, source; mad.wide.u32 l1, tid, 16, target; {loads} {move}
    {mma} {{{", ".join(d)}}}, {{{ab[0]}}}, {{{ab[1]}}}, {{{", ".join(cs)}}};
    st.global.v4.{out.replace("s", "u")} [l1], {{{", ".join(d)}}};
    """
    after = clean(body, {"source": words, "target": 512})
    found = after["target"].reshape(32, 4)
    for lane in range(32):
        for i in range(4):
            row, column = place_c(lane, i)
            wanted = c[row][column] + sum(
                number(a[row][j], kind) * number(b[j][column], kind_b) for j in range(k)
            )
            if modifier == ".satfinite":
                wanted = max(-(2**31), min(wanted, 2**31 - 1))
            bits_wanted = int(wanted) % 2**32 if integer else encode(finite(wanted), F32)
            assert found[lane, i] == bits_wanted, (lane, i)


@pytest.mark.parametrize("k", [8, 16])
def test_mma_with_f16_accumulators(k):
    rng = random.Random(1)
    a = [[rng.randint(-3, 3) for _ in range(k)] for _ in range(16)]
    b = [[rng.randint(-3, 3) for _ in range(8)] for _ in range(k)]
    c = [[rng.randint(-9, 9) for _ in range(8)] for _ in range(16)]
    words = np.zeros((32, 8), np.uint32)

    def half(value):
        return encode(finite(value), F16)

    for lane in range(32):
        for i in range(k // 2):
            row, column = place_a(16, k, lane, i)
            words[lane, i // 2] |= np.uint32(half(a[row][column]) << 16 * (i % 2))
        for i in range(k // 4):
            row, column = place_b(16, k, lane, i)
            words[lane, 4 + i // 2] |= np.uint32(half(b[row][column]) << 16 * (i % 2))
        for i in range(4):
            row, column = place_c(lane, i)
            words[lane, 6 + i // 2] |= np.uint32(half(c[row][column]) << 16 * (i % 2))
    names = [f"r{10 + i}" for i in range(8)]
    body = f"""
    mad.wide.u32 l0, tid, 32, source; mad.wide.u32 l1, tid, 8, target;
    ld.global.v4.u32 {{{", ".join(names[:4])}}}, [l0];
    ld.global.v4.u32 {{{", ".join(names[4:])}}}, [l0+16];
    mma.sync.aligned.m16n8k{k}.row.col.f16.f16.f16.f16 {{r30, r31}},
      {{{", ".join(names[: k // 4])}}}, {{{", ".join(names[4 : 4 + k // 8])}}},
      {{{names[6]}, {names[7]}}};
    st.global.v2.u32 [l1], {{r30, r31}};
    """
    found = clean(body, {"source": words, "target": 256})["target"].reshape(32, 2)
    for lane in range(32):
        for i in range(4):
            row, column = place_c(lane, i)
            wanted = c[row][column] + sum(a[row][j] * b[j][column] for j in range(k))
            assert int(found[lane, i // 2]) >> 16 * (i % 2) & 0xFFFF == half(wanted)


def test_products_of_many_matrices_in_one_block():
    """Chained and shared operands, so that grouping them changes nothing: two As, two Bs."""
    bits = near(FORMATS["bf16"], 2 * 256 + 2 * 128, 5)
    a = np.array(bits[:512], np.uint16).reshape(2, 16, 16)
    b = np.array(bits[512:], np.uint16).reshape(2, 16, 8)
    words = np.zeros((32, 12), np.uint32)
    for lane in range(32):
        for n in range(2):
            for i in range(8):
                row, column = place_a(16, 16, lane, i)
                words[lane, 4 * n + i // 2] |= np.uint32(int(a[n, row, column]) << 16 * (i % 2))
            for i in range(4):
                row, column = place_b(16, 16, lane, i)
                words[lane, 8 + 2 * n + i // 2] |= np.uint32(int(b[n, row, column]) << 16 * (i % 2))
    loads = "".join(f"ld.global.u32 r{10 + i}, [l0+{4 * i}];" for i in range(12))
    zero = "".join(f"mov.f32 f{i}, 0f00000000;" for i in range(16))
    products = []
    for n, (i, j) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (1, 0)]):
        d = ", ".join(f"f{4 * (n % 4) + e}" for e in range(4))
        ra = ", ".join(f"r{10 + 4 * i + e}" for e in range(4))
        rb = ", ".join(f"r{18 + 2 * j + e}" for e in range(2))
        products.append(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            f"{{{d}}}, {{{ra}}}, {{{rb}}}, {{{d}}};"
        )
    stores = "".join(f"st.global.f32 [l1+{4 * i}], f{i};" for i in range(16))
    body = f"""mad.wide.u32 l0, tid, 48, source; mad.wide.u32 l1, tid, 64, target; {loads} {zero}
    {"".join(products)} {stores}"""
    found = (
        clean(body, {"source": words, "target": 2048})["target"].view(np.float32).reshape(32, 16)
    )
    wide_a, wide_b = ((x.astype(np.uint32) << 16).view(np.float32).astype(float) for x in (a, b))
    wanted = [wide_a[0] @ wide_b[0] + wide_a[1] @ wide_b[0], wide_a[0] @ wide_b[1],
              wide_a[1] @ wide_b[0], wide_a[1] @ wide_b[1]]  # fmt: skip
    for n in range(4):
        for lane in range(32):
            for i in range(4):
                value = wanted[n][place_c(lane, i)]
                assert abs(found[lane, 4 * n + i] - value) <= 1e-4 * max(abs(value), 1)


def test_fp8_formats_are_the_models():
    assert (E4M3.largest, E5M2.largest) == (448, 57344)


BYTES_IN = """mov.u64 l0, cells; cvta.shared.u64 l7, l0; mad.wide.u32 l1, tid, 16, source;
mad.wide.u32 l2, tid, 16, l0; ld.global.v2.u64 {l3, l4}, [l1]; st.shared.v2.u64 [l2], {l3, l4};
bar.warp.sync -1;"""


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
@pytest.mark.parametrize("count", [1, 2])
def test_loads_of_byte_matrices(count, space):
    """16 x 16 bytes each, transposed: row i of matrix m is at the address of lane 16 m + i."""
    data = RNG.integers(0, 256, (2, 16, 16), dtype=np.uint8)
    names = ", ".join(f"r{2 + k}" for k in range(2 * count))
    address = "l5" if space else "l6"
    body = (
        BYTES_IN
        + f"""
    and.b32 r1, lane, {16 * count - 1}; mad.wide.u32 l5, r1, 16, l0; mad.wide.u32 l6, r1, 16, l7;
    ldmatrix.sync.aligned.m16n16.x{count}.trans{space}.b8 {{{names}}}, [{address}];
    mad.wide.u32 l8, tid, {8 * count}, out;"""
    )
    body += "".join(f"st.global.u32 [l8+{4 * k}], r{2 + k};" for k in range(2 * count))
    arrays = {"source": data, "out": 256 * count}
    out = clean(body, arrays, 32, shared=".shared .align 16 .b8 cells[512];")["out"]
    found = out.view(np.uint8).reshape(32, count, 2, 4)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for m in range(count):
            for half in range(2):
                for e in range(4):
                    assert found[lane, m, half, e] == data[m].T[g + 8 * half, 4 * t + e]


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stores_of_byte_matrices(count, space):
    """16 x 8 bytes each, stored column by column: column j of matrix m by lane 8 m + j."""
    data = RNG.integers(0, 256, (32, count, 4), dtype=np.uint8)
    names = ", ".join(f"r{2 + k}" for k in range(count))
    loads = "".join(f"ld.global.u32 r{2 + k}, [l8+{4 * k}];" for k in range(count))
    address = "l5" if space else "l6"
    body = (
        BYTES_IN
        + f"""
    and.b32 r1, lane, {8 * count - 1}; mad.wide.u32 l5, r1, 16, l0; mad.wide.u32 l6, r1, 16, l7;
    mad.wide.u32 l8, tid, {4 * count}, registers; {loads}
    stmatrix.sync.aligned.m16n8.x{count}.trans{space}.b8 [{address}], {{{names}}}; bar.warp.sync -1;
    mad.wide.u32 l9, tid, 16, out; ld.shared.v2.u64 {{l3, l4}}, [l2];
    st.global.v2.u64 [l9], {{l3, l4}};"""
    )
    arrays = {"source": np.zeros(512, np.uint8), "registers": data, "out": np.zeros(512, np.uint8)}
    out = clean(body, arrays, 32, shared=".shared .align 16 .b8 cells[512];")["out"]
    matrices = out.reshape(4, 8, 16)  # matrix, column, row
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for m in range(count):
            for e in range(4):
                assert matrices[m, 2 * t + e % 2, g + 8 * (e // 2)] == data[lane, m, e]


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
def test_names_of_shared_memory(space):
    """ldmatrix and stmatrix of 16-bit elements: the matrix stored is the one that was loaded."""
    data = RNG.integers(0, 256, (8, 16), dtype=np.uint8)
    address = "l5" if space else "l6"
    body = (
        BYTES_IN
        + f"""
    and.b32 r1, lane, 7; mad.wide.u32 l5, r1, 16, l0; mad.wide.u32 l6, r1, 16, l7;
    ldmatrix.sync.aligned.m8n8.x1{space}.b16 {{r2}}, [{address}];
    stmatrix.sync.aligned.m8n8.x1.trans{space}.b16 [{address}+128], {{r2}}; bar.warp.sync -1;
    mad.wide.u32 l9, tid, 4, out; mad.wide.u32 l5, tid, 4, l0; ld.shared.u32 r3, [l5+128];
    st.global.u32 [l9], r3;"""
    )
    source = np.concatenate([data.reshape(-1), np.zeros(384, np.uint8)])
    arrays = {"source": source, "out": 128}
    out = clean(body, arrays, 32, shared=".shared .align 16 .b8 cells[512];")["out"]
    assert (out.view(np.uint16).reshape(8, 8) == data.view(np.uint16).T).all()
