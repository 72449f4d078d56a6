"""mov, prmt, selp, slct, set, setp, cvta, isspacep: movement and choice."""

from __future__ import annotations

import random

import pytest
from one_instruction import run
from samples import columns, integers, pairs
from scalar_model import as_integer

RNG = random.Random(0)
WORDS = [RNG.getrandbits(32) for _ in range(80)]
COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
OF_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def test_packing_and_unpacking():
    low, high = WORDS[:40], WORDS[40:]
    (wide,) = run("mov.b64 d0, {a, b};", [("b32", low), ("b32", high)], ["b64"])
    assert wide == [x | y << 32 for x, y in zip(low, high, strict=True)]
    first, second = run("mov.b64 {d0, d1}, a;", [("b64", wide)], ["b32", "b32"])
    assert (first, second) == (low, high)
    (only,) = run("mov.b64 {_, d0}, a;", [("b64", wide)], ["b32"])
    assert only == high
    bytes_in = [[x >> 8 * k & 0xFF for x in low] for k in range(4)]
    body = "mov.b32 d0, {a, b}; mov.b32 {d1, d2}, d0;"
    halves = [("b16", [x & 0xFFFF for x in low]), ("b16", [x >> 16 for x in low])]
    whole, *parts = run(body, halves, ["b32", "b16", "b16"])
    assert whole == low
    assert parts == [halves[0][1], halves[1][1]]
    (four,) = run("mov.b64 d0, {a, b, c, d};", [("b16", b) for b in bytes_in], ["b64"])
    assert four == [
        sum(b << 16 * k for k, b in enumerate(row)) for row in zip(*bytes_in, strict=True)
    ]
    big, lo, hi = run(
        "mov.b128 d0, {a, b}; mov.b128 {d1, d2}, d0;", [("b64", wide), ("b64", wide[::-1])],
        ["b128", "b64", "b64"],
    )  # fmt: skip
    assert big == [x | y << 64 for x, y in zip(wide, wide[::-1], strict=True)]
    assert (lo, hi) == (wide, wide[::-1])


def test_constants():
    (found,) = run("mov.f32 d0, 0f3F800000;", [("b32", [1, 2])], ["f32"])
    assert found == [0x3F800000] * 2
    (found,) = run("mov.u32 d0, -5;", [("b32", [1])], ["b32"])
    assert found == [2**32 - 5]
    (found,) = run("add.f32 d0, a, 0f40000000;", [("f32", [0x3F800000])], ["f32"])
    assert found == [0x40400000]
    (found,) = run("mov.f64 d0, 1.5;", [("b32", [1])], ["f64"])
    assert found == [0x3FF8000000000000]


def read_byte(mode, index, c, a, b):
    """ReadByte of the ISA's text, by its tables."""
    octets = [(a | b << 32) >> 8 * k & 0xFF for k in range(8)]
    if not mode:
        nibble = c >> 4 * index & 0xF
        byte = octets[nibble & 7]
        return (0xFF if byte & 0x80 else 0) if nibble & 8 else byte
    n = c & 3
    table = {
        "f4e": [n, n + 1, n + 2, n + 3],
        "b4e": [n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8],
        "rc8": [n] * 4,
        "ecl": [max(n, k) for k in range(4)],
        "ecr": [min(n, k) for k in range(4)],
        "rc16": [2 * (n & 1), 2 * (n & 1) + 1] * 2,
    }
    return octets[table[mode][index]]


@pytest.mark.parametrize("mode", ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
def test_prmt(mode):
    rows = [(RNG.getrandbits(32), RNG.getrandbits(32), RNG.getrandbits(16)) for _ in range(120)]
    dotted = f".{mode}" if mode else ""
    (found,) = run(f"prmt.b32{dotted} d0, a, b, c;", [("b32", x) for x in columns(rows)], ["b32"])
    for (a, b, c), result in zip(rows, found, strict=True):
        assert result == sum(read_byte(mode, k, c, a, b) << 8 * k for k in range(4))


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64", "b32"])
def test_setp_and_set(kind):
    bits = int(kind[1:])
    rows = pairs(integers(bits), 20, bits)
    inputs = [(kind, c) for c in columns(rows)]
    names = dict(COMPARISONS)
    if kind[0] == "u":
        names |= {n: COMPARISONS[c] for n, c in OF_UNSIGNED.items()}
    if kind[0] == "b":
        names = {n: names[n] for n in ("eq", "ne")}
    for name, model in names.items():
        wanted = [model(*(as_integer(x, kind) for x in row)) for row in rows]
        (found,) = run(f"setp.{name}.{kind} d0, a, b;", inputs, ["pred"])
        assert found == [int(w) for w in wanted], name
        (value,) = run(f"set.{name}.u32.{kind} d0, a, b;", inputs, ["b32"])
        assert value == [0xFFFFFFFF * w for w in wanted]
        (value,) = run(f"set.{name}.f32.{kind} d0, a, b;", inputs, ["f32"])
        assert value == [0x3F800000 * w for w in wanted]


def test_setp_combines_and_gives_the_opposite():
    rows = [(a, b, q) for a in (1, 2) for b in (1, 2) for q in (0, 1)]
    inputs = list(zip(("u32", "u32", "pred"), columns(rows), strict=True))
    for op, combine in (
        ("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)
    ):  # fmt: skip
        p, q = run(f"setp.lt.{op}.u32 d0|d1, a, b, c;", inputs, ["pred", "pred"])
        for (a, b, c), first, second in zip(rows, p, q, strict=True):
            assert first == combine(int(a < b), c)
            assert second == combine(int(a >= b), c)


def test_selection():
    rows = [(RNG.getrandbits(32), RNG.getrandbits(32), k % 2) for k in range(20)]
    inputs = list(zip(("b32", "b32", "pred"), columns(rows), strict=True))
    (found,) = run("selp.b32 d0, a, b, c;", inputs, ["b32"])
    assert found == [a if p else b for a, b, p in rows]
    rows = [(a, b, c) for a, b, _ in rows for c in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)]
    inputs = [("b32", c) for c in columns(rows)]
    (found,) = run("slct.b32.s32 d0, a, b, c;", inputs, ["b32"])
    assert found == [a if c < 1 << 31 else b for a, b, c in rows]
    rows = [(1, 2, c) for c in (0, 0x80000000, 0x3F800000, 0xBF800000, 0x7FC00000, 1, 0x80000001)]
    inputs = list(zip(("b32", "b32", "f32"), columns(rows), strict=True))
    (found,) = run("slct.b32.f32 d0, a, b, c;", inputs, ["b32"])
    assert found == [1, 1, 1, 2, 2, 1, 2]
    (found,) = run("slct.ftz.b32.f32 d0, a, b, c;", inputs, ["b32"])
    assert found == [1, 1, 1, 2, 2, 1, 1]


def test_windows():
    """cvta there and back, isspacep, and access through generic addresses."""
    body = """
    mov.u64 g, cell; cvta.shared.u64 g, g; isspacep.shared d0, g; isspacep.global d1, g;
    mov.u64 h, own; cvta.local.u64 h, h; isspacep.local d2, h; isspacep.shared d3, h;
    mul.wide.u32 o, index, 4; add.u64 k, g, o; st.u32 [k], a; st.u32 [h+4], b;
    cvta.to.shared.u64 k, k; ld.shared.u32 d4, [k]; cvta.to.local.u64 h, h; ld.local.u32 d5, [h+4];
    isspacep.global d6, base; ld.u32 d7, [base];
    """
    declare = ".reg .b64 g, h, k, o; .shared .align 8 .b8 cell[1024]; .local .align 8 .b8 own[16];"
    outputs = ["pred"] * 4 + ["b32", "b32", "pred", "b32"]
    found = run(body, [("b32", WORDS[:32]), ("b32", WORDS[32:64])], outputs, declare)
    assert [set(f) for f in found[:4]] == [{1}, {0}, {1}, {0}]
    assert found[4] == WORDS[:32]
    assert found[5] == WORDS[32:64]
    assert set(found[6]) == {1}
    assert found[7] == WORDS[32:64]  # base is the address of the last input


def test_special_registers():
    body = """
    mov.u32 d0, %tid.x; mov.u32 d1, %laneid; mov.u32 d2, %warpid; mov.u32 d3, %ntid.x;
    mov.u32 d4, %ctaid.x; mov.u32 d5, %nctaid.x; mov.u32 d6, %lanemask_lt; mov.u32 d7, %lanemask_ge;
    mov.u32 d8, %lanemask_eq; mov.u32 d9, %lanemask_le; mov.u32 d10, %lanemask_gt;
    mov.u32 d11, %nwarpid; mov.u32 d12, WARP_SZ; mov.u32 d13, %nctaid.y;
    """
    count = 300
    found = run(body, [("b32", range(count))], ["b32"] * 14)
    for i, row in enumerate(zip(*found, strict=True)):
        tid, lane = i % 128, i % 32
        masks = [
            (1 << lane) - 1, (1 << 32) - (1 << lane), 1 << lane, (2 << lane) - 1,
            (1 << 32) - (2 << lane),
        ]  # fmt: skip
        assert list(row) == [tid, lane, tid // 32, 128, i // 128, 3, *masks, 4, 32, 1]


def test_clock_grows():
    body = "mov.u64 d0, %clock64; bar.sync 0; mov.u64 d1, %clock64;"
    first, second = run(body, [("b32", range(64))], ["b64", "b64"])
    assert all(a < b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "kind", ["pred", *(f"{sign}{bits}" for sign in "bus" for bits in (16, 32, 64)), "f32", "f64"]
)
def test_mov_of_every_type(kind):
    bits = 1 if kind == "pred" else int(kind[1:])
    values = [RNG.getrandbits(bits) for _ in range(40)]
    (found,) = run(f"mov.{kind} d0, a;", [(kind, values)], [kind])
    assert found == values


def test_windows_by_all_their_names():
    """Addresses in the memory of parameters, and of the own block by its names."""
    shared = ("shared", "shared::cta", "shared::cluster")
    spaces = (*shared, "local", "param", "param::entry", "global")
    body, outputs = "mov.u64 e, total_place; mov.u64 f, cell; mov.u64 h, own; mov.u64 k, count;", []
    body = body.replace("mov.u64 e, total_place;", "")
    holders = {"shared": "f", "local": "h", "param": "k", "global": "base"}
    for written in (*shared, "local", "param", "param::entry", "global"):
        holder = holders[written.partition("::")[0]]
        body += f"cvta.{written}.u64 g, {holder}; cvta.to.{written}.u64 x, g;"
        body += f"setp.eq.u64 d{len(outputs)}, x, {holder};"
        outputs.append(1)
        for space in spaces:
            body += f"isspacep.{space} d{len(outputs)}, g;"
            outputs.append(int(space.partition("::")[0] == written.partition("::")[0]))
    body += "cvta.const.u64 g, base; cvta.to.const.u64 x, g;"
    body += f"setp.eq.u64 d{len(outputs)}, x, base;"
    outputs.append(1)
    declare = ".reg .b64 g, f, h, k, x; .shared .align 8 .b8 cell[64]; .local .align 8 .b8 own[16];"
    found = run(body, [("b32", WORDS[:4])], ["pred"] * len(outputs), declare)
    assert [set(f) for f in found] == [{wanted} for wanted in outputs]
