"""Triton's kernels of several versions with wgmma and tcgen05: right, and what they lack."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_gemm_sm90 import bf16
from triton_ptx import TritonKernel, compiled

from sparsekit.emulator import Memory, Report, Schedule, TensorMap, launch, load

pytestmark = pytest.mark.toolchains
VERSIONS = ("3.6.0", "3.8.0", "3.9.0")
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


def build(folder: Path, kernel: str, capability: int, warps: int, types: dict, **constants: int):
    names = [n for n, t in types.items() if t.startswith("*") or n in ("k", "total")]
    job = {
        "kernel": kernel, "constants": constants, "types": types, "divisible_by_16": names,
        "compute_capability": capability, "num_warps": warps,
    }  # fmt: skip
    return compiled(folder, json.dumps(job))


def run(kernel: TritonKernel, grid, params, memory, schedule, **options) -> Report:
    return launch(
        load(kernel.ptx), kernel.name, grid, 32 * kernel.num_warps, [*params, 0, 0], memory,
        shared_bytes=kernel.shared_bytes, schedule=schedule, **options,
    )  # fmt: skip


def multiply(kernel, rows, columns, k, tiles, schedule=SCHEDULES[0], grid=(1, 1), **options):
    """(report, whether C = A B^T of small integers is exact)."""
    rng = np.random.default_rng(k)
    a, b = rng.integers(-8, 9, (rows, k)), rng.integers(-8, 9, (columns, k))
    memory = Memory()
    pa, pb = memory.allocate(bf16(a), "A"), memory.allocate(bf16(b), "B")
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
    report = run(kernel, grid, [*params, pc, k], memory, schedule, **options)
    c = memory.read(pc, np.float32, (rows, ROW))[:, :columns]
    return report, bool((c == a @ b.T).all())


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
