"""The project's own kernels, from the PTX that they are built to, against float64."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from cpu_run import NotBuilt, run_case, shared_builder

from sparsekit.discover import Catalog
from sparsekit.emulator import Schedule
from sparsekit.model import Case

LAZY = Schedule("lazy")
SCHEDULES = [LAZY, Schedule("eager"), Schedule("random", 1), Schedule("random", 2)]


def op_of(name: str):
    (choice, *_) = Catalog().resolve([name])
    return choice.op


def smoke(op: str, name: str, options: dict | None = None, **dims: int) -> Case:
    """A case of the op at a size for the emulator."""
    case = next(c for c in op_of(op).cases if c.name == name)
    return replace(
        case, dims={**case.dims, **dims}, options={**case.options, **_PLAIN, **(options or {})}
    )


# inputs are copied as they are laid out: without the strides and offsets that some cases have
_PLAIN = {
    "q_pad": 0, "kv_pad": 0, "score_pad": 0, "kv_offset": 0, "score_offset": 0, "indices_pad": 0,
    "indices_offset": 0,
}  # fmt: skip
_POOLS = {"d": 64, "n_win": 90, "n_cmp": 200}

CASES = [
    ("sparse_prefill:skip", smoke("sparse_prefill", "small_512", s_q=7, s_kv=300, topk=100)),
    ("sparse_prefill:skip", smoke("sparse_prefill", "small_576", s_q=4, s_kv=200, topk=70)),
    ("sparse_prefill:skip",
     smoke("sparse_prefill", "length_576", s_q=3, s_kv=150, topk=65, h_q=33)),
    ("sparse_prefill:noskip", smoke("sparse_prefill", "small_512", s_q=2, s_kv=90, topk=40)),
    ("gated_pool:unroll2", smoke("gated_pool", "r8_d128")),
    ("gated_pool:plain", smoke("gated_pool", "r8_d128", B=2, R=5, D=304)),
    ("gated_pool:unroll2", smoke("gated_pool", "r8_d128", {"values": "special"}, R=9)),
    ("sparse_attn_paged:hint16",
     smoke("sparse_attn_paged", "prefill_small", topk=100, n_window=40, **_POOLS)),
    ("sparse_attn_paged:plain",
     smoke("sparse_attn_paged", "prefill_counts", b=2, m=3, topk=80, n_window=30, **_POOLS)),
    ("sparse_attn_paged:hint16",
     smoke("sparse_attn_paged", "decode_small", b=3, topk=200, n_window=60, **_POOLS)),
    ("sparse_attn_paged:hint16",
     smoke("sparse_attn_paged", "decode_padded", b=4, topk=77, n_window=20, **_POOLS)),
]  # fmt: skip
ARCHS = {
    "sparse_prefill": ("sm_80", "sm_90", "sm_120"),
    "gated_pool": ("sm_80", "sm_90a", "sm_120a"),
    "sparse_attn_paged": ("sm_80", "sm_100a", "sm_120a"),
}
_ON_ONE_ARCH = ("prefill_counts", "decode_small")  # for the time that Triton takes
RUNS = [
    (reference, case, arch)
    for reference, case in CASES
    for arch in ARCHS[reference.partition(":")[0]][-1 if case.name in _ON_ONE_ARCH else None :]
]


def assert_within(found, expected, bound, name):
    wanted, allowed = expected.numpy(), bound.numpy()
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        ok = same | (np.abs(found - wanted) <= allowed)
    assert ok.all(), f"{name}: {np.argwhere(~ok)[:3].tolist()}"


@pytest.mark.parametrize(
    ("reference", "case", "arch"), RUNS,
    ids=[f"{r}-{c.name}-{'x'.join(map(str, c.dims.values()))}-{a}" for r, c, a in RUNS],
)  # fmt: skip
def test_kernel(reference, case, arch):
    """Right and without a fault; on one arch under every schedule, and with every probe."""
    name = reference.partition(":")[0]
    op, model = op_of(name), import_module(f"sparsekit.ops.{name}.reference")
    for probe in op.probes:
        inputs = model.make_inputs(case, probe)
        expected = model.reference(inputs)
        bounds = model.tolerance(inputs, expected)
        everything = arch == ARCHS[name][-1] and probe == op.probes[0]
        for schedule in SCHEDULES if everything else [LAZY]:
            try:
                reports, found = run_case(
                    shared_builder(), reference, arch, case, op, inputs, schedule
                )
            except NotBuilt as error:
                pytest.skip(f"does not build: {error}")
            for report in reports:
                assert report.faults == ()
            for output, values in found.items():
                assert_within(values, expected[output], bounds[output], f"{output} {schedule}")
