"""The README of the Blackwell kernel shows what its cycle model gives."""

from __future__ import annotations

import runpy

from conftest import ROOT

FOLDER = ROOT / "kernels_cu" / "sparse_prefill_sm100"


def test_the_readme_has_the_model_s_tables():
    model = runpy.run_path(str(FOLDER / "cycle_model.py"))
    shown = (FOLDER / "README.md").read_text().partition("<!-- cycle_model.py -->\n\n")[2]
    shown = shown.partition("\n\n<!-- /cycle_model.py -->")[0]
    assert shown == f"{model['tile_table']()}\n\n{model['time_table']()}"
    assert "never run on hardware" in " ".join((FOLDER / "README.md").read_text().split())


def test_the_model_s_stages_are_the_kernel_s():
    from sparsekit.discover import Catalog
    from sparsekit.model import Instance

    model = runpy.run_path(str(FOLDER / "cycle_model.py"))
    kernel = next(k for k in Catalog().kernels if k.name == "sparse_prefill_sm100")
    for variant, shapes in (("skip", model["ONE"]), ("skip_pair", model["PAIR"])):
        for d_qk, shape in shapes.items():
            built = kernel.variant_at(variant, kernel.archs[0], Instance(constants={"d_qk": d_qk}))
            assert (shape.ctas, shape.stages) == (built.constant("CTAS"), built.constant("STAGES"))
