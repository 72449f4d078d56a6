"""Tensor maps that kernels make: field by field the same as the host's, published and acquired."""

from __future__ import annotations

import numpy as np
import pytest
from whole_block import clean, kinds, run_block

from sparsekit.emulator import Schedule, TensorMap, UnsupportedError

SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1)]
SHARED = """.shared .align 128 .b8 made[128]; .shared .align 8 .b64 bar;
.shared .align 1024 .b8 cells[2048];"""
# tensormap.replace's own numbers (PTX ISA, tensormap.replace: tables of new_val)
TYPES = (
    "u8", "u16", "u32", "i32", "u64", "i64", "fp16", "fp32", "fp32_ftz", "fp64", "bf16", "tf32",
    "tf32_ftz",
)  # fmt: skip
SWIZZLES = ["none", "32B", "64B", "128B"]
REPLACE = "tensormap.replace.tile.{}.{}.b1024.{} [{}]{}, {};"
ZERO = (
    "mov.u32 r1, made; mov.b64 l9, 0; mad.lo.u32 r2, tid, 4, r1; st.shared.u32 [r2], 0; bar.sync 0;"
)


def replaced(tensor: TensorMap, base: str, space: str = "shared::cta", where: str = "r1") -> str:
    """The instructions that make a map of a tensor at an address in a register."""

    def one(field, value, position=None, width="b32"):
        where_in = "" if position is None else f", {position}"
        return "@p0 " + REPLACE.format(field, space, width, where, where_in, value)

    lines = [
        one("global_address", base, width="b64"), one("rank", len(tensor.dims) - 1),
        one("elemtype", TYPES.index(tensor.dtype)), one("interleave_layout", 0),
        one("swizzle_mode", SWIZZLES.index(tensor.swizzle)),
        one("fill_mode", ("zero", "nan").index(tensor.fill)),
    ]  # fmt: skip
    for axis in range(len(tensor.dims)):
        lines.append(one("box_dim", tensor.box[axis], axis))
        lines.append(one("global_dim", tensor.dims[axis], axis))
        lines.append(one("element_stride", tensor.step[axis], axis))
        if axis:
            stride = tensor.stride_bytes[axis - 1]
            lines.append(one("global_stride", stride, axis - 1, "b64"))
    return "setp.eq.u32 p0, tid, 0; " + " ".join(lines)


CASES = [
    {"dtype": "bf16", "dims": (72, 20), "box": (64, 8), "swizzle": "128B"},
    {"dtype": "fp32", "dims": (40,), "box": (32,), "fill": "nan"},
    {"dtype": "i64", "dims": (8, 6, 5), "box": (4, 3, 2), "step": (1, 2, 1)},
    {"dtype": "u8", "dims": (48, 24), "box": (32, 16), "swizzle": "32B"},
    {"dtype": "fp16", "dims": (64, 3, 2, 3, 2), "box": (32, 2, 2, 2, 1), "swizzle": "64B"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["dtype"])
def test_each_field(case):
    tensors = []

    def note(places):
        tensors.append(TensorMap(places["source"], **case))
        return tensors[0]

    give = "ld.shared.u32 r3, [r2]; mad.wide.u32 l1, tid, 4, out; st.global.u32 [l1], r3;"
    body = ZERO + replaced(TensorMap(0, **case), "source") + "bar.sync 0;" + give
    arrays = {"source": np.zeros(4096, np.uint8), "map": note, "out": 128}
    out = clean(body, arrays, 32, shared=SHARED)["out"]
    assert out.tobytes() == tensors[0].packed()
    glob = "mad.wide.u32 l1, tid, 4, out; st.global.u32 [l1], 0; bar.sync 0;"
    body = glob + replaced(TensorMap(0, **case), "source", "global", "out")
    out = clean(body, arrays, 32, shared=SHARED)["out"]
    assert out.tobytes() == tensors[0].packed()


PUBLISH = (
    "bar.sync 0; tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync"
    ".aligned [map], [r1], 128; {} bar.sync 0; mov.u32 r6, bar; mov.u32 r5, cells;"
    "@p0 mbarrier.init.shared.b64 [r6], 1; @p0 fence.mbarrier_init.release.cluster; bar.sync 0;"
    "@p0 mbarrier.arrive.expect_tx.shared.b64 _, [r6], 1024;"
    "@p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r5], "
    "[map, {{0, 0}}], [r6]; W: mbarrier.try_wait.parity.shared.b64 p1, [r6], 0; @!p1 bra W;"
    "mad.lo.u32 r7, tid, 4, r5; ld.shared.u32 r8, [r7]; mad.wide.u32 l3, tid, 4, out;"
    "st.global.u32 [l3], r8;"
)
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [map], 128;"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_publishing_and_acquiring(schedule):
    tensor = TensorMap(0, "bf16", (64, 8), (64, 8), swizzle="128B")
    source = np.arange(512, dtype=np.uint16)
    body = ZERO + replaced(tensor, "source") + PUBLISH
    arrays = {"source": source, "map": np.zeros(128, np.uint8), "out": 128}
    options = {"shared": SHARED, "schedule": schedule}
    out = clean(body.format(ACQUIRE), arrays, 32, **options)["out"]
    assert out.view(np.uint16).tolist() == source[:64].tolist()
    assert kinds(body.format(""), arrays, 32, **options) == ["proxy-fence"]


@pytest.mark.parametrize("scope", ["cta", "cluster", "sys"])
def test_publishing_by_every_scope(scope):
    tensor = TensorMap(0, "bf16", (64, 8), (64, 8), swizzle="128B")
    source = np.arange(512, dtype=np.uint16)
    publish = PUBLISH.format(ACQUIRE).replace("release.gpu.sync", f"release.{scope}.sync")
    arrays = {"source": source, "map": np.zeros(128, np.uint8), "out": 128}
    body = ZERO + replaced(tensor, "source") + publish
    out = clean(body, arrays, 32, shared=SHARED)["out"]
    assert out.view(np.uint16).tolist() == source[:64].tolist()


@pytest.mark.parametrize("scope", ["cta", "cluster", "gpu", "sys"])
def test_releasing_what_was_changed_in_place(scope):
    """A map made in global memory, released and acquired with no copy of it."""
    tensor = TensorMap(0, "bf16", (64, 8), (64, 8), swizzle="128B")
    source = np.arange(512, dtype=np.uint16)
    release = f"fence.proxy.tensormap::generic.release.{scope};"
    acquire = f"fence.proxy.tensormap::generic.acquire.{scope} [map], 128;"
    use = PUBLISH.partition("{}")[2].replace("{{", "{").replace("}}", "}")
    made = replaced(tensor, "source", "global", "map")
    arrays = {"source": source, "map": np.zeros(128, np.uint8), "out": 128}
    out = clean(made + release + "bar.sync 0;" + acquire + use, arrays, 32, shared=SHARED)["out"]
    assert out.view(np.uint16).tolist() == source[:64].tolist()
    assert kinds(made + release + "bar.sync 0;" + use, arrays, 32, shared=SHARED) == ["proxy-fence"]


def test_misuse():
    tensor = TensorMap(0, "bf16", (64, 8), (64, 8), swizzle="128B")
    good = ZERO + replaced(tensor, "source")
    arrays = {"source": np.zeros(1024, np.uint8), "map": np.zeros(128, np.uint8), "out": 128}

    def faults(text):
        return [(f.kind, f.message) for f in run_block(text, arrays, 32, shared=SHARED)[0].faults]

    assert faults(good) == []
    assert "elemtype 13" in faults(good.replace("[r1], 10;", "[r1], 13;"))[0][1]
    assert "swizzle_mode 4" in faults(good.replace("[r1], 3;", "[r1], 4;"))[0][1]
    odd = good.replace(
        "layout.shared::cta.b1024.b32 [r1], 0", "layout.shared::cta.b1024.b32 [r1], 1"
    )
    assert "interleave_layout 1" in faults(odd)[0][1]
    moved = good.replace("rank.shared::cta.b1024.b32 [r1]", "rank.shared::cta.b1024.b32 [r1+16]")
    assert "not aligned" in faults(moved)[0][1]
    assert faults(good + PUBLISH.format(ACQUIRE)) == []
    for text, why in (
        (good.replace("[r1], 1, 8;", "[r1], 5, 8;"), "dimension 5"),
        (good + PUBLISH.format(ACQUIRE).replace("[r1], 128", "[r1], 64"), "128 bytes"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            faults(text)
    bad = good.replace("global_stride.shared::cta.b1024.b64 [r1], 0, 128",
                       "global_stride.shared::cta.b1024.b64 [r1], 0, 100")  # fmt: skip
    (fault,) = faults(bad + PUBLISH.format(ACQUIRE))
    assert fault[0] == "descriptor"
    assert "not multiples of 16" in fault[1]
