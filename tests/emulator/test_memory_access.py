"""ld and st of every type, width and space; module variables; parameters."""

from __future__ import annotations

import random

import numpy as np
import pytest
from one_instruction import HEADER, run
from whole_block import clean

from sparsekit.emulator import Memory, launch, load
from sparsekit.errors import ArgumentError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32"])
def test_narrow_loads_extend(kind):
    bits = int(kind[1:])
    data = RNG.integers(0, 256, 32 * bits // 8, dtype=np.uint8)
    body = f"""
    mad.wide.u32 l0, tid, {bits // 8}, source; mad.wide.u32 l1, tid, 8, target;
    ld.global.{kind} r0, [l0]; ld.global.{kind} l2, [l0]; st.global.u64 [l1], l2;
    mad.wide.u32 l3, tid, 4, other; st.global.u32 [l3], r0;
    """
    after = clean(body, {"source": data, "target": np.zeros(32, np.uint64), "other": 128})
    values = data.view(f"u{bits // 8}").astype(object)
    if kind[0] == "s":
        values = data.view(f"i{bits // 8}").astype(object)
    assert list(after["target"]) == [int(v) % 2**64 for v in values]
    assert list(after["other"]) == [int(v) % 2**32 for v in values]


@pytest.mark.parametrize("space", ["global", "shared", "local", "generic"])
@pytest.mark.parametrize(
    ("kind", "size"), [("b8", 1), ("b16", 2), ("b32", 4), ("f32", 4), ("b64", 8), ("b128", 16)]
)
@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_vectors_in_every_space(space, kind, size, vector):
    width = size * vector
    if width > 32 or (width == 32 and (size == 16 or space in ("shared", "local"))):
        pytest.skip("no such access")
    registers = {1: "h", 2: "h", 4: "r", 8: "l"}.get(size, "q")
    if kind == "f32":
        registers = "f"
    names = [f"{registers}{8 + i}" for i in range(vector)]
    vec = f".v{vector}" if vector > 1 else ""
    operand = "{" + ", ".join(names) + "}" if vector > 1 else names[0]
    through = {"shared": "cells", "local": "own", "global": "middle", "generic": "middle"}[space]
    dotted = f".{space}" if space != "generic" else ""
    declare = ".shared .align 16 .b8 cells[2048]; .local .align 16 .b8 own[64];"
    declare += ".reg .b128 q<20>;"
    address = {
        "shared": f"mov.u32 r0, cells; mad.lo.u32 r0, tid, {width}, r0;",
        "local": "mov.u64 l0, own;",
    }.get(space, f"mad.wide.u32 l0, tid, {width}, {through};")
    base = "r0" if space == "shared" else "l0"
    offset = 16 if space == "local" else 0
    body = f"""
    mad.wide.u32 l1, tid, {width}, source; mad.wide.u32 l2, tid, {width}, target; {address}
    ld.global{vec}.{kind} {operand}, [l1];
    st{dotted}{vec}.{kind} [{base}+{offset}], {operand};
    ld{dotted}{vec}.{kind} {operand}, [{base}+{offset}];
    st.global{vec}.{kind} [l2], {operand};
    """
    data = RNG.integers(0, 256, 64 * width, dtype=np.uint8)
    after = clean(
        body, {"source": data, "middle": 64 * width, "target": 64 * width}, 64, shared=declare
    )
    assert after["target"].tobytes() == data.tobytes()


@pytest.mark.parametrize("space", ["", ".global"])
@pytest.mark.parametrize(
    "kind",
    ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"],
)
@pytest.mark.parametrize("vector", [1, 2, 4])
def test_ldu(space, kind, vector):
    """Loads an address that all lanes of a warp share; narrow ones extend as those of ld do."""
    bits = int(kind[1:])
    size = bits // 8 * vector
    if size > 16:
        pytest.skip("no such access")
    registers = kind[0] if kind[0] == "f" else {8: "r", 16: "r", 32: "r", 64: "l"}[bits]
    if kind == "f64":
        registers = "g"
    if bits == 16:
        registers = "h"
    names = [f"{registers}{8 + k}" for k in range(vector)]
    braced = "{" + ", ".join(names) + "}" if vector > 1 else names[0]
    vec = f".v{vector}" if vector > 1 else ""
    stored = {"f": kind, "r": "u32", "h": "b16", "l": "b64", "g": "f64"}[registers]
    out = int(stored[1:]) // 8
    body = f"""mad.wide.u32 l0, warp, {size}, source; mad.wide.u32 l1, tid, {out * vector}, target;
    ldu{space}{vec}.{kind} {braced}, [l0+{size}];"""
    body += "".join(f"st.global.{stored} [l1+{k * out}], {n};" for k, n in enumerate(names))
    data = RNG.integers(0, 256, 3 * size, dtype=np.uint8)
    data[-1] |= 0x80
    arrays = {"source": data, "target": np.zeros(64 * vector, f"u{out}")}
    after = clean(".reg .f64 g<16>;" + body, arrays, 64)["target"]
    elements = data.reshape(3 * vector, bits // 8)
    for lane in range(64):
        for k in range(vector):
            raw = elements[(lane // 32 + 1) * vector + k].tobytes()
            value = int.from_bytes(raw, "little", signed=kind[0] == "s")
            assert int(after[lane * vector + k]) == value % 256**out


def test_ldu_of_128_bits():
    body = """.reg .b128 q; ldu.global.b128 q, [source+16]; mad.wide.u32 l0, tid, 16, out;
    st.global.b128 [l0], q;"""
    data = RNG.integers(0, 256, 32, dtype=np.uint8)
    after = clean(body, {"source": data, "out": np.zeros(512, np.uint8)})["out"].reshape(32, 16)
    assert (after == data[16:]).all()


def test_stores_take_the_low_bits():
    after = clean(
        "add.u64 l0, out, 0; mov.u32 r0, 0x12345678; @p0 bra L; st.global.u8 [out+1], r0;"
        "st.global.u16 [out+2], r0; st.global.b8 [out+4], r0; L: setp.ne.u32 p0, tid, 0;",
        {"out": np.zeros(8, np.uint8)}, 1, checks=(),
    )  # fmt: skip
    assert list(after["out"]) == [0, 0x78, 0x78, 0x56, 0x78, 0, 0, 0]


def test_predicated_access():
    data = np.arange(64, dtype=np.uint32)
    body = """
    and.b32 r0, tid, 1; setp.eq.u32 p0, r0, 1; mad.wide.u32 l0, tid, 4, source;
    mad.wide.u32 l1, tid, 4, target; mov.u32 r1, 77; mov.u64 l2, 0; selp.b64 l0, l0, l2, p0;
    @p0 ld.global.u32 r1, [l0]; st.global.u32 [l1], r1; @!p0 st.global.u32 [l1], 5;
    """
    after = clean(body, {"source": data, "target": 256}, 64)
    assert list(after["target"]) == [int(x) if x % 2 else 5 for x in data]


def test_module_variables():
    module = """
    .global .align 4 .u32 counter = 5;
    .global .align 8 .u64 table[3] = {1, 2, 0xFFFFFFFFFFFFFFFF};
    .const .align 4 .f32 factors[2] = {0f3F800000, 0f40000000};
    .global .align 8 .u64 where = counter;
    .global .align 1 .b8 text[4] = {65, 66, 67, 0};
    """
    body = """
    ld.global.u32 r0, [counter]; ld.global.u64 l0, [table+16]; ld.const.f32 f0, [factors+4];
    ld.global.u64 l1, [where]; ld.global.u32 r1, [l1]; ld.global.u8 r2, [text+2];
    cvt.u32.u64 r3, l0; mov.b32 r4, f0;
    st.global.v4.u32 [out], {r0, r1, r2, r3}; st.global.u32 [out+16], r4;
    """
    after = clean(body, {"out": 32}, 1, module=module)
    assert list(after["out"][:5]) == [5, 5, 67, 2**32 - 1, 0x40000000]


def test_parameters_by_name_and_by_address():
    text = (
        HEADER
        + """
    .visible .entry test(.param .align 8 .b8 box[24], .param .u16 small, .param .f32 number,
                         .param .u64 out)
    { .reg .b64 l<9>; .reg .b32 r<9>; .reg .b16 h<3>; .reg .f32 f0;
      ld.param.u64 l0, [out]; ld.param.u32 r0, [box+4]; ld.param.v2.u32 {r1, r2}, [box+8];
      ld.param.u16 h0, [small]; ld.param.f32 f0, [number]; mov.b64 l1, box;
      cvta.param.u64 l2, l1; ld.u32 r3, [l2+20]; ld.param.u32 r4, [l1+16];
      cvt.u32.u16 r5, h0;
      st.global.v4.u32 [l0], {r0, r1, r2, r3}; st.global.v2.u32 [l0+16], {r4, r5};
      st.global.f32 [l0+24], f0; ret; }
    """
    )
    memory = Memory()
    out = memory.allocate(32)
    box = np.arange(6, dtype=np.uint32).tobytes()
    launch(load(text), "test", (1,), 1, [box, 7, 2.0, out], memory).raise_faults()
    assert list(memory.read(out, np.uint32)[:7]) == [1, 2, 3, 5, 4, 7, 0x40000000]
    with pytest.raises(ArgumentError, match="takes 4 parameters"):
        launch(load(text), "test", (1,), 1, [box], memory)
    with pytest.raises(ArgumentError, match="has 24 bytes"):
        launch(load(text), "test", (1,), 1, [b"", 7, 2.0, out], memory)


def test_hints_change_nothing():
    data = np.arange(128, dtype=np.uint32)
    body = """
    mad.wide.u32 l0, tid, 16, source; mad.wide.u32 l1, tid, 16, target; mov.b64 l3, 0;
    createpolicy.fractional.L2::evict_last.b64 l3, 0f3F800000;
    prefetch.global.L2 [l0]; ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {r0, r1, r2, r3}, [l0];
    ld.global.L1::evict_last.L2::cache_hint.v4.b32 {r0, r1, r2, r3}, [l0], l3;
    st.global.cs.v4.u32 [l1], {r0, r1, r2, r3}; setmaxnreg.dec.sync.aligned.u32 40;
    griddepcontrol.wait; nanosleep.u32 20;
    """
    after = clean(body, {"source": data, "target": 512})
    assert list(after["target"]) == list(data)


def test_hints_about_lines_change_nothing():
    """Policies, priorities and prefetches; what discard names is not read before it is written."""
    data = np.arange(128, dtype=np.uint32)
    body = """
    mad.wide.u32 l0, tid, 16, source; mad.wide.u32 l1, tid, 16, target;
    prefetch.global.L2::evict_last [source]; prefetch.global.L2::evict_normal [source+128];
    prefetchu.L1 [source]; applypriority.global.L2::evict_normal [source], 128; pmevent 7;
    applypriority.L2::evict_normal [source], 128; pmevent.mask 3;
    createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 l3, [source], 256, 512;
    createpolicy.range.L2::evict_first.b64 l4, [source], 256, 512; mov.b64 l5, 1;
    createpolicy.cvt.L2.b64 l6, l5; discard.global.L2 [target], 128; discard.L2 [target+128], 128;
    bar.warp.sync -1; ld.global.L2::cache_hint.v4.b32 {r0, r1, r2, r3}, [l0], l3;
    st.global.L2::cache_hint.v4.b32 [l1], {r0, r1, r2, r3}, l6;
    """
    after = clean(body, {"source": data, "target": np.zeros(128, np.uint32)})
    assert list(after["target"]) == list(data)
    assert list(after["source"]) == list(data)


def test_addresses_wrap_as_registers_do():
    values = [random.Random(1).getrandbits(32) for _ in range(4)]
    body = "add.u64 l, base, 8; ld.global.u32 d0, [l+-8];"
    (found,) = run(body, [("b32", values)], ["b32"], declare=".reg .b64 l;")
    assert found == values
