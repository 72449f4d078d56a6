"""The checkers must fail what is wrong: faulty kernels of every kind, on the CPU."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field, replace

import pytest
import torch

from sparsekit.check.campaign import (
    Pair,
    against_bits,
    against_reference,
)
from sparsekit.check.cases import cases_of_ops
from sparsekit.check.compare import compare_bits, compare_to_reference, tensor_sha256, ulp_distance
from sparsekit.check.placement import guarded_output, place_inputs
from sparsekit.check.reference import load_reference
from sparsekit.check.subject import Ran, repeated
from sparsekit.check.verify import verify_reference
from sparsekit.check.workload import least_bytes, make_workload, user_workload
from sparsekit.cli.verify_command import _exit_code
from sparsekit.discover import Catalog
from sparsekit.errors import ArgumentError, ArgumentTypeError, GpuError, NoKernelError, UsageError
from sparsekit.model.op import Case
from sparsekit.model.results import VerifyResult
from sparsekit.ops.sparse_attn_paged_fp8.packing import unpack
from sparsekit.runtime.tensors import placement

CPU = torch.device("cpu")
OPS = Catalog().ops
SMALL = {
    "sparse_prefill": "length_576",
    "sparse_attn_paged": "prefill_padded",
    "gated_pool": "special",
}


def test_cases_are_chosen_by_any_of_the_patterns():
    op = OPS["gated_pool"]
    found = [c.name for _, own in cases_of_ops([op], ("special", "b1_*"), ("smoke",)) for c in own]
    assert found == [c.name for c in op.cases if c.name == "special" or c.name.startswith("b1_")]
    assert len(found) > 2
    with pytest.raises(UsageError, match="has no case 'x' or 'y'; its cases are "):
        cases_of_ops([op], ("x", "y"), ("smoke",))


def test_an_op_without_such_a_case_is_left_out():
    """By pattern and by tag; a pattern that is of no case of any op is an error that names it."""
    ops = [OPS["gated_pool"], OPS["sparse_prefill"]]
    ((op, cases),) = cases_of_ops(ops, ("r8_d128",), ())
    assert (op.name, [c.name for c in cases]) == ("gated_pool", ["r8_d128"])
    bare = replace(ops[1], cases=tuple(replace(c, tags=("perf",)) for c in ops[1].cases))
    assert [op.name for op, _ in cases_of_ops([ops[0], bare], (), ("smoke",))] == ["gated_pool"]
    assert len(cases_of_ops(ops, ("r8_d128", "length_576"), ())) == 2
    with pytest.raises(UsageError, match="no op has a case 'nope'; the cases are, of gated_pool: "):
        cases_of_ops(ops, ("r8_d128", "nope"), ())
    with pytest.raises(UsageError, match="op sparse_prefill has no case with the tag smoke; its"):
        cases_of_ops([bare], (), ("smoke",))


@pytest.mark.parametrize("op", OPS)
def test_what_a_case_spans_is_known_before_its_data(op):
    """But for optional inputs, which are small."""
    ((_, cases),) = cases_of_ops([OPS[op]], (), ("smoke",))
    for case in cases:
        made = make_workload(OPS[op], load_reference(OPS[op]), case.for_emulator(), "random", CPU)
        optional = {t.name for t in OPS[op].tensors if t.optional}
        inputs = {n: t for n, t in made.inputs.items() if n not in optional}
        tensors = [t for t in inputs.values() if isinstance(t, torch.Tensor)]
        tensors += [guarded.view for guarded in made.outputs().values()]
        spans = sum(placement(t).span_bytes for t in tensors)
        assert least_bytes(OPS[op], made.case)[1] == spans, case.name


@dataclass
class Fake:
    """A kernel that computes the op from the float64 reference, then does something wrong."""

    op: str
    fault: object = None
    kernel: str = "fake"
    variant: str = "plain"
    calls: int = field(default=0, compare=False)
    arch = None

    def turns(self, repeat):
        return repeated(self, repeat)

    def compute(self, inputs, outputs):
        self.calls += 1
        module = importlib.import_module(f"sparsekit.ops.{self.op}.reference")
        seen = self.fault.before(dict(inputs)) if hasattr(self.fault, "before") else inputs
        right = module.reference(seen)
        for name, out in outputs.items():
            out.copy_(right[name].to(out.dtype))
        if hasattr(self.fault, "after"):
            self.fault.after(inputs, outputs, self.calls)
        return Ran("sm_00", "none-0")


def workload(op: str, probe: str = "random", case: str | None = None):
    found = OPS[op].case(case or SMALL[op])
    return make_workload(OPS[op], load_reference(OPS[op]), found, probe, CPU)


def check(op: str, fault: object, probe: str = "random", case: str | None = None, repeat: int = 1):
    loaded = workload(op, probe, case)
    (result,) = verify_reference(loaded, [Fake(op, fault)], load_reference(OPS[op]), repeat)
    return result


@pytest.mark.parametrize("op", SMALL)
def test_a_right_kernel_passes(op):
    for probe in OPS[op].probes:
        result = check(op, None, probe)
        assert result.ok, result.reason
        assert all(len(c.sha256) == 64 for c in result.outputs.values())


class WritesNothing:
    def after(self, inputs, outputs, call):
        for out in outputs.values():
            out.copy_(guarded_output(tuple(out.shape), out.dtype, CPU).view)


class WritesZeros:
    def after(self, inputs, outputs, call):
        for out in outputs.values():
            out.zero_()


class WritesNaN:
    def after(self, inputs, outputs, call):
        for out in outputs.values():
            out.fill_(float("nan"))


@dataclass
class OneElement:
    """One element off by `ulps` in the first output, at a finite place."""

    ulps: int

    def after(self, inputs, outputs, call):
        out = next(iter(outputs.values()))
        index = tuple(torch.isfinite(out).nonzero()[-1])
        bits = out.view(torch.int16 if out.element_size() == 2 else torch.int32)
        bits[index] += self.ulps


class OneElementUnwritten:
    def after(self, inputs, outputs, call):
        out = next(iter(outputs.values()))
        out.view(torch.int16).reshape(-1)[5] = 0x7FB5


class WritesOutside:
    def after(self, inputs, outputs, call):
        out = next(iter(outputs.values()))
        torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(1)


class ChangesItsInput:
    def after(self, inputs, outputs, call):
        name = "q" if "q" in inputs else "kv"
        inputs[name][(0,) * inputs[name].dim()] = 123.0


class NotRepeatable:
    def after(self, inputs, outputs, call):
        if call == 3:
            next(iter(outputs.values())).view(torch.int16).reshape(-1)[3] ^= 1


FAULTS = {
    "nothing": (WritesNothing(), "not written"),
    "zeros": (WritesZeros(), "elements are wrong"),
    "NaN": (WritesNaN(), "elements are wrong"),
    "one element": (OneElement(ulps=40), "1 of"),
    "one unwritten": (OneElementUnwritten(), "1 of"),
    "outside": (WritesOutside(), "outside its bounds"),
    "input": (ChangesItsInput(), "was changed"),
}


@pytest.mark.parametrize("op", SMALL)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_fails_with_place_and_size(op, fault):
    kind, told = FAULTS[fault]
    result = check(op, kind)
    assert result.ok is False
    assert told in result.reason


def test_zeros_where_results_are_tiny_fail_too():
    """A tolerance is relative to the data: zeros are wrong however small the reference is."""
    case = replace(
        OPS["sparse_prefill"].case("small_512"),
        options={**OPS["sparse_prefill"].case("small_512").options},
    )
    loaded = make_workload(
        OPS["sparse_prefill"], load_reference(OPS["sparse_prefill"]), case, "random", CPU
    )
    loaded.inputs["kv"][torch.isfinite(loaded.inputs["kv"])] *= 1e-4
    (result,) = verify_reference(
        loaded, [Fake("sparse_prefill", WritesZeros())], load_reference(OPS["sparse_prefill"]), 1
    )
    assert result.ok is False


def test_runs_that_differ_fail():
    result = check("sparse_prefill", NotRepeatable(), repeat=4)
    assert result.ok is False
    assert "run 3 differs from run 1" in result.reason
    assert result.runs == 4
    assert check("sparse_prefill", None, repeat=4).ok


@dataclass
class DropsColumn:
    """Behaves as if one valid column of the first long row were not there."""

    name: str

    def before(self, inputs):
        indices = inputs[self.name].clone()
        flat = indices.view(-1, indices.shape[-1])
        row, column = self._valid(inputs, flat)
        flat[row, column] = self.replacement(flat, row, column)
        return {**inputs, self.name: indices}

    def replacement(self, flat, row, column):
        return -1

    def _valid(self, inputs, flat):
        """A valid column of the row that has most of them."""
        pool = inputs["kv"] if "kv" in inputs else inputs["window_pool"]
        live = (flat >= 0) & (flat < pool.shape[0])
        if "window_pool" in inputs:
            live[:, inputs["n_window"] :] = False
        if (length := inputs.get("topk_length")) is not None:
            live &= torch.arange(flat.shape[1]) < length[:, None]
        row = int(live.sum(1).argmax())
        return row, int(live[row].nonzero()[len(live[row].nonzero()) // 2])


class SwapsColumn(DropsColumn):
    """One column reads another valid row than it names."""

    def replacement(self, flat, row, column):
        valid = flat[row][(flat[row] >= 0) & (flat[row] < 300)]
        return next(int(v) for v in valid if int(v) != int(flat[row, column]))


class AddsColumn(DropsColumn):
    """One invalid column of the fullest row counts as if it named row `extra`."""

    def before(self, inputs):
        indices = inputs[self.name].clone()
        flat = indices.view(-1, indices.shape[-1])
        row, column = self._valid(inputs, flat)
        indices = torch.cat([indices, flat[row, column].expand(*indices.shape[:-1], 1)], dim=-1)
        return {**inputs, self.name: indices}


WIDE = {
    "sparse_prefill": ("topk_2048", "indices"),
    "sparse_attn_paged": ("topk_2048_w128_m2", "topk_idxs"),
}


@pytest.mark.parametrize("op", WIDE)
@pytest.mark.parametrize("fault", [DropsColumn, AddsColumn, SwapsColumn])
def test_one_wrong_column_in_2048_is_seen(op, fault):
    """The random data cannot see it; rows of +-1 under q = 0 do."""
    case, name = WIDE[op]
    result = check(op, fault(name), "zero_q", case)
    assert result.ok is False, "one wrong column went unseen"


@pytest.mark.parametrize("op", WIDE)
def test_logarithms_to_another_base_fail(op):
    @dataclass
    class Base2:
        def after(self, inputs, outputs, call):
            outputs["lse"] /= 0.6931471805599453

    case = "length_576" if op == "sparse_prefill" else "prefill_padded"
    result = check(op, Base2(), "zero_q", case)
    assert not result.outputs["lse"].ok


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_sign_of_an_empty_row_s_infinity_counts(sign):
    class Flips:
        def after(self, inputs, outputs, call):
            outputs["lse"].mul_(-1.0)

    if sign < 0:
        assert check("sparse_prefill", Flips(), case="empty").ok is False
    else:
        assert check("sparse_prefill", None, case="empty").ok


def bits(subject, base, op="gated_pool", case="special"):
    results = list(against_bits(OPS[op], [Pair(subject, base)], [OPS[op].case(case)], CPU, 1))
    return [r for r in results if "row" not in r.against and "stream" not in r.against]


def test_bitwise_sees_one_ulp_and_names_the_pair():
    base = Fake("gated_pool", variant="base")
    (same,) = bits(Fake("gated_pool"), base)
    assert same.ok
    assert same.against == "fake:base"
    assert same.runs == 2
    (other,) = bits(Fake("gated_pool", OneElement(ulps=1)), base)
    assert other.ok is False
    assert "1 of" in other.outputs["out"].problem


def test_bitwise_tells_zero_from_minus_zero_and_nan_from_nan():
    zero, minus = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    check_zero = compare_bits(zero, minus)
    assert not check_zero.ok
    assert check_zero.worst_index == (0,)
    quiet, other = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert not compare_bits(quiet.reshape(1), other.reshape(1)).ok
    assert compare_bits(quiet.reshape(1), quiet.reshape(1)).ok


def test_nan_and_inf_positions_must_match():
    nan, inf = float("nan"), float("inf")
    bound = torch.full((4,), 1e9, dtype=torch.float64)
    expected = torch.tensor([1.0, nan, inf, -inf], dtype=torch.float64)
    assert compare_to_reference(torch.tensor([1.0, nan, inf, -inf]), expected, bound).ok
    for wrong in (
        [nan, nan, inf, -inf],
        [1.0, 1.0, inf, -inf],
        [1.0, nan, -inf, -inf],
        [inf, nan, inf, -inf],
    ):
        assert not compare_to_reference(torch.tensor(wrong), expected, bound).ok


def test_a_bound_of_zero_means_exact():
    expected, zero = torch.tensor([0.5], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    assert compare_to_reference(torch.tensor([0.5]), expected, zero).ok
    assert not compare_to_reference(torch.tensor([0.5000001]), expected, zero).ok


def test_ulp_distance():
    one = torch.tensor([1.0], dtype=torch.bfloat16)
    assert int(ulp_distance(one, one + 2.0**-7)) == 1
    assert int(ulp_distance(torch.tensor([0.0]), torch.tensor([-0.0]))) == 0
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    assert int(ulp_distance(tiny, -tiny)) == 2


def test_sha256_is_of_the_elements_in_order():
    a = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert tensor_sha256(a) == tensor_sha256(torch.cat([a, a], 1)[:, :4])
    assert tensor_sha256(a) != tensor_sha256(a.t())


def test_rows_that_depend_on_the_batch_fail():
    class BatchDependent:
        def after(self, inputs, outputs, call):
            if outputs["out"].shape[0] == 7:
                outputs["out"].view(torch.int16).reshape(-1)[0] ^= 1

    op = OPS["gated_pool"]
    case = op.case("r8_d128")
    subject = Fake("gated_pool", BatchDependent())
    rows = [
        r
        for r in against_bits(op, [Pair(subject, subject)], [case], CPU, 1)
        if "row 0" in r.against
    ]
    assert [r.ok for r in rows] == [False]
    assert "in a batch of 7" in rows[0].reason
    honest = Fake("gated_pool")
    rows = [
        r for r in against_bits(op, [Pair(honest, honest)], [case], CPU, 1) if "row 0" in r.against
    ]
    assert [r.ok for r in rows] == [True]
    assert rows[0].runs == 7


def test_a_call_that_a_kernel_does_not_take_is_skipped_and_a_failed_launch_is_not():
    class Raises:
        def __init__(self, error):
            self.error = error

        def before(self, inputs):
            raise self.error

    skipped = check("gated_pool", Raises(NoKernelError("no kernel takes this call")))
    assert skipped.skipped
    assert skipped.ok is None
    for error in (
        GpuError("launching: the driver says no"),
        ArgumentError("gated_pool: kv must be [B, R, D]"),  # a check of ours that refuses a case
        ArgumentTypeError("go takes n (i32), and it was not given"),
    ):
        failed = check("gated_pool", Raises(error))
        assert failed.ok is False
        assert not failed.skipped
        assert failed.reason == str(error)


def test_placement_pads_shifts_and_keeps_aliases():
    x = torch.arange(12.0).view(3, 4)
    case = Case("c", {}, (), {"x_pad": 3, "x_offset": 1, "x_row_offset": 2})
    placed = place_inputs({"x": x, "y": x, "n": 3}, case, CPU)
    assert torch.equal(placed["x"], x)
    assert placed["x"].stride() == (7, 1)
    assert placed["x"].storage_offset() == 1 + 2 * 7
    assert placed["y"] is placed["x"]
    assert placed["n"] == 3
    memory = torch.as_strided(placed["x"], (35,), (1,), 0)
    assert int(torch.isnan(memory).sum()) == len(memory) - 12


MANY = 30_000  # rows or tokens: seconds each to make


def test_every_case_of_every_op_makes_inputs_that_its_op_takes():
    from sparsekit.operators.arguments import bind, checked_call

    for op in OPS.values():
        reference = load_reference(op)
        for case in op.cases:
            if "perf" in case.tags or max(case.dims.values()) >= MANY:
                continue
            inputs = place_inputs(reference.make_inputs(case, op.probes[0]), case, CPU)
            checked_call(op, bind(op, [], inputs), None)


POOLS = {
    "sparse_prefill": ("small_512", "kv"),
    "sparse_attn_paged": ("prefill_small", "window_pool"),
    "sparse_attn_paged_fp8": ("decode_small", "window_pool"),
}


@pytest.mark.parametrize("op", OPS)
def test_unlisted_rows_hold_nan_and_results_do_not(op):
    if op not in POOLS:
        pytest.skip("it has no pool of rows")
    case, name = POOLS[op]
    reference = load_reference(OPS[op])
    inputs = reference.make_inputs(OPS[op].case(case), "random")
    pool = inputs[name]
    if pool.dtype == torch.uint8:
        pool = unpack(pool, inputs["window_page_size"])
    assert bool(torch.isnan(pool).any())
    assert bool(torch.isfinite(reference.reference(inputs)["out"]).all())


def test_results_say_nothing_ran_when_everything_is_skipped():
    class Refuses:
        kernel, variant, arch = "fake", "plain", None

        def turns(self, repeat):
            return repeated(self, repeat)

        def compute(self, inputs, outputs):
            raise NoKernelError("never")

    op = OPS["gated_pool"]
    results = list(against_reference(op, [Refuses()], [op.case("r8_d128")], CPU, 1))
    assert [r.skipped for r in results] == [True]


def test_memory_that_runs_out_skips_what_needed_it():
    class Exhausts:
        def before(self, inputs):
            raise torch.OutOfMemoryError("no memory")

    case = OPS["gated_pool"].case(SMALL["gated_pool"])
    for results, against in (
        (
            against_bits(
                OPS["gated_pool"], [Pair(*[Fake("gated_pool", Exhausts())] * 2)], [case], CPU, 1
            ),
            "itself",
        ),
        (
            against_reference(OPS["gated_pool"], [Fake("gated_pool", Exhausts())], [case], CPU, 1),
            "float64",
        ),
    ):
        found = list(results)
        assert found
        assert all(r.skipped and "no memory" in r.reason for r in found)
        assert found[0].against == against


def test_the_user_s_tensors_of_a_wrong_rank_are_an_error():
    with pytest.raises(UsageError, match=r"mine: kv must be \[B, R, D\], found shape \[3, 4\]"):
        user_workload(OPS["gated_pool"], {"kv": torch.zeros(3, 4)}, "mine", CPU)


@pytest.mark.parametrize(
    ("results", "named", "code"),
    [
        ("a+", True, 0), ("a+ b+", True, 0), ("a+ b-", False, 1), ("a? b?", False, 2),
        ("", False, 2), ("a+ b?", False, 0), ("a+ b?", True, 2), ("a+ a?", True, 0),
        ("a? b-", True, 1),
    ],
)  # fmt: skip
def test_what_never_ran_is_no_success(results, named, code):
    """+ ok, - wrong, ? skipped, by kernel."""
    blank = VerifyResult("op", "", "v", None, None, "cuda:0", "c", "float64", runs=1)
    states = {"+": {"ok": True}, "-": {"ok": False}, "?": {"skipped": True}}
    found = [replace(blank, kernel=r[0], **states[r[1]]) for r in results.split()]
    assert _exit_code(found, named=named) == code


def test_a_bound_that_is_not_finite_allows_nothing():
    one = torch.ones(1, dtype=torch.float64)
    assert not compare_to_reference(torch.zeros(1), one, one * torch.inf).ok
    assert not compare_to_reference(torch.ones(1), one, one * torch.nan).ok


def test_scores_that_are_not_finite_leave_the_other_heads_bounded():
    class Shifts:
        """lse is off by 1000 wherever it is finite."""

        def after(self, inputs, outputs, calls):
            outputs["lse"][torch.isfinite(outputs["lse"])] += 1000

    for case in ("inf_listed", "nan_listed"):
        assert check("sparse_prefill", None, case=case).ok
        assert check("sparse_prefill", Shifts(), case=case).ok is False


@pytest.mark.parametrize("out_dtype", ["fp32", "bf16", "fp16"])
def test_tiny_results_are_held_to_their_type(out_dtype):
    module = load_reference(OPS["gated_pool"])
    inputs = {"kv": torch.full((1, 4, 8), 2.0**-22), "score": torch.zeros(1, 4, 8)}
    expected = module.reference({**inputs, "out_dtype": out_dtype})
    bound = module.tolerance({**inputs, "out_dtype": out_dtype}, expected)["out"]
    right = expected["out"].to(getattr(torch, {"fp32": "float32"}.get(out_dtype, "bfloat16")))
    assert compare_to_reference(right, expected["out"], bound).ok
    assert not compare_to_reference(torch.zeros_like(right), expected["out"], bound).ok


def test_a_value_that_overflows_its_type_is_that_infinity():
    big = torch.tensor([70_000.0, -70_000.0], dtype=torch.float64)
    bound = big.abs() * 2**-11
    right, wrong = torch.tensor([1.0, -1.0]) * torch.inf, torch.tensor([1.0, 1.0]) * torch.inf
    assert compare_to_reference(right.half(), big, bound).ok
    assert not compare_to_reference(wrong.half(), big, bound).ok
    assert not compare_to_reference(right.half(), big / 2, bound).ok


def test_relative_differences_are_numbers():
    tiny = torch.tensor([1e-310], dtype=torch.float64)
    for found in (compare_to_reference(torch.ones(1), tiny, tiny),
                  compare_bits(torch.ones(1), torch.zeros(1))):  # fmt: skip
        assert found.max_rel is not None
        assert json.loads(json.dumps(found.max_rel, allow_nan=False)) > 1e30


@pytest.mark.parametrize("place", ["value", "padding", "end"])
def test_an_input_that_a_launch_changed_is_a_failure(place):
    class Writes:
        def after(self, inputs, outputs, calls):
            q = inputs["q"]
            offset = {"value": 5, "padding": q.shape[-1] + 1, "end": None}[place]
            memory = torch.empty(0, dtype=q.dtype).set_(q.untyped_storage())
            memory[q.storage_offset() + offset if offset else -1] = 3

    case = "small_576"  # its q is padded
    result = check("sparse_prefill", Writes(), case=case)
    assert result.ok is False
    assert "input q was changed" in result.outputs["out"].problem


def test_a_write_two_rows_past_an_output_is_seen():
    guarded = guarded_output((4, 128, 512), torch.bfloat16, CPU)
    guarded.view.fill_(1)
    assert guarded.problem() is None
    past = guarded.view.storage_offset() + guarded.view.numel() + 2 * 128 * 512 - 1
    guarded.memory[past] = 1
    assert guarded.problem() == "it was written outside its bounds"
