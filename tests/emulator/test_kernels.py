"""The project's own kernels, from the PTX that they are built to, against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT

from sparsekit.emulator import Memory, Schedule, launch, load, pack_values
from sparsekit.model import Case
from sparsekit.model.artifact import Manifest
from sparsekit.ops.gated_pool import op as gated_pool_op
from sparsekit.ops.gated_pool import reference as gated_pool
from sparsekit.ops.sparse_attn_paged import op as paged_op
from sparsekit.ops.sparse_attn_paged import reference as paged
from sparsekit.ops.sparse_prefill import op as prefill_op
from sparsekit.ops.sparse_prefill import reference as prefill

SCHEDULES = [Schedule("lazy"), Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]
ARCHS = ("sm_80", "sm_120")


def smoke(op, name, **dims) -> Case:
    """A case of the op with other dims, and so of a size for the emulator."""
    case = next(c for c in op.OP.cases if c.name == name)
    return replace(case, dims={**case.dims, **dims})


def bits(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def floats(memory, place, shape, *, is_bf16: bool) -> np.ndarray:
    if is_bf16:
        return (memory.read(place, np.uint16).astype(np.uint32) << 16).view("f4").reshape(shape)
    return memory.read(place, np.float32, shape)


def assert_within(found, expected, bound, name):
    wanted, allowed = expected.numpy(), bound.numpy()
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        ok = same | (np.abs(found - wanted) <= allowed)
    assert ok.all(), f"{name}: {np.argwhere(~ok)[:3].tolist()}"


def built(folder: Path, reference: str, arch: str) -> Path:
    """A store with what of a kernel can be built; test_build asks for all of it."""
    env = {**os.environ, "SPARSEKIT_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-m", "sparsekit", "build", reference, "--arch", arch, "-j", "2"],
        env=env, cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def prefill_store(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("prefill"), "sparse_prefill:skip", "sm_80,sm_90,sm_120")


@pytest.fixture(scope="session")
def pool_store(tmp_path_factory) -> Path:
    return built(tmp_path_factory.mktemp("pool"), "gated_pool", "8.0,9.0,12.0")


def artifacts(store: Path, kernel: str) -> list[tuple[Manifest, Path]]:
    found = [
        (Manifest.from_json(json.loads(path.read_text())), path.parent)
        for path in sorted(store.glob("v1/*/*/manifest.json"))
    ]
    return [(m, folder) for m, folder in found if m.identity["kernel"] == kernel]


def run(manifest: Manifest, folder: Path, grid, values, memory, schedule=None):
    (entry,) = manifest.entries
    table = [(p.name, p.type, p.offset, p.size) for p in entry.params]
    scratch = {p.name: 0 for p in entry.params if p.name.endswith("_scratch")}
    text = (folder / manifest.ptx[entry.entry]).read_text()
    return launch(
        load(text), entry.entry, grid, entry.threads, pack_values(table, {**scratch, **values}),
        memory, shared_bytes=entry.dynamic_shared_bytes, schedule=schedule,
    )  # fmt: skip


PREFILL_CASES = [
    smoke(prefill_op, "small_512", s_q=7, s_kv=300, topk=100),
    smoke(prefill_op, "small_576", s_q=4, s_kv=200, topk=70),
    smoke(prefill_op, "length_576", s_q=3, s_kv=150, topk=65, h_q=33),
]


def run_prefill(manifest, folder, case, probe, schedule):
    inputs = prefill.make_inputs(case, probe)
    memory = Memory()
    s_q, h_q, d_qk = inputs["q"].shape
    places = {n: memory.allocate(bits(inputs[n]), n) for n in ("q", "kv", "indices")}
    for name in ("attn_sink", "topk_length"):
        if inputs[name] is not None:
            places[name] = memory.allocate(bits(inputs[name]), name)
    sizes = {"out": 2 * s_q * h_q * 512, "max_logits": 4 * s_q * h_q, "lse": 4 * s_q * h_q}
    places |= {n: memory.allocate(size, n) for n, size in sizes.items()}
    values = dict.fromkeys(("attn_sink", "topk_length"), 0) | {
        n: p.address for n, p in places.items()
    }
    values |= {
        "q_token_stride_elems": h_q * d_qk, "q_head_stride_elems": d_qk,
        "kv_row_stride_elems": d_qk, "indices_row_stride_elems": case.dims["topk"], "h_q": h_q,
        "s_kv": case.dims["s_kv"], "topk": case.dims["topk"], "sm_scale": inputs["sm_scale"],
    }  # fmt: skip
    heads = manifest.identity["constants"]["HEADS_PER_BLOCK"]
    grid = (s_q * -(-h_q // heads), 1, 1)
    report = run(manifest, folder, grid, values, memory, schedule)
    assert report.faults == ()
    expected = prefill.reference(inputs)
    bound = prefill.tolerance(inputs, expected)
    shapes = {"out": (s_q, h_q, 512), "max_logits": (s_q, h_q), "lse": (s_q, h_q)}
    for name, shape in shapes.items():
        found = floats(memory, places[name], shape, is_bf16=name == "out")
        assert_within(found, expected[name], bound[name], name)
    return report


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("case", PREFILL_CASES, ids=lambda c: c.name)
def test_sparse_prefill(prefill_store, case, arch):
    width = case.dims["d_qk"]
    artifact = [
        a for a in artifacts(prefill_store, "sparse_prefill")
        if a[0].arch == arch and a[0].identity["constants"]["d_qk"] == width
    ]  # fmt: skip
    if not artifact:
        pytest.skip(f"the kernel does not build for {arch} with d_qk {width}")
    (found,) = artifact
    schedules = SCHEDULES if case is PREFILL_CASES[1] else SCHEDULES[:1]
    for schedule in schedules:
        run_prefill(*found, case, "random", schedule)
    run_prefill(*found, case, "zero_q", SCHEDULES[0])


POOL_CASES = [
    smoke(gated_pool_op, "r8_d128"),
    smoke(gated_pool_op, "r8_d128", B=2, R=5, D=304),
    replace(
        smoke(gated_pool_op, "r8_d128", R=9),
        options={**smoke(gated_pool_op, "r8_d128").options, "values": "special"},
    ),
]


@pytest.mark.parametrize("case", POOL_CASES, ids=lambda c: str(c.dims))
def test_gated_pool(pool_store, case):
    inputs = gated_pool.make_inputs(case, "random")
    expected = gated_pool.reference(inputs)
    bound = gated_pool.tolerance(inputs, expected)
    groups, rows, columns = inputs["kv"].shape
    built = artifacts(pool_store, "gated_pool")
    assert len({m.arch for m, _ in built}) == 3
    for manifest, folder in built:
        for schedule in SCHEDULES[:1] if manifest.arch != "sm_80" else SCHEDULES:
            memory = Memory()
            kv, score = (memory.allocate(bits(inputs[n]), n) for n in ("kv", "score"))
            out = memory.allocate(2 * groups * columns, "out")
            values = {
                "kv_ptr": kv.address, "score_ptr": score.address, "out_ptr": out.address,
                "R": rows, "D": columns, "kv_b_stride": rows * columns, "kv_r_stride": columns,
                "score_b_stride": rows * columns, "score_r_stride": columns,
                "out_b_stride": columns,
            }  # fmt: skip
            blocks = groups * -(-columns // manifest.identity["constants"]["BLOCK_D"])
            report = run(manifest, folder, (blocks, 1, 1), values, memory, schedule)
            assert report.faults == ()
            found = floats(memory, out, (groups, 1, columns), is_bf16=True)
            assert_within(found, expected["out"], bound["out"], f"{manifest.arch} {schedule}")


# ---- sparse_attn_paged, compiled here


@pytest.fixture(scope="session")
def paged_kernels(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("paged")
    script = Path(__file__).with_name("compile_paged.py")
    kernel = ROOT / "kernels_triton" / "sparse_attn_paged" / "kernel.py"
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    subprocess.run(
        [sys.executable, script, kernel, folder, "80", "120"], env=env, check=True,
        capture_output=True,
    )  # fmt: skip
    return folder


def paged_values(inputs, places):
    q, idxs = inputs["q"], inputs["topk_idxs"]
    b, m, h, d = q.shape
    topk = idxs.shape[-1]
    return {
        "softmax_scale": inputs["softmax_scale"], "b": b, "m": m, "h": h, "topk": topk,
        "n_window": inputs["n_window"], "window_rows": inputs["window_pool"].shape[0],
        "cmp_rows": inputs["cmp_pool"].shape[0], "q_b_stride": m * h * d, "q_m_stride": h * d,
        "q_h_stride": d, "window_pool_row_stride": d, "cmp_pool_row_stride": d,
        "topk_idxs_b_stride": m * topk, "topk_idxs_m_stride": topk, "cmp_counts_b_stride": m,
        "cmp_counts_m_stride": 1, "out_b_stride": m * h * d, "out_m_stride": h * d,
        "out_h_stride": d, "lse_b_stride": m * h, "lse_m_stride": h, "cmp_counts_ptr": 0,
        **{f"{name}_ptr": place.address for name, place in places.items()},
    }  # fmt: skip


def launch_paged(folder, name, arch, grid, values, memory, schedule):
    facts = json.loads((folder / f"{name}.{arch}.json").read_text())
    text = (folder / f"{name}.{arch}.ptx").read_text()
    program = load(text)
    entry = next(e for e in program.module.entries if e.name == facts["entry"])
    given = [values[a] for a in facts["args"]]
    params = [
        float(v) if isinstance(v, float) else int(v)
        for v in [*given, *[0] * (len(entry.params) - len(given))]  # scratch pointers
    ]
    report = launch(
        program, facts["entry"], (grid, 1, 1), facts["threads"], params, memory,
        shared_bytes=facts["shared"], schedule=schedule,
    )  # fmt: skip
    assert report.faults == ()


PAGED_CASES = [
    smoke(paged_op, "prefill_small", d=64, n_win=90, n_cmp=200, topk=100, n_window=40),
    smoke(paged_op, "prefill_counts", d=64, b=2, m=3, n_win=90, n_cmp=200, topk=80, n_window=30),
    smoke(paged_op, "decode_small", d=64, b=3, n_win=90, n_cmp=200, topk=200, n_window=60),
    smoke(paged_op, "decode_padded", d=64, b=4, n_win=90, n_cmp=200, topk=77, n_window=20),
]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", PAGED_CASES, ids=lambda c: c.name)
def test_sparse_attn_paged(paged_kernels, case, arch):
    inputs = paged.make_inputs(case, "random")
    expected = paged.reference(inputs)
    bound = paged.tolerance(inputs, expected)
    b, m, h, d = inputs["q"].shape
    counts = ".counts" if inputs["cmp_counts"] is not None else ""
    head_blocks = -(-h // 16)
    for schedule in SCHEDULES if arch == "sm_80" else SCHEDULES[:1]:
        memory = Memory()
        names = ("q", "window_pool", "cmp_pool", "attn_sink", "topk_idxs", "cmp_counts")
        places = {n: memory.allocate(bits(inputs[n]), n) for n in names if inputs[n] is not None}
        sizes = {"out": 2 * b * m * h * d, "lse": 4 * b * m * h}
        splits = -(-inputs["topk_idxs"].shape[-1] // 64)
        if m == 1:
            sizes |= {"partial_out": 4 * b * h * splits * d, "partial_lse": 4 * b * h * splits}
        places |= {n: memory.allocate(size, n) for n, size in sizes.items()}
        values = {**paged_values(inputs, places), "n_splits": splits}
        if m > 1:
            launch_paged(paged_kernels, f"sparse_attn_paged_prefill{counts}", arch,
                         b * m * head_blocks, values, memory, schedule)  # fmt: skip
        else:
            launch_paged(paged_kernels, f"sparse_attn_paged_decode_split{counts}", arch,
                         b * splits * head_blocks, values, memory, schedule)  # fmt: skip
            launch_paged(paged_kernels, "sparse_attn_paged_decode_merge", arch, b * h, values,
                         memory, schedule)  # fmt: skip
        for name, shape in (("out", (b, m, h, d)), ("lse", (b, m, h))):
            found = floats(memory, places[name], shape, is_bf16=name == "out")
            assert_within(found, expected[name], bound[name], f"{name} {schedule}")
