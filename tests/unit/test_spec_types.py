"""Specs that are wrong: every wrong field is a SpecError by name, when read and when called."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from conftest import ROOT

from sparsekit.argument_sources import check_argument_sources
from sparsekit.discover import Catalog
from sparsekit.errors import SpecError, UsageError
from sparsekit.model import Arg, Call, Case, Entry, Kernel, Launch, Op, Scratch, Tensor, Variant
from sparsekit.model.call import Device
from sparsekit.model.fields import type_problems
from sparsekit.model.validate import validate_op
from sparsekit.operators.arguments import Arguments, checked_call
from sparsekit.runtime.select import decide

FIXTURE = ROOT / "tests" / "fixtures" / "kernels" / "scale_cu"
SPEC, OP_FILE = (FIXTURE / "spec.py").read_text(), (FIXTURE / "op.py").read_text()
ENTRIES, TARGETS = SPEC[SPEC.index("    entries=") : SPEC.index("    targets=")], "targets=PORTABLE"
VARIANT = 'Variant("twice", {"THREADS": 128}, same_bits_as="plain")'


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(FIXTURE, tmp_path / "kernels" / "mine")


WRONG = {
    "source": ('source="kernel.cu"', "source=None", "source must be a string, found None"),
    "source bytes": ('source="kernel.cu"', 'source=b"k"', "source must be a string"),
    "op": ('op="scale"', 'op=["scale"]', r"op must be a string, found \['scale'\]"),
    "lang": ('lang="cuda"', 'lang="hip"', "lang must be 'cuda' or 'triton', found 'hip'"),
    "targets": ("targets=PORTABLE_CUDA_TARGETS", "targets=None", "targets must be a tuple"),
    "target": ("targets=PORTABLE_CUDA_TARGETS", "targets=(80,)", r"targets\[0\] must be a string"),
    "target text": ("targets=PORTABLE_CUDA_TARGETS", 'targets="sm_80"', "targets must be a tuple"),
    "entries": (ENTRIES, '    entries=("scale",),\n', r"entries\[0\] must be Entry, found 'scale'"),
    "entries text": (ENTRIES, '    entries="scale",\n', "entries must be a tuple"),
    "args": ('Arg("columns", "i32")', '"columns"', r"Entry 'scale': args\[3\] must be Arg"),
    "args none": (ENTRIES, '    entries=(Entry("scale", None),),\n', "args must be a tuple"),
    "type": ('"*fp32", divisible_by=16', '"*{", divisible_by=16', r"unknown type '\*\{'"),
    "type format": ('"*fp32", divisible_by=16', '"*{x.y}"', "unknown type"),
    "type none": ('Arg("x", "*fp32")', 'Arg("x", None)', "Arg 'x': type must be a string"),
    "divisor": ("divisible_by=16", 'divisible_by="16"', "divisible_by must be an int, found '16'"),
    "divisor bool": ("divisible_by=16", "divisible_by=True", "divisible_by must be an int"),
    "stride": ('"x.stride(0)"', '"x.stride(9)"', r"has no x\.stride\(9\)"),
    "number": ('Arg("columns", "i32")', 'Arg("Rows", "i32")',
               r"scale: argument Rows: 'Rows' is no dim, scalar, stride or launch value "
               r"\(did you mean 'rows'\?\); scale has the dims rows, columns; scalars alpha"),
    "pointer": ('Arg("out", "*fp32"', 'Arg("out_ptr", "*fp32"',
                r"'out_ptr' is no tensor or scratch \(did you mean 'out'\?\); scale has the "
                "tensors x, out$"),
    "pointer to a dim": ('Arg("x", "*fp32")', 'Arg("columns_ptr", "*fp32", "columns")',
                         "'columns' is no tensor or scratch; scale has"),
    "number from a tensor": ('Arg("columns", "i32")', 'Arg("columns", "i32", "x")',
                             "'x' is no dim, scalar"),
    "stride form": ('"x.stride(0)"', '"x.stride(a)"', r"expected TENSOR\.stride\(AXIS\)"),
    "variants": ("variants=(", 'variants=Variant("p") or (', "a tuple of one is written"),
    "variant": (VARIANT, "'twice'", r"variants\[1\] must be Variant"),
    "constants": (VARIANT, 'Variant("twice", [1])', "constants must be a dictionary"),
    "constant": (VARIANT, 'Variant("twice", {"N": None})', r"constants\['N'\] must be an int or"),
    "constant name": (VARIANT, 'Variant("twice", {3: 1})', "constants: key must be a string"),
    "launch": (VARIANT, 'Variant("twice", launch={"N": "4"})', r"launch\['N'\] must be an int"),
    "launch and constant": (VARIANT, 'Variant("twice", {"N": 4}, launch={"N": 4})',
                            "'N' is a constant and of the launch"),
    "warps": (VARIANT, 'Variant("twice", num_warps="four")', "num_warps must be an int"),
    "no warps": (VARIANT, 'Variant("twice", num_warps=0)', "num_warps must be positive"),
    "same bits": (VARIANT, 'Variant("twice", same_bits_as=1)', "same_bits_as must be a string or"),
    "overrides": ("((12, 0),)", "(12, 0)", r"capabilities\[0\] must be a tuple"),
    "override": ('Override({"THREADS": 96}', 'Override({"num_warps": "four"}', "no count"),
    "instances": ("targets=", "instances=None, targets=", "instances must be a tuple"),
    "dtypes": ("targets=", 'instances=(Instance({"x": "i64"}),), targets=', "never 'i64'"),
    "dtype": ("targets=", 'instances=(Instance({"x": 3}),), targets=', r"dtypes\['x'\] must be a"),
    "assume": ("targets=", 'instances=(Instance(assume=("x",)),), targets=', "must be Promise"),
    "options": ("targets=", "options=[1], targets=", "options must be a dictionary"),
    "option": ("targets=", 'options={"fmad": [1]}, targets=', r"options\['fmad'\] must be an int"),
    "reject": ("targets=", 'reject="no", targets=', "reject must be a function"),
    "prefer": ("targets=", 'prefer="many rows", targets=', "prefer must be a function"),
    "made for": ("targets=", "made_for=8, targets=", "made_for must be a string, found 8"),
    "made for, unkept": ("targets=", 'made_for="few rows", targets=',
                         "made_for='few rows', but there is no reject"),
    "launches": ("launches=lambda", "launches=3 or (lambda", None),
    "exit": ("KERNEL = ", "raise SystemExit(0)\nKERNEL = ", "SystemExit: 0"),
    "generator": ("KERNEL = ", "raise GeneratorExit\nKERNEL = ", "GeneratorExit"),
    "null byte": ("KERNEL = ", "\0KERNEL = ", "null bytes"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [w for w in WRONG if WRONG[w][2]])
def test_a_wrong_spec_is_a_broken_folder_that_names_the_field(wrong, folder):
    old, new, told = WRONG[wrong]
    assert old in SPEC
    text = SPEC.replace("Entry, Kernel", "Entry, Instance, Kernel").replace(old, new, 1)
    (folder / "spec.py").write_text(text)
    shutil.copytree(FIXTURE, folder.parent / "sound")
    catalog = Catalog([folder.parent])
    assert "sound" in {k.name for k in catalog.kernels}
    (broken,) = catalog.broken
    assert broken.folder == folder
    with pytest.raises(SpecError, match=rf"spec\.py.*{told}"):
        catalog.resolve([str(folder)])


WRONG_OPS = {
    "inputs": ('inputs=(Tensor("x"', 'inputs=("x", Tensor("x"', r"inputs\[0\] must be Tensor or"),
    "keyword": ('Scalar("alpha"', 'Scalar("lambda"', "argument 'lambda' is a word of Python"),
    "on demand": ('Scalar("alpha", "float", default=2.0)),\n    outputs=(Tensor("out", ("rows", '
                  '"columns"), ("fp32",)),)',
                  'Scalar("return_out", "float")), outputs=(Tensor("y", ("rows",), ("fp32",)), '
                  'Tensor("out", ("rows",), ("fp32",), optional=True))',
                  "argument 'return_out' stands 2 times"),
    "shape": ('("rows", "columns"), ("fp32",)),)', '"rows", ("fp32",)),)', "shape must be a tuple"),
    "dtypes": ('("fp32",)), Scalar', '("fp33",)), Scalar', "unknown element type 'fp33'"),
    "outputs": ("outputs=(Tensor", "outputs=() and (Tensor", "no output"),
    "output dim": ('Tensor("out", ("rows"', 'Tensor("out", ("rocks"', "has the dim 'rocks'"),
    "scalar": ('"alpha", "float"', '"alpha", "double"', "type must be 'float' or 'int' or 'dtype'"),
    "cases": ("    cases=(", '    cases=("a",', r"cases\[0\] must be Case"),
    "tags": ('("corner",), 7', '"corner", 7', "tags must be a tuple"),
    "work": ("work=lambda case: Work", "work=3 and Work", None),
    "batch": ('batch="rows"', 'batch="b"', "batch 'b' is a dim of no tensor"),
    "exit": ("OP = ", "raise SystemExit(0)\nOP = ", "SystemExit: 0"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [w for w in WRONG_OPS if WRONG_OPS[w][2]])
def test_a_wrong_op_is_a_broken_folder_too(wrong, folder):
    old, new, told = WRONG_OPS[wrong]
    assert old in OP_FILE
    (folder / "op.py").write_text(OP_FILE.replace(old, new, 1))
    (broken,) = Catalog([folder.parent]).broken
    with pytest.raises(SpecError, match=rf"op\.py.*{told}"):
        raise SpecError(broken.reason)


def test_what_ships_is_of_its_types():
    catalog = Catalog()
    assert catalog.broken == ()
    assert [p for k in catalog.kernels for p in type_problems(k, Kernel)] == []
    assert [p for o in catalog.ops.values() for p in type_problems(o, Op)] == []


CALL = Call(
    dims={"rows": 4, "columns": 64}, dtypes={"x": "fp32", "out": "fp32"},
    shapes={"x": (4, 64), "out": (4, 64)}, strides={"x": (64, 1), "out": (64, 1)},
    alignments={"x": 256, "out": 256}, scalars={"alpha": 2.0}, device=Device((9, 0), 132, 232448),
)  # fmt: skip


def kernel_with(**fields) -> Kernel:
    (choice,) = Catalog().resolve([str(FIXTURE)])
    return replace(choice.kernel, **fields)


def fail(error: BaseException):
    def function(variant, call):
        raise error

    return function


def scratch(shape, dtype="fp32", name="part") -> Launch:
    return Launch("scale", (1, 1, 1), scratch=(Scratch(name, dtype, shape),))


ANSWERS = {
    "raises": (fail(KeyError("heads")), "launches.. of 'plain' raised KeyError: 'heads'"),
    "exits": (fail(SystemExit(0)), "raised SystemExit: 0"),
    "complains": (fail(UsageError("an arch")), "raised an arch"),
    "nothing": (lambda v, c: None, "launches.. of 'plain' must be a tuple, found None"),
    "bare": (lambda v, c: Launch("scale", (1, 1, 1)), "must be a tuple, found Launch.*written .x,"),
    "two": (lambda v, c: (Launch("scale", (1, 1)),), r"\[0\]: grid must be a tuple of 3"),
    "fraction": (lambda v, c: (Launch("scale", (3.5, 1, 1)),), r"grid\[0\] must be an int"),
    "stranger": (lambda v, c: (Launch("scales", (1, 1, 1)),), "entry 'scales'; the kernel has"),
    "empty": (lambda v, c: (), "would never be written"),
    "values": (lambda v, c: (Launch("scale", (1, 1, 1), {"n": "x"}),), r"values\['n'\] must be"),
    "scratch type": (lambda v, c: (scratch((1,), "u32"),), "unknown element type 'u32'"),
    "scratch size": (lambda v, c: (scratch((-1,)),), "negative size"),
    "shared": (lambda v, c: (scratch((1,)), scratch((2,))), "differs between the launches"),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
def test_launches_that_are_wrong_name_the_spec(answer):
    launches, told = ANSWERS[answer]
    with pytest.raises(SpecError, match=rf"(?s)spec\.py.*{told}"):
        list(decide([(kernel_with(launches=launches), ["plain"])], CALL))


@pytest.mark.parametrize(
    ("reject", "told"),
    [
        (fail(IndexError("stride")), "reject.. of 'plain' raised IndexError"),
        (lambda v, c: True, "must be a string or None, found True"),
        (lambda v, c: c.strides["x"][9], "raised IndexError"),
    ],
)
def test_a_rejection_that_is_wrong_names_the_spec(reject, told):
    with pytest.raises(SpecError, match=rf"spec\.py.*{told}"):
        list(decide([(kernel_with(reject=reject), ["plain"])], CALL))


@pytest.mark.parametrize(
    ("prefer", "told"),
    [
        (lambda call: call.dims["b"] > 1, "prefer.. raised KeyError: 'b'"),
        (lambda call: True, "prefer.. must be a string or None, found True"),
    ],
)
def test_a_preference_that_is_wrong_names_the_spec_where_it_is_asked(prefer, told):
    kernels = [(kernel_with(prefer=prefer), ["plain"])]
    assert all(d.taken for d in decide(kernels, CALL))
    with pytest.raises(SpecError, match=rf"spec\.py.*{told}"):
        list(decide(kernels, CALL, batch_invariant=False))


def test_an_argument_that_is_bound_to_nothing_names_the_spec():
    entry = Entry("scale", (Arg("n", "i64", "heads", divisible_by=2),))
    with pytest.raises(SpecError, match=r"spec\.py: scale: argument n: 'heads' is no dim"):
        list(decide([(kernel_with(entries=(entry,)), ["plain"])], CALL))


def test_ctrl_c_inside_a_spec_is_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        list(decide([(kernel_with(launches=fail(KeyboardInterrupt())), ["plain"])], CALL))


def test_a_check_that_raises_names_the_op(tmp_path):
    def check(call):
        return call.dims["nope"] > 1

    tensor = Tensor("x", ("n",), ("fp32",))
    case = Case("small", {"n": 1}, ())
    op = Op("s", (tensor,), (replace(tensor, name="y"),), (case,), lambda c: None, check)
    validate_op(op, tmp_path / "op.py")
    with pytest.raises(SpecError, match=r"op\.py:? .*raised KeyError: 'nope'"):
        checked_call(replace(op, folder=tmp_path), Arguments({}, {}, ("y",), {}), None)


def test_a_variant_s_missing_constant_names_the_spec():
    def launches(variant: Variant, call: Call):
        return (Launch("scale", (variant.constant("BLOCK"), 1, 1)),)

    with pytest.raises(SpecError, match=r"spec\.py.*KeyError: 'BLOCK'"):
        list(decide([(kernel_with(launches=launches), ["plain"])], CALL))


FED = (
    Launch("scale", (1, 1, 1), {"splits": 2}, (Scratch("part", "fp32", (1,)),)),
    Launch("merge", (1, 1, 1), {"splits": 2}, (Scratch("part", "fp32", (1,)),)),
)
SPLIT = Entry("scale", (Arg("part", "*fp32"), Arg("n", "i32", "splits")))
MERGE = Entry("merge", (Arg("part", "*fp32"), Arg("n", "i32", "split")))


def test_launch_values_and_scratch_feed_arguments_and_a_missing_one_is_told():
    op = Catalog([FIXTURE]).ops["scale"]
    asked = []

    def launches(variant: Variant, call: Call):
        asked.append((call.dims, call.has("out")))
        return FED

    check_argument_sources(kernel_with(entries=(SPLIT,), launches=launches), op)
    assert asked == [({"rows": 7, "columns": 64}, True)]
    told = (
        r"spec\.py: merge: argument n: 'split' is no .*did you mean 'splits'.*launch values splits"
    )
    with pytest.raises(SpecError, match=told):
        check_argument_sources(kernel_with(entries=(SPLIT, MERGE), launches=launches), op)


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("launches", fail(KeyError("heads"))),
        ("launches", lambda variant, call: None),
        ("launches", lambda variant, call: (FED[0],)),
        ("reject", lambda variant, call: "not on Sundays"),
        ("reject", fail(SystemExit(0))),
    ],
)
def test_what_no_case_launches_is_left_to_the_call(field, answer):
    op = Catalog([FIXTURE]).ops["scale"]
    spec = {"entries": (SPLIT, MERGE), "launches": lambda variant, call: FED}
    check_argument_sources(kernel_with(**{**spec, field: answer}), op)
