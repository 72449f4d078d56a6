"""Spellings of an instruction that a single thread cannot tell apart: orders, scopes, and names of
one memory. Each runs once and must do what the plain spelling does."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from form_spellings import forms, letter
from whole_block import clean

SHARED = ".shared .align 16 .b8 cell[16]; .shared .align 8 .b64 bar;"
REGISTERS = ".reg .b16 h<16>; .reg .b64 d<16>; .reg .f64 g<16>; .reg .b128 q<16>; .reg .b64 place;"
SCOPES = ("cta", "cluster", "gpu", "sys")
OF_SHARED = ("shared", "shared::cta", "shared::cluster")
ROW = 32  # bytes that each spelling leaves


def dotted(*modifiers):
    return "".join(f".{m}" for m in modifiers if m)


def orders(*names):
    return [("", ""), *product(names, SCOPES)]


def register(kind, number):
    return f"{letter(kind)}{number}"


def test_orders_of_loads_and_stores():
    """A store of every spelling, and what a load of every spelling finds."""
    loads = [*orders("relaxed", "acquire"), ("weak", ""), ("volatile", "")]
    stores = [*orders("relaxed", "release"), ("weak", ""), ("volatile", "")]
    lines, wanted = [], []
    for (put, get), space in product(
        zip(stores, loads, strict=True), ("", "global", *OF_SHARED, "local")
    ):
        if space == "local" and (put[0] not in ("", "weak", "volatile")):
            continue
        place = {"global": "globe", "": "globe", "local": "l9"}.get(space, "l8")
        value = len(wanted) + 77
        lines += [
            f"st{dotted(*put, space)}.u32 [{place}], {value};",
            f"ld{dotted(*get, space)}.u32 r1, [{place}];",
            f"st.global.u32 [out+{4 * len(wanted)}], r1;",
        ]
        wanted.append(value)
    body = "mov.u64 l8, cell; mov.u64 l9, own;" + "\n".join(lines)
    arrays = {"globe": 16, "out": 4 * len(wanted)}
    after = clean(body, arrays, 1, shared=SHARED + ".local .align 8 .b8 own[8];")
    assert after["out"].tolist() == wanted


TYPES = [f"{sign}{bits}" for bits in (8, 16, 32, 64) for sign in "bus"] + ["f32", "f64", "b128"]


@pytest.mark.parametrize("order", ["", "volatile", "relaxed.gpu"])
@pytest.mark.parametrize("space", ["", "global", *OF_SHARED, "local"])
def test_types_of_loads_and_stores(space, order):
    """A store takes the low bits of a register, a load gives them to it again."""
    if space == "local" and order.startswith("relaxed"):
        pytest.skip("no such access")
    place = {"global": "globe", "": "globe", "local": "l9"}.get(space, "l8")
    lines, wanted = [], []
    rng = np.random.default_rng(5)
    source = rng.integers(0, 256, 16 * len(TYPES), dtype=np.uint8)
    for k, kind in enumerate(TYPES):
        size = int(kind[1:]) // 8
        name = register(kind, 3)
        lines += [
            f"ld.global.{kind} {name}, [source+{16 * k}];",
            f"st{dotted(order, space)}.{kind} [{place}], {name};",
            f"ld{dotted(order, space)}.{kind} {name}, [{place}];",
            f"st.global.{kind} [out+{16 * k}], {name};",
        ]  # fmt: skip
        wanted.append(source[16 * k : 16 * k + size].tobytes() + bytes(16 - size))
    body = REGISTERS.replace(".reg .b16 h<16>; ", "") + "mov.u64 l8, cell; mov.u64 l9, own;"
    arrays = {"globe": 16, "source": source, "out": np.zeros(16 * len(TYPES), np.uint8)}
    declare = SHARED + ".local .align 16 .b8 own[16];"
    after = clean(body + "\n".join(lines), arrays, 1, shared=declare)
    assert after["out"].tobytes() == b"".join(wanted)


@pytest.mark.parametrize("order", ["weak", "volatile", "relaxed.sys"])
def test_vectors_of_every_order(order):
    names = [f"r{k}" for k in range(8)]
    lines, count = [], 0
    for elements in (2, 4, 8):
        held = "{" + ", ".join(names[:elements]) + "}"
        lines += [f"ld.{order}.global.v{elements}.u32 {held}, [source+{4 * count}];"]
        lines += [f"st.{order}.global.v{elements}.u32 [out+{4 * count}], {held};"]
        count += 8
    data = np.arange(5, 29, dtype=np.uint32)
    after = clean("\n".join(lines), {"source": data, "out": np.zeros(24, np.uint32)}, 1)["out"]
    kept = [k % 8 < (2, 4, 8)[k // 8] for k in range(24)]
    assert after.tolist() == [int(x) if keep else 0 for x, keep in zip(data, kept, strict=True)]


def test_names_of_the_memory_of_parameters():
    """param::func is that of a call, param::entry the kernel's; param is either."""
    module = """.func (.param .b32 r) twice(.param .b32 x) { .reg .b32 a; ld.param::func.u32 a, [x];
    add.u32 a, a, a; st.param::func.b32 [r+0], a; ret; }"""
    body = """{ .param .b32 x; .param .b32 r; st.param::func.b32 [x+0], 21; call (r), twice, (x);
    ld.param::func.u32 r1, [r+0]; } ld.param::entry.u64 l0, [out_param];
    ld.param.u64 l1, [out_param]; setp.eq.u64 p0, l0, l1; selp.u32 r2, 1, 0, p0;
    st.global.v2.u32 [l0], {r1, r2};"""
    assert clean(body, {"out": 8}, 1, module=module)["out"].tolist() == [42, 1]


@pytest.mark.parametrize("name", ["shared", "shared::cta"])
@pytest.mark.parametrize("level", ["ca", "cg"])
def test_names_of_the_target_of_a_copy(name, level):
    data = np.arange(7, 11, dtype=np.uint32)
    for wait in (
        "cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;",
        f"""cp.async.mbarrier.arrive.noinc.{name}.b64 [r9];
        W: mbarrier.try_wait.parity.shared.b64 p0, [r9], 0; @!p0 bra W;""",
    ):  # fmt: skip
        body = f"""mov.u32 r0, cell; mov.u32 r9, bar; mbarrier.init.shared.b64 [r9], 1;
        cp.async.{level}.{name}.global [r0], [source], 16; {wait}
        ld.shared.v4.u32 {{r1, r2, r3, r4}}, [r0]; st.global.v4.u32 [out], {{r1, r2, r3, r4}};"""
        assert (clean(body, {"source": data, "out": 16}, 1, shared=SHARED)["out"] == data).all()


def atomic_spellings(form):
    """(opcode with its type, place) of every order, scope and space, the plain one first."""
    groups = {g.name: g for g in form.groups}
    op = min(groups["op"].choices)
    tail = [op, "noftz" if "noftz" in groups else "", min(groups["vec"].choices, default="")
            if "vec" in groups else "", min(groups["t"].choices)]  # fmt: skip
    sems = ["", *sorted(groups["sem"].choices)]
    spaces = ["", *sorted(groups["space"].choices)]
    for sem, scope, space in product(sems, ["", *SCOPES], spaces):
        if (sem or scope) and space not in ("", "shared::cluster"):
            continue  # orders with generic addresses and of one space, spaces without orders
        yield form.base + dotted(sem, scope, space, *tail), space, tail


@pytest.mark.parametrize("form", forms("atomics"), ids=lambda f: f.base)
def test_orders_and_spaces_of_atomics(form):
    lines, count = [], 0
    for opcode, space, (op, _, vec, kind) in atomic_spellings(form):
        elements = int(vec[1:]) if vec else 1
        bits = int(kind.removesuffix("x2").strip("busf")) * (1 + kind.endswith("x2"))
        place = "l8" if space.startswith("shared") else "globe"
        where = "shared" if space.startswith("shared") else "global"
        olds, news = ([register(kind, first + k) for k in range(elements)] for first in (1, 8))
        old, new = ("{" + ", ".join(x) + "}" if vec else x[0] for x in (olds, news))
        lines += [f"st.{where}.v2.b64 [{place}], {{d1, d2}};"]
        lines += [f"ld.global.b{bits} {name}, [operand+{bits // 8 * k}];" if letter(kind) != "f"
                  else f"ld.global.f32 {name}, [operand+{4 * k}];"
                  for k, name in enumerate(news)]  # fmt: skip
        third = f", {register(kind, 8)}" if op == "cas" else ""
        target = f"{old}, " if form.base == "atom" else ""
        lines += [f"{opcode} {target}[{place}], {new}{third};"]
        lines += [f"ld.{where}.v2.b64 {{d3, d4}}, [{place}];"]
        lines += [f"st.global.v2.b64 [out+{ROW * count}], {{d3, d4}};"]
        if form.base == "atom":
            stored = {"h": "b16", "r": "b32", "f": "f32", "l": "b64", "g": "f64", "q": "b128"}
            lines += [f"st.global.{stored[letter(kind)]} [out+{ROW * count + 16}], {olds[0]};"]
        count += 1
    body = REGISTERS.replace(".reg .b16 h<16>; ", "") + (
        "mov.u64 l8, cell; mov.b64 d1, 0x4100410041004100; mov.b64 d2, 0x4200420042004200;"
    )
    operand = np.full(4, 0x4080_4080, np.uint32)
    arrays = {"globe": 16, "operand": operand, "out": np.zeros(ROW * count, np.uint8)}
    after = clean(body + "\n".join(lines), arrays, 1, shared=SHARED)["out"].reshape(count, ROW)
    assert count >= 15
    assert (after == after[0]).all(), form
    assert after[0].any()


def test_orders_of_fences_change_nothing_of_one_thread():
    fences = [f"fence{dotted(sem)}.{scope};" for sem in ("", "sc", "acq_rel", "acquire", "release")
              for scope in SCOPES]  # fmt: skip
    fences += [f"membar.{level};" for level in ("cta", "gl", "sys")]
    fences += [f"fence.proxy.async{dotted(space)};"
               for space in ("", "global", "shared::cta", "shared::cluster")]  # fmt: skip
    fences += ["fence.proxy.alias;", "fence.mbarrier_init.release.cluster;"]
    lines = [
        f"st.global.u32 [out+{4 * k}], {k}; {text} ld.global.u32 r1, [out+{4 * k}];"
        f"add.u32 r1, r1, 5; st.global.u32 [out+{4 * k}], r1;"
        for k, text in enumerate(fences)
    ]
    after = clean("\n".join(lines), {"out": 4 * len(fences)}, 1)
    assert after["out"].tolist() == [k + 5 for k in range(len(fences))]


def test_hints_change_nothing_of_one_thread():
    hints = [f"prefetch{dotted(space)}.{level} [{place}];"
             for space, place in (("", "out"), ("global", "out"), ("local", "l9"))
             for level in ("L1", "L2")]  # fmt: skip
    hints += [f"prefetch{dotted(space)}.tensormap [out];" for space in ("", "param", "const")]
    hints += ["griddepcontrol.launch_dependents;", "griddepcontrol.wait;"]
    hints += [f"setmaxnreg.{op}.sync.aligned.u32 64;" for op in ("inc", "dec")]
    primaries = [f"L2::evict_{x}" for x in ("last", "normal", "first", "unchanged")]
    for first, second in product(primaries, ("", "L2::evict_first", "L2::evict_unchanged")):
        names = dotted(first, second)
        hints += [f"createpolicy.fractional{names}.b64 l3, 0f3F000000;"]
        hints += [f"createpolicy.range.global{names}.b64 l3, [out], 64, 64;"]
    body = "mov.u64 l9, own; st.global.u32 [out], 5;" + "\n".join(hints)
    body += "ld.global.u32 r1, [out]; add.u32 r1, r1, 1; st.global.u32 [out+4], r1;"
    after = clean(body, {"out": 128}, 32, shared=".local .align 8 .b8 own[8];", checks=())
    assert after["out"].tolist()[:2] == [5, 6]


@pytest.mark.parametrize("space", ["", "shared", "shared::cta"])
def test_orders_and_spaces_of_mbarriers(space):
    """Phases of five arrivals, each of one spelling: counted, of so many, dropped, with bytes."""
    both = [("", ""), *product(("release", "relaxed"), ("cta", "cluster"))]
    waits = [("", ""), *product(("acquire", "relaxed"), ("cta", "cluster"))]
    changes = [("", ""), *product(("relaxed",), ("cta", "cluster"))]
    lines, wanted = [f"mbarrier.init{dotted(space)}.b64 [l8], 64;"], []

    def leave(before):
        lines.append(
            f"mbarrier.pending_count.b64 r1, l0; st.global.u32 [out+{4 * len(wanted)}], r1;"
        )
        wanted.append(before)

    pending = expected = 64
    for order in both:
        for what in ("arrive", "arrive_drop"):
            for count in (1, 2):
                more = f", {count}" if count > 1 else ""
                lines.append(f"mbarrier.{what}{dotted(*order, space)}.b64 l0, [l8]{more};")
                leave(pending)
                pending -= count
                expected -= count if what == "arrive_drop" else 0
            lines.append(f"mbarrier.{what}.expect_tx{dotted(*order, space)}.b64 l0, [l8], 16;")
            leave(pending)
            pending -= 1
            expected -= what == "arrive_drop"
            change = changes[len(wanted) % 3]
            lines.append(f"mbarrier.complete_tx{dotted(*change, space)}.b64 [l8], 16;")
    for what in ("arrive", "arrive_drop"):
        for order in (("", ""), ("release", "cta")):
            lines.append(f"mbarrier.{what}.noComplete{dotted(*order, space)}.b64 l0, [l8], 3;")
            leave(pending)
            pending -= 3
            expected -= 3 * (what == "arrive_drop")
    for change in changes:
        lines += [f"mbarrier.expect_tx{dotted(*change, space)}.b64 [l8], 8;",
                  f"mbarrier.complete_tx{dotted(*change, space)}.b64 [l8], 8;"]  # fmt: skip
    for phase in (0, 1):
        lines.append(f"mbarrier.arrive{dotted(space)}.b64 l0, [l8], {pending};")
        leave(pending)
        pending = expected
        for what, order in product(("test_wait", "try_wait"), waits):
            lines += [
                f"mbarrier.{what}{dotted(*order, space)}.b64 p1, [l8], l0; selp.u32 r1, 1, 0, p1;",
                f"mbarrier.{what}.parity{dotted(*order, space)}.b64 p1, [l8], {phase};",
                "selp.u32 r2, 2, 0, p1; add.u32 r1, r1, r2;",
                f"st.global.u32 [out+{4 * len(wanted)}], r1;",
            ]  # fmt: skip
            wanted.append(3)
    lines.append(f"mbarrier.inval{dotted(space)}.b64 [l8];")
    first = "mov.u64 l8, bar;" + ("" if space else "cvta.shared.u64 l8, l8;")
    after = clean(first + "\n".join(lines), {"out": 4 * len(wanted)}, 1, shared=SHARED)
    assert after["out"].tolist() == wanted


def test_mbarriers_of_a_cluster_of_one_block():
    """shared::cluster gives no state: the phase alone tells that the arrivals have come."""
    lines = ["mbarrier.init.shared.b64 [l8], 10;"]
    orders_of = [("", ""), *product(("release", "relaxed"), ("cta", "cluster"))]
    for k, order in enumerate(orders_of):
        what = ("arrive", "arrive_drop")[k % 2]
        lines += [f"mbarrier.{what}{dotted(*order)}.shared::cluster.b64 _, [l8];",
                  f"mbarrier.{what}.expect_tx{dotted(*order)}.shared::cluster.b64 _, [l8], 4;",
                  f"mbarrier.test_wait.parity.shared.b64 p1, [l8], 0; selp.u32 r1, 1, 0, p1;"
                  f"st.global.u32 [out+{4 * k}], r1;"]  # fmt: skip
    for scope, order in product(("cta", "cluster"), ("relaxed",)):
        lines += [f"mbarrier.expect_tx.{order}.{scope}.shared::cluster.b64 [l8], 4;"]
        lines += [f"mbarrier.complete_tx.{order}.{scope}.shared::cluster.b64 [l8], 12;"]
    lines += ["mbarrier.complete_tx.shared::cluster.b64 [l8], 4;"]
    lines += ["mbarrier.test_wait.parity.shared.b64 p1, [l8], 0; selp.u32 r1, 1, 0, p1;"
              "st.global.u32 [out+20], r1;"]  # fmt: skip
    body = "mov.u64 l8, bar;" + "\n".join(lines)
    after = clean(body, {"out": 24}, 1, shared=SHARED)
    assert after["out"].tolist() == [0, 0, 0, 0, 0, 1]


def test_barriers_of_a_block_and_of_a_cluster():
    lines = []
    for name in ("bar", "bar.cta", "barrier", "barrier.cta"):
        aligned = ("", ".aligned") if name.startswith("barrier") else ("",)
        for end in aligned:
            lines += [f"{name}.sync{end} 1; {name}.sync{end} 1, 64;"]
            lines += [f"{name}.red.popc{end}.u32 r1, 2, p0;",
                      f"{name}.red.and{end}.pred p1, 2, 64, p0;",
                      f"{name}.red.or{end}.pred p2, 3, p0;", "selp.u32 r2, 64, 0, p1;",
                      "selp.u32 r3, 128, 0, p2; add.u32 r1, r1, r2; add.u32 r1, r1, r3;",
                      "add.u32 r9, r9, r1;"]  # fmt: skip
            lines += [f"@p3 {name}.arrive{end} 4, 64; @!p3 {name}.sync{end} 4, 64;"]
    for (arrive, wait), end in product(
        (("", ""), (".release", ".acquire"), (".relaxed", "")), ("", ".aligned")
    ):
        lines += [f"barrier.cluster.arrive{arrive}{end}; barrier.cluster.wait{wait}{end};"]
    body = "setp.lt.u32 p0, tid, 40; setp.lt.u32 p3, tid, 32; mov.u32 r9, 0;" + "\n".join(lines)
    body += "mad.wide.u32 l0, tid, 4, out; st.global.u32 [l0], r9;"
    after = clean(body, {"out": 256}, 64)
    assert set(after["out"].tolist()) == {6 * (40 + 128)}
