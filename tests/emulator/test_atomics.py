"""atom and red: each operation against the lanes in turn."""

from __future__ import annotations

import random

import numpy as np
import pytest
from samples import FORMATS, f32_bits, floats, near, same_float
from scalar_model import add, as_integer, decode, encode, extreme, flush
from whole_block import clean

RNG = np.random.default_rng(0)
WORDS = RNG.integers(0, 2**32, 32, dtype=np.uint32)
MODELS = {
    "add": lambda old, b: old + b, "and": lambda old, b: old & b, "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b, "exch": lambda old, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
    "min": min, "max": max,
}  # fmt: skip
FORMS = [(op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64")]
FORMS += [(op, kind) for op in ("and", "or", "xor", "exch") for kind in ("b32", "b64")]
FORMS += [("inc", "u32"), ("dec", "u32"), ("min", "s64"), ("max", "s64")]


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize(("op", "kind"), FORMS)
def test_integers(space, op, kind):
    size = int(kind[1:]) // 8
    view = f"u{size}"
    data = RNG.integers(0, 2**32 if size == 4 else 2**63, 32, dtype=f"u{size}")
    if op in ("inc", "dec"):
        data = (data % 7).astype(data.dtype)
    reg, old = ("r1", "r2") if size == 4 else ("l5", "l6")
    start = int(data[7])
    dotted = f".{space}" if space else ""
    first = f"ld.global.u{8 * size} {reg}, [cell];"
    place = {
        "shared": f"mov.u32 r0, mine; st.shared.u{8 * size} [r0], {reg};",
        "global": "mov.u64 l0, cell;",
    }.get(space, "mov.u64 l0, cell;")
    base = "r0" if space == "shared" else "l0"
    finish = (
        f"bar.warp.sync -1; ld.shared.u{8 * size} {reg}, [r0]; st.global.u{8 * size} [cell], {reg};"
    )
    body = f"""{first} {place} bar.warp.sync -1; mad.wide.u32 l1, tid, {size}, source;
    mad.wide.u32 l2, tid, {size}, olds; ld.global.u{8 * size} {reg}, [l1];
    atom{dotted}.{op}.{kind} {old}, [{base}], {reg}; st.global.u{8 * size} [l2], {old};
    {finish if space == "shared" else ""}"""
    cell = np.array([start], data.dtype)
    after = clean(body, {"cell": cell, "source": data, "olds": np.zeros(32, data.dtype)},
                  shared=".shared .align 8 .b8 mine[8];")  # fmt: skip
    value = start
    for lane in range(32):
        assert int(after["olds"][lane]) == value
        x, y = as_integer(value, kind), as_integer(int(data[lane]), kind)
        value = int(MODELS[op](x, y)) % 256**size
    assert int(after["cell"].view(view)[0]) == value


def test_cas_takes_turns():
    body = """mad.wide.u32 l1, tid, 4, olds; add.u32 r1, tid, 1;
    atom.global.cas.b32 r2, [cell], tid, r1; st.global.u32 [l1], r2;"""
    after = clean(body, {"cell": np.zeros(1, np.uint32), "olds": 128})
    assert list(after["olds"]) == list(range(32))
    assert after["cell"][0] == 32
    body = "mov.b16 h0, 5; mov.b16 h1, 9; atom.global.cas.b16 h2, [cell+2], h0, h1;"
    after = clean(body, {"cell": np.array([0, 5], np.uint16)}, 1)
    assert list(after["cell"]) == [0, 9]


def test_red_and_separate_addresses():
    body = """and.b32 r0, tid, 3; mad.wide.u32 l0, r0, 4, cell; red.global.add.u32 [l0], tid;
    red.relaxed.gpu.global.max.u32 [cell+16], tid;"""
    after = clean(body, {"cell": np.zeros(5, np.uint32)})
    assert list(after["cell"]) == [sum(range(k, 32, 4)) for k in range(4)] + [31]


def test_floats():
    values = np.array([f32_bits(x) for x in (1.5, 2.25, -7.0, 1e-40)] * 8, np.uint32)
    body = """mad.wide.u32 l1, tid, 4, source; ld.global.f32 f0, [l1];
    atom.global.add.f32 f1, [cell], f0; ld.global.f64 l3, [wide]; cvt.f64.f32 l4, f0;
    red.global.add.f64 [wide], l4;""".replace("ld.global.f64 l3, [wide];", "")
    body = body.replace("l4", "g0")
    after = clean(".reg .f64 g0;" + body, {
        "cell": np.zeros(1, np.float32), "wide": np.zeros(1, np.float64), "source": values,
    })  # fmt: skip
    assert after["cell"][0] == np.float32(8 * (1.5 + 2.25 - 7.0))
    assert abs(after["wide"][0] - 8 * (1.5 + 2.25 - 7.0)) < 1e-30


@pytest.mark.parametrize(("kind", "one"), [("f16x2", 0x3C00), ("bf16x2", 0x3F80)])
def test_pairs_of_halves(kind, one):
    body = f"mov.u32 r0, {one | one << 16}; atom.global.add.noftz.{kind} r1, [cell], r0;"
    after = clean(body, {"cell": np.zeros(1, np.uint32)})
    thirty_two = {"f16x2": 0x5000, "bf16x2": 0x4200}[kind]
    assert after["cell"][0] == thirty_two | thirty_two << 16


def test_vectors_of_floats():
    body = """mov.f32 f0, 0f3F800000; mov.f32 f1, 0f40000000;
    red.global.add.v2.f32 [cell], {f0, f1};"""
    after = clean(body, {"cell": np.zeros(2, np.float32)})
    assert list(after["cell"]) == [32.0, 64.0]


def test_exchange_of_128_bits():
    """Compared by bits: what would be a NaN equals itself, and -0 is not 0."""
    wide = np.array([2**63, 0x7FF8 << 48, 5, 6], np.uint64)
    body = """.reg .b128 q<4>; mov.b64 l1, 0x8000000000000000; mov.b64 l2, 0x7FF8000000000000;
    mov.b128 q0, {l1, l2}; mov.b64 l3, 77; mov.b128 q1, {l3, l3}; mov.b64 l4, 0;
    mov.b128 q2, {l4, l2}; atom.global.cas.b128 q3, [cell], q2, q1;
    atom.global.cas.b128 q3, [cell], q0, q1; atom.global.exch.b128 q2, [cell+16], q3;"""
    after = clean(body, {"cell": wide}, 1)
    assert list(after["cell"]) == [77, 77, 2**63, 0x7FF8 << 48]


RED = [(op, kind) for op in ("add", "min", "max") for kind in ("u32", "s32", "u64")]
RED += [(op, kind) for op in ("and", "or", "xor") for kind in ("b32", "b64")]
RED += [("inc", "u32"), ("dec", "u32"), ("min", "s64"), ("max", "s64")]


@pytest.mark.parametrize("space", ["global", "shared", ""])
@pytest.mark.parametrize(("op", "kind"), RED)
def test_red_of_integers(space, op, kind):
    """Four cells, each of them reduced by every fourth lane; edges of the type among the values."""
    bits = int(kind[1:])
    rng = random.Random(f"{op}{kind}")
    edges = [0, 1, 2, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1]
    if op in ("inc", "dec"):
        edges = [0, 1, 2, 3, 5, 2**bits - 1]
    data = [rng.choice([*edges, rng.getrandbits(bits)]) for _ in range(32)]
    start = [rng.choice(edges) for _ in range(4)]
    reg, size = ("r1", 4) if bits == 32 else ("l5", 8)
    dotted = f".{space}" if space else ""
    body = f"""and.b32 r3, tid, 3; mad.wide.u32 l1, tid, {size}, source;
    mad.wide.u32 l0, r3, {size}, cell; mov.u32 r0, mine; mad.lo.u32 r0, r3, {size}, r0;
    """
    where = "[r0]" if space == "shared" else "[l0]"
    if space == "shared":
        body += f"ld.global.u{bits} {reg}, [l0]; st.shared.u{bits} [r0], {reg}; bar.warp.sync -1;"
    body += f"ld.global.u{bits} {reg}, [l1]; red{dotted}.{op}.{kind} {where}, {reg};"
    if space == "shared":
        body += f"bar.warp.sync -1; ld.shared.u{bits} {reg}, [r0]; setp.lt.u32 p0, tid, 4;"
        body += f"@p0 st.global.u{bits} [l0], {reg};"
    arrays = {"cell": np.array(start, f"u{size}"), "source": np.array(data, f"u{size}")}
    after = clean(body, arrays, shared=".shared .align 8 .b8 mine[32];", checks=())
    for k, value in enumerate(start):
        for b in data[k::4]:
            value = int(MODELS[op](as_integer(value, kind), as_integer(b, kind))) % 2**bits
        assert int(after["cell"][k]) == value


def combined_halves(op, old, b, form):
    """add rounds to nearest and keeps subnormal numbers; min and max prefer a number to NaN."""
    x, y = decode(old, form), decode(b, form)
    return encode(add(x, y) if op == "add" else extreme(x, y, op == "max", False), form)


def float_cells(kind, count, seed):
    """Edges and numbers near to each other; no NaN or infinity to start from."""
    form = FORMATS[kind]
    rng = random.Random(seed)
    values = floats(form) + near(form, 60)
    starts = [0, 1 << (form.bits - 1), 1, *near(form, 20)]
    return [rng.choice(starts) for _ in range(count)], [rng.choice(values) for _ in range(count)]


@pytest.mark.parametrize("base", ["atom", "red"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f16x2", "bf16x2"])
@pytest.mark.parametrize("vector", [1, 2, 4, 8])
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_halves(base, kind, vector, op):
    """A cell a lane, then one more value for each cell from the lane beside it."""
    is_pair = kind.endswith("x2")
    if (op != "add" and vector == 1) or (is_pair and vector == 8):
        pytest.skip("no such instruction")
    single = kind.removesuffix("x2")
    form = FORMATS[single]
    size = vector * (4 if is_pair else 2)
    per_lane = size // 2
    old, new = float_cells(single, 32 * per_lane, f"{kind}{vector}{op}")
    names = [f"{'r' if is_pair else 'h'}{4 + k}" for k in range(vector)]
    olds = [f"o{k}" for k in range(vector)]
    braced = "{" + ", ".join(names) + "}" if vector > 1 else names[0]
    braced_olds = "{" + ", ".join(olds) + "}" if vector > 1 else olds[0]
    vec = f".v{vector}" if vector > 1 else ""
    width = 32 if is_pair else 16
    lines = [f".reg .b{width} o<8>;", f"mad.wide.u32 l0, tid, {size}, cell;"]
    lines += ["xor.b32 r0, tid, 1;", f"mad.wide.u32 l2, tid, {size}, olds;"]
    for lane in ("tid", "r0"):
        lines += [f"mad.wide.u32 l1, {lane}, {size}, source;"]
        lines += [f"ld.global.b{width} {n}, [l1+{k * width // 8}];" for k, n in enumerate(names)]
        target = f"{braced_olds}, " if base == "atom" else ""
        lines += [f"{base}.relaxed.gpu.global.{op}.noftz{vec}.{kind} {target}[l0], {braced};"]
    if base == "atom":
        lines += [f"st.global.b{width} [l2+{k * width // 8}], {n};" for k, n in enumerate(olds)]
    arrays = {"cell": np.array(old, np.uint16), "source": np.array(new, np.uint16)}
    after = clean("\n".join(lines), {**arrays, "olds": np.zeros(32 * per_lane, np.uint16)})
    for k, bits in enumerate(old):
        lane, place = divmod(k, per_lane)
        first = combined_halves(op, bits, new[k], form)
        last = combined_halves(op, first, new[(lane ^ 1) * per_lane + place], form)
        found = int(after["cell"][k])
        assert same_float(found, last, form), (hex(bits), hex(new[k]), hex(found), hex(last))
        if base == "atom":
            assert same_float(int(after["olds"][k]), first, form)


@pytest.mark.parametrize("base", ["atom", "red"])
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_singles(base, vector):
    """On global memory subnormal operands and results become zeros of their sign."""
    form = FORMATS["f32"]
    old, new = float_cells("f32", 32 * vector, vector)
    names = [f"f{k}" for k in range(vector)]
    olds = [f"f{8 + k}" for k in range(vector)]
    vec = f".v{vector}" if vector > 1 else ""
    braced, braced_olds = ("{" + ", ".join(n) + "}" if vector > 1 else n[0] for n in (names, olds))
    target = f"{braced_olds}, " if base == "atom" else ""
    lines = [f"mad.wide.u32 l{k}, tid, {4 * vector}, {name};"
             for k, name in enumerate(("cell", "source", "olds"))]  # fmt: skip
    lines += [f"ld.global{vec}.f32 {braced}, [l1];"]
    lines += [f"{base}.relaxed.gpu.global.add{vec}.f32 {target}[l0], {braced};"]
    if base == "atom":
        lines += [f"st.global{vec}.f32 [l2], {braced_olds};"]
    arrays = {"cell": np.array(old, np.uint32), "source": np.array(new, np.uint32)}
    after = clean("\n".join(lines), {**arrays, "olds": np.zeros(32 * vector, np.uint32)})
    for k, (a, b) in enumerate(zip(old, new, strict=True)):
        total = add(decode(flush(a, form), form), decode(flush(b, form), form))
        wanted = flush(encode(total, form), form)
        assert same_float(int(after["cell"][k]), wanted, form), (hex(a), hex(b))
        if base == "atom":
            assert int(after["olds"][k]) == a


def test_singles_and_doubles_that_stay_subnormal():
    """add.f32 on shared memory and add.f64 keep subnormal numbers."""
    body = """.reg .f64 g0; mov.u32 r0, mine; mad.lo.u32 r0, tid, 4, r0; mov.b32 r1, 3;
    st.shared.u32 [r0], r1; mov.b32 f0, 0x80000001; red.shared.add.f32 [r0], f0;
    atom.shared.add.f32 f1, [r0], f0; mad.wide.u32 l0, tid, 4, olds; st.global.f32 [l0], f1;
    ld.shared.u32 r2, [r0]; mad.wide.u32 l1, tid, 4, cell; st.global.u32 [l1], r2;
    mov.b64 l3, 5; mov.b64 g0, l3; mad.wide.u32 l2, tid, 8, wide; red.global.add.f64 [l2], g0;"""
    arrays = {"cell": np.zeros(32, np.uint32), "olds": np.zeros(32, np.uint32),
              "wide": np.arange(32, dtype=np.uint64)}  # fmt: skip
    after = clean(body, arrays, shared=".shared .align 8 .b8 mine[128];")
    assert set(after["cell"]) == {1}
    assert set(after["olds"]) == {2}
    assert list(after["wide"]) == [k + 5 for k in range(32)]


def test_compare_and_swap_of_64_bits_and_sums_of_doubles():
    """The lanes in turn: each takes the place of the one before it; upper halves count too."""
    body = """.reg .f64 g<3>; mad.wide.u32 l0, tid, 8, olds; cvt.u64.u32 l1, tid;
    shl.b64 l1, l1, 33; add.u64 l2, l1, 0x200000000; atom.global.cas.b64 l3, [cell], l1, l2;
    st.global.u64 [l0], l3;
    cvt.rn.f64.u32 g0, tid; atom.global.add.f64 g1, [sum], g0; mad.wide.u32 l4, tid, 8, sums;
    st.global.f64 [l4], g1; atom.global.cas.b64 l3, [other], l1, l2;"""
    arrays = {
        "cell": np.zeros(1, np.uint64), "olds": np.zeros(32, np.uint64), "sum": np.array([0.5]),
        "sums": np.zeros(32), "other": np.ones(1, np.uint64),
    }  # fmt: skip
    after = clean(body, arrays)
    assert after["olds"].tolist() == [k << 33 for k in range(32)]
    assert after["cell"].tolist() == [32 << 33]
    assert after["sums"].tolist() == [0.5 + sum(range(k)) for k in range(32)]
    assert after["sum"].tolist() == [0.5 + sum(range(32))]
    assert after["other"].tolist() == [1]
