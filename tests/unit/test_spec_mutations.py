"""Every field of a spec and of an op with every kind of value: a SpecError, or it works."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT

from sparsekit import settings
from sparsekit.aot.plan import Planner
from sparsekit.discover import Catalog, Choice
from sparsekit.errors import SparsekitError
from sparsekit.kernel_folders import check_case
from sparsekit.model import Call, Instance, Promise, parse_archs
from sparsekit.model.call import Device
from sparsekit.model.validate import validate_against_op, validate_kernel, validate_op
from sparsekit.runtime.select import decide
from sparsekit.toolchain.find import Toolchains

KERNELS = ROOT / "tests" / "fixtures" / "kernels"
FILLED_IN = ("name", "folder", "address")
VALUES = (
    None, 3, 3.5, True, -1, 0, 10**30, float("nan"), "x", "", "\0", "é", b"x", "*{", "{x}", "../x",
    "x.stride(", "x.stride(9)", "sm_80", "fp32", [], (), {}, object(), int, (1,), ("x",),
    ("sm_80", "sm_80"), {"a": None}, {"x": "i64"}, {"has_x": 1}, {"num_warps": -3}, {"é": 1},
    lambda *args: None,
)  # fmt: skip
CALL = Call(
    dims={"rows": 4, "columns": 64}, dtypes={"x": "fp32", "out": "fp32"},
    shapes={"x": (4, 64), "out": (4, 64)}, strides={"x": (64, 1), "out": (64, 1)},
    alignments={"x": 256, "out": 256}, scalars={"alpha": 2.0}, device=Device((9, 0), 132, 232448),
)  # fmt: skip
Change = Callable[[Any], Any]


def changes(noun: Any, where: str = "") -> Iterator[tuple[str, Change]]:
    """Every field of the noun and of the nouns in it: its name, and what puts a value there."""
    for field in dataclasses.fields(noun):
        if not where and field.name in FILLED_IN:
            continue

        def put(value: Any, name: str = field.name) -> Any:
            return replace(noun, **{name: value})

        present = getattr(noun, field.name)
        yield where + field.name, put
        for i, item in enumerate(present[:2] if isinstance(present, tuple) else ()):

            def put_item(value: Any, put: Change = put, i: int = i, present: Any = present) -> Any:
                return put((*present[:i], value, *present[i + 1 :]))

            yield f"{where}{field.name}[{i}]", put_item
            if dataclasses.is_dataclass(item):
                for name, inner in changes(item, f"{where}{field.name}[{i}]."):
                    yield name, lambda v, inner=inner, put_item=put_item: put_item(inner(v))


def use(kernel: Any, op: Any, planner: Planner) -> None:
    validate_kernel(kernel)
    validate_against_op(kernel, op)
    choice = Choice(kernel, op, tuple(v.name for v in kernel.variants))
    for job in planner.plan([choice], parse_archs("8.0;12.0"), every_instance=True).jobs:
        assert f"{job} {job.key} {job.build_command}"
    assert list(map(str, decide([(kernel, choice.variants)], CALL)))


@pytest.mark.parametrize("name", ["scale_cu", "scale_triton"])
def test_a_field_of_a_spec_never_raises_anything_else(name):
    (choice,) = Catalog().resolve([str(KERNELS / name)])
    promise = Promise(choice.kernel.entries[0].args[1].name, 16)
    instance = Instance({"x": "fp32"}, {"has_x": 1}, (promise,))
    kernel = replace(choice.kernel, instances=(instance,))
    planner = Planner(Toolchains(settings.load()))
    use(kernel, choice.op, planner)
    for where, change in changes(kernel):
        for value in VALUES:
            try:
                use(change(value), choice.op, planner)
            except SparsekitError:
                pass
            except Exception as error:
                raise AssertionError(f"{where} = {value!r}") from error


def test_a_field_of_an_op_never_raises_anything_else():
    (choice,) = Catalog().resolve([str(KERNELS / "scale_cu")])
    for where, change in changes(choice.op):
        for value in VALUES:
            try:
                op = change(value)
                validate_op(op, op.folder / "op.py")
                assert [check_case(op, case) for case in op.cases]
                validate_against_op(choice.kernel, op)
            except SparsekitError:
                pass
            except Exception as error:
                raise AssertionError(f"{where} = {value!r}") from error
