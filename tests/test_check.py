"""The checkers must fail what is wrong: faulty kernels of every kind, on the CPU."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace

import pytest
import torch

from sparsekit.check.campaign import Pair, against_bits, against_reference, load_reference
from sparsekit.check.compare import compare_bits, compare_to_reference, sha256_of, ulp_distance
from sparsekit.check.placement import guarded_output, place_inputs
from sparsekit.check.subject import Ran
from sparsekit.check.verify import make_workload, verify_reference
from sparsekit.discover import Catalog
from sparsekit.errors import ArgumentError, GpuError
from sparsekit.model.op import Case

CPU = torch.device("cpu")
OPS = Catalog().ops
SMALL = {
    "sparse_prefill": "length_576",
    "sparse_attn_paged": "prefill_padded",
    "gated_pool": "special",
}


@dataclass
class Fake:
    """A kernel that computes the op from the float64 reference, then does something wrong."""

    op: str
    fault: object = None
    kernel: str = "fake"
    variant: str = "plain"
    calls: int = field(default=0, compare=False)

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
    assert sha256_of(a) == sha256_of(torch.cat([a, a], 1)[:, :4])
    assert sha256_of(a) != sha256_of(a.t())


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

    skipped = check("gated_pool", Raises(ArgumentError("no kernel takes this call")))
    assert skipped.skipped
    assert skipped.ok is None
    failed = check("gated_pool", Raises(GpuError("launching: the driver says no")))
    assert failed.ok is False
    assert not failed.skipped


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


def test_every_case_of_every_op_makes_inputs_that_its_op_takes():
    from sparsekit.operators.arguments import bind, checked_call

    for op in OPS.values():
        reference = load_reference(op)
        for case in op.cases:
            if "perf" in case.tags or case.name.startswith(("tokens_6", "groups_", "far")):
                continue
            inputs = place_inputs(reference.make_inputs(case, op.probes[0]), case, CPU)
            checked_call(op, bind(op, [], inputs), None)


@pytest.mark.parametrize("op", OPS)
def test_unlisted_rows_hold_nan_and_results_do_not(op):
    if op == "gated_pool":
        pytest.skip("it has no pool of rows")
    case = OPS[op].case("small_512" if op == "sparse_prefill" else "prefill_small")
    reference = load_reference(OPS[op])
    inputs = reference.make_inputs(case, "random")
    pool = inputs["kv"] if op == "sparse_prefill" else inputs["window_pool"]
    assert bool(torch.isnan(pool).any())
    assert bool(torch.isfinite(reference.reference(inputs)["out"]).all())


def test_results_say_nothing_ran_when_everything_is_skipped():
    class Refuses:
        kernel, variant = "fake", "plain"

        def compute(self, inputs, outputs):
            raise ArgumentError("never")

    op = OPS["gated_pool"]
    results = list(against_reference(op, [Refuses()], [op.case("r8_d128")], CPU, 1))
    assert [r.skipped for r in results] == [True]
