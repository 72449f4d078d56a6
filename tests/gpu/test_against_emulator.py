"""The comparison of a GPU with the emulator: its texts and data here, a handful on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tile_bits
import tile_data
import torch
from accumulation import Model, accumulate
from against_emulator import Record
from function_compare import compare_function
from function_forms import ENTRY as FUNCTION
from function_forms import THREADS, function_forms, operands
from kernel_cases import cases_of, cost_flop, make_integral, must_be_equal
from kernel_compare import compare_output
from sides import Emulator
from tile_compare import compare_form, exact_tiles
from tile_forms import ENTRY, MmaForm, WgmmaForm, mma_forms, wgmma_forms

from sparsekit.discover import Catalog
from sparsekit.report.sections import parts_of
from sparsekit.report.stored import Wanted, read_stored

FEW = 2  # tiles
SOME = (*mma_forms()[::5], *wgmma_forms()[::14])


@pytest.mark.parametrize("form", SOME, ids=lambda form: form.name)
def test_tiles_of_integers_are_exact_in_the_emulator(form):
    for finding in compare_form(form, FEW, None):
        if finding["data"] in (tile_data.INTEGRAL, tile_data.RANDOM):
            assert finding["ok"], finding


def test_a_record_is_a_result_that_report_shows(tmp_path):
    file, function = tmp_path / "record.json", function_forms()[0]
    record = Record(file, {"schema": 1, "kind": "against-emulator", "environment": {}}, 3, set())
    record.add(compare_form(SOME[0], FEW, None))
    record.add([compare_function(function, None)])
    told = compare_output(torch.ones(4), torch.ones(4), must_be_equal=True)
    subject = {"what": "kernel", "subject": "k:v", "case": "c", "data": "random", "ok": True}
    record.add([{**subject, "instance": None, "problems": [], "outputs": {"out": told}}])
    record.save()
    table, lines = parts_of(["emulator"], [read_stored(file)], Wanted())
    rows = {row[:2]: row[2:] for row in table.rows}
    assert rows["outputs of kernels", "random"] == (1, 4, 0, "0 bf16 ulp of the row", 0)
    assert rows["mma tiles", "integers"][0] == FEW
    assert rows["scalar instructions", "exact"][0] == 1
    assert lines.lines[0].startswith("Tasks: 3 of 3 done; cases skipped: 0;")


def test_all_tiles_have_names_of_their_own():
    names = [form.name for form in (*mma_forms(), *wgmma_forms())]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", ["bf16", "f16", "tf32", "e4m3", "e5m2", "s8"])
def test_bits_and_words_come_back(kind):
    values = np.arange(-4.0, 4.0).reshape(1, 8)
    bits = tile_bits.encode(values, kind)
    assert (tile_bits.decode(bits, kind) == values).all()
    assert (tile_bits.elements(tile_bits.words(bits, kind), kind) == bits).all()


@pytest.mark.parametrize("form", [SOME[0], WgmmaForm("e4m3", "e5m2", "f16", (64, 24, 32))])
def test_registers_come_back(form):
    matrix = tile_data.make_tiles(form, tile_data.RANDOM, FEW).c
    warps = form.threads // 32
    assert (form.matrix(form.accumulators(matrix, warps), warps) == matrix).all()


def test_a_model_that_keeps_all_bits_adds_exactly():
    form = MmaForm("bf16", "bf16", "f32", (16, 8, 16))
    tiles = tile_data.make_tiles(form, tile_data.INTEGRAL, FEW)
    assert (accumulate(form, Model(25, 16), tiles) == exact_tiles(form, tiles)).all()


def test_a_model_cuts_what_lies_far_below_the_largest_term():
    form = MmaForm("bf16", "bf16", "f32", (16, 8, 8))
    a, b, c = np.zeros((1, 16, 8)), np.ones((1, 8, 8)), np.zeros((1, 16, 8))
    a[..., 0], a[..., 1] = 1.0, 2.0**-24
    tiles = tile_data._encoded(form, a, b, c)
    assert (tile_bits.decode(accumulate(form, Model(23, 8), tiles), "f32") == 1).all()
    c[:] = -1.0
    tiles = tile_data._encoded(form, a, b, c)
    assert (tile_bits.decode(accumulate(form, Model(24, 8), tiles), "f32") == 2.0**-24).all()


@pytest.mark.parametrize("signs", [(1, 1), (1, -1)])
def test_f16_results_that_round_to_zero_are_positive_as_on_an_h200(signs):
    form = WgmmaForm("f16", "f16", "f16", (64, 32, 16), signs=signs)
    if signs == (1, 1):
        form = WgmmaForm("e5m2", "e5m2", "f16", (64, 160, 32), mode="128B")
    assert form in wgmma_forms()
    tiles = tile_data.make_tiles(form, tile_data.SUBNORMAL, 10)
    found = form.result(
        Emulator().run(form.text, ENTRY, form.threads, form.memory(tiles), form.out_words)
    )
    assert (exact_tiles(form, tiles) == 0x8000).sum() == 4  # so many differed
    assert not (found == 0x8000).any()


def test_models_are_told_of_a_gpu(tmp_path):
    form = MmaForm("e4m3", "e4m3", "f32", (16, 8, 32))
    findings = {f["data"]: f for f in compare_form(form, FEW, Emulator(), tmp_path)}
    models = findings[tile_data.RANDOM]["models"]
    assert models[0]["equal"] >= models[-1]["equal"]
    assert len(list(tmp_path.iterdir())) == len(findings)
    assert findings[tile_data.SPECIAL]["different_bits"] == 0


@pytest.mark.parametrize(
    "form", [f for f in function_forms() if not f.refused][::9], ids=lambda form: form.name
)
def test_functions_run(form):
    finding = compare_function(form, None)
    assert finding["different_bits"] == 0
    assert finding["elements"] > 1000


def test_functions_have_names_of_their_own():
    names = [form.name for form in function_forms()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        ("setp.lt.f16", "setp.lt.ftz.f16"), ("setp.eq.f16x2", "setp.eq.ftz.f16x2"),
        ("set.le.f16x2.f16x2", "set.le.ftz.f16x2.f16x2"), ("cvt.f32.bf16", "cvt.ftz.f32.bf16"),
        ("rsqrt.approx.f64, whether infinite", "rsqrt.approx.ftz.f64, whether infinite"),
        ("red.relaxed.gpu.global.min.noftz.v2.f16", "red.relaxed.gpu.global.max.noftz.v2.f16"),
    ],
)  # fmt: skip
def test_operands_tell_instructions_apart(plain, other):
    forms = {form.name: form for form in function_forms()}
    one, two = (
        Emulator().run(forms[name].text, FUNCTION, THREADS, [operands()], 1)
        for name in (plain, other)
    )
    assert (one != two).sum() > 50


def test_zeros_of_both_signs_meet_in_memory():
    high = operands().reshape(-1, 3)[:, :2] >> 16
    assert (high == [0, 0x8000]).all(axis=1).any()
    assert (high == [0x8000, 0]).all(axis=1).any()


def test_what_ptx_does_not_have_is_refused():
    (form,) = (form for form in function_forms() if form.refused)
    assert compare_function(form, None)["ok"]


def test_an_output_that_differs_is_told():
    one = torch.tensor([[1.0, -2.0, float("nan"), 0.001]], dtype=torch.bfloat16)
    other = one.clone()
    assert compare_output(one, other, True)["problem"] is None
    other[0, 3] = 0.00105  # far away for itself, and near against its row
    told = compare_output(one, other, False)
    assert told["problem"] is None
    assert told["beyond_2_bf16_ulp"] == 1
    assert "elements differ" in compare_output(one, other, True)["problem"]
    other[0, 1] = -2.1
    assert "bf16 ulp apart" in compare_output(one, other, False)["problem"]
    other[0, 2] = 1.0
    assert "on one side only" in compare_output(one, other, False)["problem"]


@pytest.mark.parametrize("name", ["gated_pool", "sparse_attn_paged", "sparse_prefill"])
def test_cases_are_small_and_integral(name):
    (op,) = {c.op.name: c.op for c in Catalog().resolve([name])}.values()
    cases = cases_of(op)
    assert len({case.name for case in cases}) == len(cases) > 40
    assert max(cost_flop(op, case) for case in cases) < 3e8
    assert any(must_be_equal(op, case, "out") for case in cases)
    assert not must_be_equal(op, cases[0], "lse")
    inputs = {
        "q": torch.randn(3, 2, 64),
        "kv": torch.tensor([[0.3, float("nan")]]),
        "sm_scale": 2.0,
    }
    found = make_integral(dict(inputs), 1)
    assert (found["q"] != 0).sum() == 6
    assert found["kv"].isnan().tolist() == [[False, True]]
    assert found["sm_scale"] == float(np.float32(np.log(2)))


@pytest.mark.gpu
@pytest.mark.parametrize("form", SOME, ids=lambda form: form.name)
def test_tiles_on_a_gpu(form):
    from sides import Gpu

    for finding in compare_form(form, FEW, Gpu()):
        assert finding["ok"] is not False, finding


@pytest.mark.gpu
def test_an_instruction_on_a_gpu():
    from sides import Gpu

    assert compare_function(function_forms()[0], Gpu())["ok"]


@pytest.mark.gpu
def test_the_script_on_one_kernel(tmp_path):
    import json
    import subprocess
    import sys

    from conftest import ROOT

    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "tests/gpu/against_emulator.py", "-o", str(file), "--only",
         "*gated_pool:plain r8_*"], cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(file.read_text())["failed"] == []
