"""atom and red: each operation against the lanes in turn."""

from __future__ import annotations

import numpy as np
import pytest
from samples import f32_bits
from scalar_model import as_integer
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
