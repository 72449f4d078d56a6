"""On a GPU: a kernel that is said to have run nowhere, right, wrong, hanging and crashing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from sparsekit.operators import first_use

pytestmark = pytest.mark.gpu
SCALE = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"
LINE = "scaled(x[blockIdx.x * x_row_stride + c], factor[threadIdx.x]);"
TWICE = 'Variant("twice", {"THREADS": 128}, same_bits_as="plain"),'
FAULTS = {
    "right": LINE,
    "wrong": LINE.replace(";", " + 1.0f;"),
    "hanging": LINE + " while (*(volatile float*)x == *(volatile float*)x) {}",
    "crashing": LINE + " *(volatile int*)8 = 1;",
}


@pytest.fixture
def kernels(tmp_path, request) -> Path:
    folder = tmp_path / "kernels"
    shutil.copytree(SCALE, folder / "scale_cu")
    new = Path(shutil.copytree(SCALE, folder / "scale_new"))
    (new / "op.py").unlink()
    (new / "reference.py").unlink()
    source = (new / "kernel.cu").read_text()
    assert LINE in source
    (new / "kernel.cu").write_text(source.replace(LINE, FAULTS[request.param]))
    text = (new / "spec.py").read_text()
    assert TWICE in text
    text = text.replace("targets=PORTABLE_CUDA_TARGETS", "targets=('sm_90', 'sm_100', 'sm_120')")
    text = text.replace("launches=lambda", "proven_on=(), launches=lambda")
    text = text.replace(TWICE, "")  # each variant has a first use of its own
    (new / "spec.py").write_text(text)
    return folder


@pytest.mark.parametrize("kernels", FAULTS, indirect=True, ids=str)
def test_a_kernel_that_ran_nowhere(kernels, tmp_path, monkeypatch, request):
    import torch

    import sparsekit

    monkeypatch.setattr(first_use.FirstUse.__init__, "__defaults__", ((), 60.0))
    notes: list[str] = []
    fault = request.node.callspec.params["kernels"]
    x = torch.randn(4, 64, device="cuda")
    for again in (False, True):
        scale = sparsekit.load(
            "scale", cache_dir=tmp_path / "store", kernels=[kernels], note=notes.append
        )
        assert torch.equal(scale(x, alpha=2.0), 2 * x)
        ran = scale.prepared(scale.bind(x, alpha=2.0)).candidate.kernel.name
        assert ran == ("scale_new" if fault == "right" else "scale_cu")
        if again and fault != "crashing":  # which may be of the moment, and is tried again
            assert len(notes) == (fault != "right")
    if fault != "right":
        assert "its first use failed" in notes[0]
