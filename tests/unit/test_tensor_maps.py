"""Tensor maps as arguments: their type, what they take, and what the emulator makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import ROOT

from sparsekit.argument_sources import check_argument_sources
from sparsekit.discover import Catalog
from sparsekit.emulator import TensorMap
from sparsekit.errors import SpecError
from sparsekit.model import Arg, Call
from sparsekit.model.call import Device
from sparsekit.model.tensor_map import MapFacts, MapType, map_facts, map_problem, map_type
from sparsekit.model.validate import validate_against_op, validate_kernel
from sparsekit.operators.emulated_driver import EmulatedDriver
from sparsekit.runtime.select import decide

MAPPED = str(ROOT / "tests" / "fixtures" / "kernels" / "scale_mapped")
BF16_BYTES = 2
ROWS = "tensormap(2,0; 64,1; 128B)"


def call_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "bf16") -> Call:
    return Call(
        dims={"rows": shape[0], "columns": shape[-1]}, dtypes={"x": dtype}, shapes={"x": shape},
        strides={"x": strides}, alignments={"x": 256}, scalars={"alpha": 2.0},
        device=Device((9, 0), 132, 232448),
    )  # fmt: skip


def test_a_type_is_axes_box_and_swizzle():
    assert map_type(ROWS) == MapType((2, 0), (64, 1), "128B")


@pytest.mark.parametrize(
    "text",
    [
        "tensormap()", "tensormap(1,0; 64; 128B)", "tensormap(0,0; 64,1; 128B)",
        "tensormap(0; 257; none)", "tensormap(0; 0; none)", "tensormap(0; 8; 16B)",
        "tensormap(0,1,2,3,4,5; 1,1,1,1,1,1; none)", "tensormap(1, 0; 64, 1; 128B)",
    ],
)  # fmt: skip
def test_what_is_no_type(text):
    assert map_type(text) is None
    (choice,) = Catalog().resolve([MAPPED])
    with pytest.raises(SpecError, match="x_map: expected tensormap"):
        validate_kernel(with_map(choice.kernel, type=text))


def with_map(kernel, **changes):
    (entry,) = kernel.entries
    args = tuple(replace(a, **changes) if a.name == "x_map" else a for a in entry.args)
    return replace(kernel, entries=(replace(entry, args=args),))


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"source": "y"}, "no tensor 'y'"), ({"type": "tensormap(2; 64; none)"}, "x has no axis 2")],
)
def test_a_map_is_of_a_tensor_of_the_op(changes, told):
    (choice,) = Catalog().resolve([MAPPED])
    kernel = with_map(choice.kernel, **changes)
    validate_kernel(kernel)
    with pytest.raises(SpecError, match=told):
        validate_against_op(kernel, choice.op)


def test_a_map_is_fed_by_a_tensor_and_by_no_number():
    (choice,) = Catalog().resolve([MAPPED])
    check_argument_sources(choice.kernel, choice.op)
    with pytest.raises(SpecError, match="x_map: 'columns' is no tensor"):
        check_argument_sources(with_map(choice.kernel, source="columns"), choice.op)


def test_facts_are_in_the_order_of_the_axes():
    call = call_of((300, 1, 576), (600, 600, 1))
    assert map_facts(map_type(ROWS), call, "x", BF16_BYTES) == MapFacts(
        "bf16", (576, 300), (1200,), (64, 1), "128B"
    )


def test_a_tensor_without_elements_has_no_map():
    call = call_of((0, 1, 576), (576, 576, 1))
    assert map_problem(map_type(ROWS), call, "x", BF16_BYTES) is None
    assert map_facts(map_type(ROWS), call, "x", BF16_BYTES) is None


@pytest.mark.parametrize(
    ("shape", "strides", "told"),
    [
        ((300, 2, 576), (1152, 576, 1), "has no axis 1"),
        ((300, 1, 576), (577, 577, 1), "multiples of 16 bytes below 2^40, found 1154 bytes"),
        ((300, 1, 576), (0, 576, 1), "found 0 bytes in stride(0)"),
        ((300, 1, 576), (1 << 39, 576, 1), "below 2^40"),
        ((300, 1, 576), (1152, 1152, 2), "needs stride(2) = 1"),
    ],
)
def test_what_no_map_shows(shape, strides, told):
    problem = map_problem(map_type(ROWS), call_of(shape, strides), "x", BF16_BYTES)
    assert told in problem


def test_such_a_call_is_not_taken():
    (choice,) = Catalog().resolve([MAPPED])
    for stride, taken in ((64, True), (66, False)):
        call = call_of((7, 64), (stride, 1), "fp32")
        decisions = list(decide([(choice.kernel, choice.variants)], call))
        assert any(d.taken for d in decisions) is taken


def test_the_emulator_gets_the_same_map():
    facts = MapFacts("bf16", (576, 300), (1200,), (64, 1), "128B")
    made = EmulatedDriver((10, 0)).tensor_map(facts, 4096)
    assert made == TensorMap(4096, "bf16", (576, 300), (64, 1), (1200,), swizzle="128B").packed()


def test_a_map_is_128_bytes_and_no_pointer():
    arg = Arg("x_map", ROWS, "x")
    assert (arg.is_map, arg.is_pointer, arg.is_tensor, arg.bound_to) == (True, False, True, "x")
