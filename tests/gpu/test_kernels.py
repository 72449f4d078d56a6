"""On a GPU: every kernel and variant on every smoke and corner case, and bit for bit."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.gpu


def verified(run_cli, *args: str) -> dict:
    done = run_cli("verify", *args, "--format", "json", timeout=1800)
    result = json.loads(done.stdout)
    failed = [
        (r["kernel"], r["variant"], r["case"], r["reason"])
        for r in result["results"]
        if r["ok"] is False
    ]
    assert failed == []
    assert done.returncode == 0, done.stderr
    return result


@pytest.mark.parametrize(
    "op", ["gated_pool", "sparse_attn_paged", "sparse_attn_paged_fp8", "sparse_prefill"]
)
def test_every_case_against_float64(run_cli, op):
    result = verified(run_cli, op)
    assert any(r["ok"] for r in result["results"])


@pytest.mark.parametrize(
    "op", ["gated_pool", "sparse_attn_paged", "sparse_attn_paged_fp8", "sparse_prefill"]
)
def test_every_pair_bit_for_bit(run_cli, op):
    result = verified(run_cli, op, "--bitwise")
    assert any("row 0" in r["against"] for r in result["results"])


def test_a_third_party_kernel_by_path(run_cli):
    for name in ("scale_cu", "scale_triton"):
        verified(run_cli, f"tests/fixtures/kernels/{name}")
        verified(run_cli, f"tests/fixtures/kernels/{name}", "--bitwise")
