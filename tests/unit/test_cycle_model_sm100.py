"""The README of the Blackwell kernel shows what its cycle model gives."""

from __future__ import annotations

import runpy

from conftest import ROOT

FOLDER = ROOT / "kernels_cu" / "sparse_prefill_sm100"


def test_the_readme_has_the_model_s_tables():
    model = runpy.run_path(str(FOLDER / "cycle_model.py"))
    shown = (FOLDER / "README.md").read_text().partition("<!-- cycle_model.py -->\n\n")[2]
    shown = shown.partition("\n\n<!-- /cycle_model.py -->")[0]
    assert shown == model["tables"]()
    assert "never run on hardware" in " ".join((FOLDER / "README.md").read_text().split())


def test_padding_few_heads_costs_at_most_what_the_readme_says():
    """The kernel pads them: to be looked at again where the model says that swapping wins more."""
    model = runpy.run_path(str(FOLDER / "cycle_model.py"))
    won = [
        padded.tile / model["Swapped"](heads, d_qk).tile - 1
        for d_qk, padded in model["ONE"].items()
        for heads in model["FEW_HEADS"]
    ]
    assert 0 < max(won) < 0.02
    assert "at most 2 %" in (FOLDER / "README.md").read_text()


def test_the_model_s_stages_are_the_kernel_s():
    from sparsekit.discover import Catalog
    from sparsekit.model import Instance

    model = runpy.run_path(str(FOLDER / "cycle_model.py"))
    kernel = next(k for k in Catalog().kernels if k.name == "sparse_prefill_sm100")
    for variant, shapes in (("skip", model["ONE"]), ("skip_pair", model["PAIR"])):
        for d_qk, shape in shapes.items():
            built = kernel.variant_at(variant, kernel.archs[0], Instance(constants={"d_qk": d_qk}))
            assert (shape.ctas, shape.stages) == (built.constant("CTAS"), built.constant("STAGES"))
