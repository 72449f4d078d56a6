"""Triton's kernels of several versions with wgmma and tcgen05: right, and what they lack."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_gemm_sm90 import bf16
from test_wgmma import encode
from triton_ptx import TritonKernel, compiled

from sparsekit.emulator import Memory, Report, Schedule, TensorMap, launch, load

pytestmark = pytest.mark.toolchains
VERSIONS = ("3.6.0", pytest.param("3.8.0", marks=pytest.mark.slow), "3.9.0")
CAPABILITIES = (90, 100)
SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1)]
SWIZZLES = ("none", "32B", "64B", "128B")
ROW = 1024  # elements between the rows of C
LOG2_E = 1.4426950408889634
NEEDS_PYTHON = {"3.9.0": (3, 11)}


@pytest.fixture(scope="module")
def site(toolchain_data_dir: Path):
    """The folder of a version of Triton, fetched where the data folder has none."""

    def find(version: str) -> Path:
        if sys.version_info < NEEDS_PYTHON.get(version, (3, 0)):
            pytest.skip(f"Triton {version} needs Python {NEEDS_PYTHON[version]}")
        folder = toolchain_data_dir / "toolchains" / f"triton-{version}"
        if not folder.is_dir():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            subprocess.run([*command, str(folder), f"triton=={version}"], check=True)
        return folder

    return find


def build(
    folder: Path, kernel: str, capability: int, warps: int, types: dict, blocks: int = 1,
    **constants: int,
) -> TritonKernel:  # fmt: skip
    """blocks: of a cluster."""
    names = [n for n, t in types.items() if t.startswith("*") or n in ("k", "m", "n", "total")]
    job = {
        "kernel": kernel, "constants": constants, "types": types, "divisible_by_16": names,
        "compute_capability": capability, "num_warps": warps, "blocks": blocks,
    }  # fmt: skip
    return compiled(folder, json.dumps(job))


def run(kernel: TritonKernel, grid, params, memory, schedule, **options) -> Report:
    blocks = int(np.prod(grid))
    scratch = memory.allocate(blocks * kernel.scratch_bytes) if kernel.scratch_bytes else 0
    return launch(
        load(kernel.ptx), kernel.name, grid, 32 * kernel.num_warps, [*params, scratch, 0], memory,
        shared_bytes=kernel.shared_bytes, schedule=schedule, **options,
    )  # fmt: skip


def multiply(
    kernel, rows, columns, k, tiles, schedule=SCHEDULES[0], grid=(1, 1), kind="bf16", **options
):
    """(report, whether C = A B^T of small integers is exact).

    tiles: whether the host makes tensor maps; None: the kernel does; "all": for all of C.
    """
    rng = np.random.default_rng(k)
    a, b = rng.integers(-8, 9, (rows, k)), rng.integers(-8, 9, (columns, k))
    memory = Memory()
    pa, pb = (memory.allocate(encoded(x, kind), n) for x, n in ((a, "A"), (b, "B")))
    pc = memory.allocate(4 * rows * ROW, "C")
    params: list[object] = [pa, pb]
    if tiles:
        params = []
        for place, extent, facts in zip((pa, pb), (rows, columns), kernel.tensor_maps, strict=True):
            box = tuple(reversed(facts["block_size"]))
            box = (min(box[0], 64), box[1])
            swizzle = SWIZZLES[facts["swizzle"]]
            params.append(TensorMap(place, "bf16", (k, extent), box, swizzle=swizzle))
            params += [extent, k, k, 1]
    sizes = [rows, columns] if tiles in (None, "all") else []
    report = run(kernel, grid, [*params, pc, *sizes, k], memory, schedule, **options)
    c = memory.read(pc, np.float32, (rows, ROW))[:, :columns]
    return report, bool((c == a @ b.T).all())


def encoded(x: np.ndarray, kind: str) -> np.ndarray:
    """Small integers in an element type."""
    if kind == "fp8e4nv":
        return np.vectorize(lambda value: encode(int(value), "e4m3"))(x).astype(np.uint8)
    plain = {"fp16": np.float16, "fp32": np.float32}
    return x.astype(plain[kind]) if kind in plain else bf16(x)


def attend(kernel, heads, dim, total, schedule=SCHEDULES[0], **options):
    """(report, largest error of attention over gathered rows)."""
    rng = np.random.default_rng(total)
    q, kv = (rng.standard_normal((n, dim)).astype(np.float32) for n in (heads, 300))
    q, kv = bf16(q), bf16(kv)
    index = rng.integers(0, 300, total).astype(np.int32)
    memory = Memory()
    places = [memory.allocate(x, n) for x, n in ((q, "q"), (kv, "kv"), (index, "index"))]
    out = memory.allocate(2 * heads * dim, "out")
    scale = dim**-0.5 * LOG2_E
    report = run(kernel, (1,), [*places, out, total, scale], memory, schedule, **options)
    wide = lambda x: (x.astype(np.uint32) << 16).view(np.float32).astype(float)  # noqa: E731
    rows = wide(kv)[index]
    scores = wide(q) @ rows.T * scale
    weights = np.exp2(scores - scores.max(1, keepdims=True))
    wanted = weights @ rows / weights.sum(1, keepdims=True)
    found = wide(memory.read(out, np.uint16, (heads, dim)))
    return report, float(np.nan_to_num(np.abs(found - wanted), nan=1e9).max())


POINTERS = {"a_ptr": "*bf16", "b_ptr": "*bf16", "c_ptr": "*fp32", "k": "i32"}
ATTENTION = {
    "q_ptr": "*bf16", "kv_ptr": "*bf16", "index_ptr": "*i32", "out_ptr": "*bf16", "total": "i32",
    "scale": "fp32",
}  # fmt: skip
LACKS_A_FENCE = "copy-proxy-fence"  # between cp.async and what the tensor cores read


def expected(kernel: str, version: str, capability: int) -> set[str]:
    """The faults that a version is known for."""
    if kernel == "tiles":
        return set()
    if version == "3.6.0":
        return {LACKS_A_FENCE}
    if version == "3.8.0" and capability == 100 and kernel == "attention":
        return {LACKS_A_FENCE}
    return set()


def matches(report: Report, wanted: set[str]) -> bool:
    return {f.kind for f in report.faults} == wanted


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 4), (128, 8)])
def test_products(site, version, capability, rows, warps):
    kernel = build(
        site(version), "product", capability, warps, POINTERS, BLOCK_M=rows, BLOCK_N=128, BLOCK_K=64
    )
    for schedule in SCHEDULES:
        report, right = multiply(kernel, 2 * rows, 128, 256, False, schedule, (2, 1))
        assert right
        assert matches(report, expected("pointers", version, capability)), report.faults


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 4), (128, 8)])
def test_products_of_tiles(site, version, capability, rows, warps):
    types = {
        "a_desc": f"tensordesc<bf16[{rows}, 64]>", "b_desc": "tensordesc<bf16[128, 64]>",
        "c_ptr": "*fp32", "k": "i32",
    }  # fmt: skip
    kernel = build(
        site(version), "product_of_tiles", capability, warps, types, BLOCK_M=rows, BLOCK_N=128,
        BLOCK_K=64,
    )  # fmt: skip
    for schedule in SCHEDULES:
        report, right = multiply(kernel, 2 * rows, 128, 256, True, schedule, (2, 1))
        assert matches(report, set()), report.faults
        assert right


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["fp16", "fp32", "fp8e4nv"])
def test_other_elements(site, version, capability, kind):
    types = {**POINTERS, "a_ptr": f"*{kind}", "b_ptr": f"*{kind}"}
    kernel = build(
        site(version), "product", capability, 4, types, BLOCK_M=128, BLOCK_N=64, BLOCK_K=32
    )
    report, right = multiply(kernel, 128, 64, 128, False, kind=kind)
    assert right
    assert matches(report, expected("pointers", version, capability)), report.faults


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize(
    ("capability", "blocks", "specialised"),
    [(90, 1, False), (90, 2, False), (100, 1, False), (100, 1, True), (100, 2, False)],
)
def test_persistent_products(site, version, capability, blocks, specialised):
    """Rings of mbarriers over several tiles, by warps with roles, and by clusters."""
    types = {
        "a_desc": "tensordesc<bf16[128, 64]>", "b_desc": "tensordesc<bf16[128, 64]>",
        "c_ptr": "*fp32", "m": "i32", "n": "i32", "k": "i32",
    }  # fmt: skip
    kernel = build(
        site(version), "persistent_product", capability, 4, types, blocks, BLOCK_M=128,
        BLOCK_N=128, BLOCK_K=64, PROGRAMS=1, SPECIALIZE=specialised,
    )  # fmt: skip
    options = {"grid": (blocks,), "cluster": (blocks,)}
    for schedule in SCHEDULES:
        report, right = multiply(kernel, 256, 128, 192, "all", schedule, **options)
        assert matches(report, set()), report.faults
        assert right


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", VERSIONS)
def test_products_of_made_tiles(site, version, capability):
    """Tensor maps that the kernel makes; without their acquisition it is a fault."""
    types = {**POINTERS, "m": "i32", "n": "i32"}
    kernel = build(
        site(version), "product_of_made_tiles", capability, 4, types, BLOCK_M=128, BLOCK_N=64,
        BLOCK_K=64,
    )  # fmt: skip
    for schedule in SCHEDULES:
        report, right = multiply(kernel, 256, 128, 192, None, schedule, (2, 2))
        assert matches(report, set()), report.faults
        assert right
    bare = re.sub(r"fence\.proxy\.tensormap[^;]*;", "nanosleep.u32 0;", kernel.ptx)
    report, right = multiply(replace(kernel, ptx=bare), 256, 128, 192, None, grid=(2, 2))
    assert matches(report, {"proxy-fence"}), report.faults


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("heads", "warps"), [(64, 4), (128, 8)])
def test_attention(site, version, capability, heads, warps):
    kernel = build(
        site(version), "gathered_attention", capability, warps, ATTENTION, BLOCK_H=heads,
        BLOCK_T=64, HEAD_DIM=128,
    )  # fmt: skip
    for schedule in SCHEDULES:
        report, error = attend(kernel, heads, 128, 256, schedule)
        assert error < 2e-2
        assert matches(report, expected("attention", version, capability)), report.faults
