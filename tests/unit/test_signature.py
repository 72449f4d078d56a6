"""What `help` and `inspect.signature` say of what `sparsekit.load` gives, and of itself."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import replace

import pytest
from conftest import ROOT

import sparsekit
from sparsekit.discover import Catalog
from sparsekit.model import Case, Op, Scalar, Tensor, Work
from sparsekit.operators.arguments import bind
from sparsekit.operators.load import load
from sparsekit.operators.signature import doc_of, signature_of

SCALE = str(ROOT / "tests" / "fixtures" / "kernels" / "scale_cu")
PAGED = (
    "(q, window_pool, cmp_pool, attn_sink, topk_idxs, n_window, softmax_scale, cmp_counts=None, *, "
    "return_lse=False, out=None, lse=None)"
)


def test_load_is_one_function_in_two_places():
    here, there = inspect.signature(sparsekit.load), inspect.signature(load)
    assert [(p.name, p.kind, p.default) for p in here.parameters.values()] == [
        (p.name, p.kind, p.default) for p in there.parameters.values()
    ]
    assert "reference: `NAME[:VARIANT]" in (sparsekit.load.__doc__ or "")


def test_an_operator_has_the_op_s_signature_and_help(tmp_path):
    operator = sparsekit.load("sparse_attn_paged", cache_dir=tmp_path)
    assert str(inspect.signature(operator)) == PAGED
    told = pydoc.plain(pydoc.render_doc(operator))
    for line in (
        f"sparse_attn_paged{PAGED}", "q: [b, m, h, d] bf16", "softmax_scale: float",
        "cmp_counts: [b, m] i32, or None", "lse: [b, m, h] fp32, with return_lse=True",
    ):  # fmt: skip
        assert f"    {line}\n" in told
    assert "Raises TypeError for an element type" in told


def test_every_op_is_called_as_its_signature_says():
    """With a value for all that is required, Python and `bind` take the same calls."""
    for op in Catalog().ops.values():
        signature = signature_of(op)
        required = [n for n, p in signature.parameters.items() if p.default is p.empty]
        signature.bind(*range(len(required)))
        wanted = [i.name for i in op.inputs if i.name in required]
        assert required == wanted
        with pytest.raises(TypeError):
            signature.bind(*range(len(required) - 1))
        with pytest.raises(TypeError):
            bind(op, (), {})
        assert all(f"\n{i.name}: " in doc_of(op) for i in op.inputs)


def test_a_required_input_behind_an_optional_one_is_by_keyword():
    tensor = Tensor("x", ("n",), ("fp32",))
    inputs = (Tensor("y", ("n",), ("fp32",), optional=True, divisible_by=16), Scalar("k", "int"))
    cases, out = (Case("c", {"n": 1}, ()),), replace(tensor, name="out")
    op = Op("s", (tensor, *inputs), (out,), cases, lambda case: Work(0, 0))
    assert str(signature_of(op)) == "(x, y=None, *, k, out=None)"
    assert "y: [n] fp32, at a multiple of 16 bytes, or None" in doc_of(op)
