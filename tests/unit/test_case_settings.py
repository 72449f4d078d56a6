"""The values that `--set` takes are those that the reference knows."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest

from sparsekit.discover import Catalog
from sparsekit.errors import SpecError
from sparsekit.model.op import with_settings
from sparsekit.model.validate import validate_op
from sparsekit.ops import sampling

OPS = Catalog().ops
SMALL = {
    "gated_pool": "r8_d128", "sparse_prefill": "small_576", "sparse_attn_paged": "decode_small",
}  # fmt: skip
VALUES = [(op, name, v) for op in SMALL for name, vs in OPS[op].known_values.items() for v in vs]


@pytest.mark.parametrize(("op", "name", "value"), VALUES)
def test_every_known_value_makes_inputs(op, name, value):
    case = with_settings(OPS[op], OPS[op].case(SMALL[op]), {name: value})
    module = importlib.import_module(f"sparsekit.ops.{op}.reference")
    assert module.make_inputs(case, OPS[op].probes[0])


@pytest.mark.parametrize("op", ["sparse_prefill", "sparse_attn_paged"])
def test_layouts_are_those_of_the_samples(op):
    assert {"random", "mixed", *sampling.MIXED} <= set(OPS[op].known_values["indices"])


def test_a_case_with_a_value_that_is_not_known_is_a_broken_op(tmp_path):
    op = OPS["gated_pool"]
    wrong = replace(op, known_values={**op.known_values, "values": ("normal",)})
    with pytest.raises(SpecError, match="values is 'special', none of known_values"):
        validate_op(wrong, tmp_path / "op.py")
