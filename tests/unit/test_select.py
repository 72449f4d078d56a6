"""Choosing what runs a call, by facts alone; and the facts that torch tensors give."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from sparsekit.discover import Catalog
from sparsekit.model import Call, Kernel
from sparsekit.model.call import Device, packed_strides
from sparsekit.runtime.select import Decision, decide
from sparsekit.runtime.tensors import facts

H200 = Device((9, 0), sm_count=132, shared_bytes_optin=232448)


def prefill_call(
    h_q: int = 64, s_q: int = 4, topk: int = 128, d_qk: int = 576, **changed: tuple[int, ...]
) -> Call:
    """A call of sparse_prefill on packed tensors; changed: the strides of tensors by name."""
    shapes = {
        "q": (s_q, h_q, d_qk), "kv": (300, 1, d_qk), "indices": (s_q, 1, topk),
        "out": (s_q, h_q, 512), "max_logits": (s_q, h_q), "lse": (s_q, h_q),
    }  # fmt: skip
    types = {"q": "bf16", "kv": "bf16", "indices": "i32", "out": "bf16"}
    return Call(
        dims={"s_q": s_q, "h_q": h_q, "d_qk": d_qk, "s_kv": 300, "h_kv": 1, "topk": topk},
        dtypes={name: types.get(name, "fp32") for name in shapes},
        shapes=shapes,
        strides={**{n: packed_strides(s) for n, s in shapes.items()}, **changed},
        alignments=dict.fromkeys(shapes, 256),
        scalars={"sm_scale": 0.1, "d_v": 512},
        device=H200,
    )


@cache
def kernels_of(reference: str) -> list[tuple[Kernel, tuple[str, ...]]]:
    return [(c.kernel, c.variants) for c in Catalog().resolve([reference])]


def decisions(
    call: Call, reference: str = "cu/sparse_prefill", *, batch_invariant: bool = True
) -> list[Decision]:
    return list(decide(kernels_of(reference), call, batch_invariant=batch_invariant))


def taken(call: Call, reference: str = "cu/sparse_prefill") -> str | None:
    return next((d.subject for d in decisions(call, reference) if d.taken), None)


def taken_by_batch(call: Call, reference: str) -> Decision:
    """What is taken where the choice may look at the batch."""
    return next(d for d in decisions(call, reference, batch_invariant=False) if d.taken)


def test_few_heads_take_the_narrow_block_and_many_the_wide_one():
    assert taken(prefill_call(16)) == "sparse_prefill:skip_heads32 [d_qk576] sm_90"
    assert taken(prefill_call(33)) == "sparse_prefill:skip [d_qk576] sm_90"


@pytest.mark.parametrize(
    ("h_q", "kernel"),
    [
        (1, "sparse_prefill_sm90_few:skip_heads8"), (8, "sparse_prefill_sm90_few:skip_heads8"),
        (9, "sparse_prefill_sm90_few:skip_heads16"), (16, "sparse_prefill_sm90_few:skip_heads16"),
        (17, "sparse_prefill_sm90_few:skip_heads32"), (32, "sparse_prefill_sm90_few:skip_heads32"),
        (33, "sparse_prefill_sm90:skip"), (128, "sparse_prefill_sm90:skip"),
    ],
)  # fmt: skip
def test_the_op_on_hopper_takes_the_kernel_for_few_heads_where_they_are_few(h_q, kernel):
    found = next(d for d in decisions(prefill_call(h_q), "sparse_prefill") if d.taken)
    made_for = "fits; made for at most 32 heads, it goes before kernels that take more"
    assert found.subject == f"{kernel} [d_qk576] sm_90a"
    assert found.reason == (made_for if h_q <= 32 else "fits")


def test_a_kernel_named_takes_what_it_can_whatever_another_was_made_for():
    sm90 = "sparse_prefill_sm90:skip [d_qk576] sm_90a"
    assert taken(prefill_call(8), "cu/sparse_prefill_sm90") == sm90
    assert taken(prefill_call(33), "cu/sparse_prefill_sm90_few") is None
    few = taken(prefill_call(8), "cu/sparse_prefill_sm90_few:noskip_heads32")
    assert few == "sparse_prefill_sm90_few:noskip_heads32 [d_qk576] sm_90a"


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        ("out", (16 * 64 * 512, 512, 1)), ("out", (64 * 1024, 1024, 1)), ("lse", (65, 1)),
        ("max_logits", (128, 1)),
    ],
)  # fmt: skip
def test_a_stride_that_the_kernel_is_not_told_must_be_the_packed_one(tensor, strides):
    call = prefill_call(**{tensor: strides})
    assert taken(call) is None
    reasons = {d.reason for d in decisions(call) if "for calls of" not in d.reason}
    assert all(f"takes {tensor} with stride" in r or "compiled for" in r for r in reasons)
    assert any(".contiguous()" in r for r in reasons)


def test_strides_that_it_is_told_may_be_any():
    padded = prefill_call(q=(64 * 584, 584, 1), kv=(600, 576, 1), indices=(131, 128, 1))
    assert taken(padded) == taken(prefill_call())


def test_the_stride_of_a_dim_of_one_element_is_never_looked_at():
    q = torch.empty(1, 64, 576, dtype=torch.bfloat16).as_strided((1, 64, 576), (9219, 576, 1))
    assert facts({"q": q, "absent": None}) == {
        "dtypes": {"q": "bf16"},
        "shapes": {"q": (1, 64, 576)},
        "strides": {"q": (64 * 576, 576, 1)},
        "alignments": {"q": facts({"q": q})["alignments"]["q"]},
    }
    call = prefill_call(out=(7, 512, 1))
    one = replace(call, shapes={**call.shapes, "out": (1, 64, 512)})
    assert taken(one) == taken(prefill_call())


def test_a_variant_s_own_reason_is_told_once():
    told = [d for d in decisions(prefill_call(64)) if d.subject == "sparse_prefill:skip_heads32"]
    assert [d.reason for d in told] == ["it is for calls of at most 32 heads, found 64"]


def test_a_pointer_to_other_elements_than_the_tensor_s_is_no_fit():
    call = prefill_call()
    call = replace(call, dtypes={**call.dtypes, "q": "fp32"})
    assert taken(call) is None
    reasons = [d.reason for d in decisions(call)]
    assert "sparse_prefill_fwd takes q in bf16, found fp32" in reasons


def paged_call(
    m: int, d: int = 512, h: int = 64, b: int = 2, topk: int = 640, **changed: tuple[int, ...]
) -> Call:
    """A call of sparse_attn_paged on packed tensors; changed: the strides of tensors by name."""
    shapes = {
        "q": (b, m, h, d), "window_pool": (300, d), "cmp_pool": (400, d), "attn_sink": (h,),
        "topk_idxs": (b, m, topk), "out": (b, m, h, d),
    }  # fmt: skip
    types = {"attn_sink": "fp32", "topk_idxs": "i32"}
    return Call(
        dims={"b": b, "m": m, "h": h, "d": d, "n_win": 300, "n_cmp": 400, "topk": topk},
        dtypes={name: types.get(name, "bf16") for name in shapes},
        shapes=shapes,
        strides={**{n: packed_strides(s) for n, s in shapes.items()}, **changed},
        alignments=dict.fromkeys(shapes, 256),
        scalars={"softmax_scale": 0.04, "n_window": 128},
        device=H200,
    )


def paged_taken(call: Call) -> str:
    found = next(d for d in decisions(call, "sparse_attn_paged") if d.taken)
    return found.subject.split(" ")[0]


def test_paged_prefill_on_hopper_takes_the_kernel_for_it():
    assert paged_taken(paged_call(2)) == "sparse_attn_paged_sm90:skip"
    padded = paged_call(2, q=(2 * 64 * 520, 64 * 520, 520, 1), cmp_pool=(536, 1))
    assert paged_taken(padded) == "sparse_attn_paged_sm90:skip"


@pytest.mark.parametrize(
    "call",
    [
        paged_call(2, d=256), paged_call(1, d=256), paged_call(2, window_pool=(516, 1)),
        paged_call(2, cmp_pool=(2**31, 1)), paged_call(2, out=(2 * 64 * 520, 64 * 520, 520, 1)),
        replace(paged_call(2), alignments={**paged_call(2).alignments, "cmp_pool": 8}),
    ],
    ids=["narrow", "narrow decode", "odd stride", "far rows", "out in a view", "misaligned"],
)  # fmt: skip
def test_what_it_does_not_take_another_kernel_does(call):
    told = [d for d in decisions(call, "cu/sparse_attn_paged_sm90") if d.taken]
    assert told == []
    assert not paged_taken(call).startswith("sparse_attn_paged_sm90:")


def on(capability: tuple[int, int], call: Call) -> Call:
    return replace(call, device=replace(H200, compute_capability=capability))


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (10, 0), (11, 0), (12, 0)])
@pytest.mark.parametrize("m", [1, 2])
def test_where_no_cuda_kernel_is_bf16_goes_before_tf32_for_more_heads_than_a_block(capability, m):
    assert paged_taken(on(capability, paged_call(m))) == "sparse_attn_paged_bf16:heads64"
    few, narrow = paged_call(m, h=16), paged_call(m, d=256)
    assert [paged_taken(on(capability, c)) for c in (few, narrow)] == [
        "sparse_attn_paged:hint16"
    ] * 2
    reasons = [d.reason for d in decisions(on(capability, few), "triton/sparse_attn_paged_bf16")]
    assert "it is for more than 16 heads, found 16" in reasons


@pytest.mark.parametrize(("m", "kernel"), [(1, "decode_sm90:folded"), (2, "sm90:skip")])
def test_on_hopper_the_cuda_kernels_go_before_bf16(m, kernel):
    assert paged_taken(paged_call(m)) == f"sparse_attn_paged_{kernel}"


BATCHES = (1, 2, 3, 7, 8, 31, 32, 64, 132, 133, 8192)


@pytest.mark.parametrize("h", [16, 64, 128])
def test_one_query_a_row_is_for_the_decode_kernel_in_every_batch_and_it_says_why(h):
    for b in BATCHES:
        found = next(d for d in decisions(paged_call(1, h=h, b=b), "sparse_attn_paged") if d.taken)
        assert found.subject == "sparse_attn_paged_decode_sm90:folded [only] sm_90a"
        assert found.reason == (
            "fits; made for one query a row, it goes before kernels that take more"
        )


def test_the_prefill_kernel_takes_one_query_a_row_when_it_is_named_or_decode_cannot():
    skip = "sparse_attn_paged_sm90:skip [d512] sm_90a"
    assert taken(paged_call(1), "cu/sparse_attn_paged_sm90") == skip
    told = decisions(paged_call(1), "sparse_attn_paged")
    order = list(dict.fromkeys(d.subject.partition(":")[0] for d in told))
    assert order == [
        "sparse_attn_paged_decode_sm90", "sparse_attn_paged_sm90", "sparse_attn_paged_bf16",
        "sparse_attn_paged",
    ]  # fmt: skip


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("h", [8, 64])
def test_no_choice_looks_at_the_batch(capability, h):
    """Over every op and both ways of selecting by m."""
    for m in (1, 2):
        for topk in (128, 640, 2048):
            calls = [on(capability, paged_call(m, h=h, b=b, topk=topk)) for b in BATCHES]
            assert len({taken(c, "sparse_attn_paged") for c in calls}) == 1
    for topk in (128, 2048):
        calls = [on(capability, prefill_call(h, s_q, topk)) for s_q in BATCHES]
        assert len({taken(c, "sparse_prefill") for c in calls}) == 1
    pools = [on(capability, pool_call(b)) for b in BATCHES]
    assert len({taken(c, "gated_pool") for c in pools}) == 1


@pytest.mark.parametrize(
    ("b", "h", "topk", "pairs"),
    [
        (8, 64, 640, None), (31, 64, 640, None), (32, 64, 640, 64), (64, 64, 640, 128),
        (8192, 64, 640, 16384), (64, 64, 513, 128), (64, 64, 512, None), (64, 64, 641, None),
        (64, 64, 128, None), (15, 128, 640, None), (16, 128, 640, 64), (32, 16, 640, None),
        (64, 16, 640, 64), (0, 64, 640, None),
    ],
)  # fmt: skip
def test_by_the_batch_many_rows_of_one_query_go_to_the_prefill_kernel(b, h, topk, pairs):
    found = taken_by_batch(paged_call(1, h=h, b=b, topk=topk), "sparse_attn_paged")
    if pairs is None:
        assert found.subject == "sparse_attn_paged_decode_sm90:folded [only] sm_90a"
        assert "made for one query a row" in found.reason
    else:
        assert found.subject == "sparse_attn_paged_sm90:skip [d512] sm_90a"
        assert found.reason == (
            f"fits; faster than decode from 64 pairs of a row and 32 heads on, found {pairs}, and "
            "the choice may look at the batch"
        )


def test_what_prefers_a_call_and_cannot_take_it_leaves_it_to_the_others():
    misaligned_call = misaligned(paged_call(1, b=64), "cmp_pool", "column")
    told = decisions(misaligned_call, "sparse_attn_paged", batch_invariant=False)
    assert told[0].subject.startswith("sparse_attn_paged_sm90:skip")
    assert "cmp_pool at a multiple of 16 bytes" in told[0].reason
    assert next(d for d in told if d.taken).subject.startswith("sparse_attn_paged:plain")
    elsewhere = on((8, 0), paged_call(1, b=64))
    told = decisions(elsewhere, "sparse_attn_paged", batch_invariant=False)
    assert next(d for d in told if d.taken).subject == taken(elsewhere, "sparse_attn_paged")


@pytest.mark.parametrize("d_qk", [512, 576])
@pytest.mark.parametrize(
    ("s_q", "h_q", "topk", "items"),
    [
        (1, 128, 2048, 16), (8, 128, 2048, 128), (9, 128, 2048, None), (64, 128, 2048, None),
        (16, 64, 2048, 128), (17, 64, 2048, None), (1, 33, 1793, 8), (1, 128, 1792, None),
        (1, 128, 2049, None), (1, 32, 2048, None),
    ],
)  # fmt: skip
def test_by_the_batch_few_tokens_are_cut_into_parts(s_q, h_q, topk, items, d_qk):
    call = prefill_call(h_q, s_q, topk, d_qk)
    found = taken_by_batch(call, "sparse_prefill")
    if items is None:
        assert found.subject == taken(call, "sparse_prefill")
        assert "split" not in found.subject
    else:
        assert found.subject == f"sparse_prefill_sm90_split:split [d_qk{d_qk}] sm_90a"
        assert found.reason == (
            f"fits; faster than whole rows for at most 128 parts of them, found {items}, and the "
            "choice may look at the batch"
        )


DECODE = "cu/sparse_attn_paged_decode_sm90"


def decode_call(b: int, topk: int) -> Call:
    call = paged_call(1)
    return replace(call, dims={**call.dims, "b": b, "topk": topk})


@pytest.mark.parametrize(
    ("variant", "most", "topk", "columns"),
    [
        ("block16", 192, 128, 128), ("block16", 192, 129, 160), ("block16", 192, 192, 192),
        ("block16", 192, 193, 224), ("pair16", 384, 193, 224), ("pair16", 384, 384, 384),
        ("pair16", 384, 385, 448), ("pair16", 384, 720, 720),
    ],
)  # fmt: skip
def test_blocks_that_have_a_row_whole_take_those_that_fit(variant, most, topk, columns):
    (found,) = [d for d in decisions(decode_call(1, topk), f"{DECODE}:{variant}") if d.reason]
    assert found.taken == (columns <= most)
    if not found.taken:
        assert found.reason.endswith(f"at most {most} columns, found {columns}")


@pytest.mark.parametrize(
    ("b", "topk", "entry"),
    [
        (4, 128, "spread16_narrow"), (5, 128, "block16"), (8, 192, "block16"),
        (999, 128, "block16"), (4, 384, "spread16_narrow"), (5, 384, "pair16"),
        (8, 193, "pair16"), (33, 384, "pair16"), (34, 384, "serial32"), (64, 384, "serial32"),
        (8, 640, "spread32"), (64, 640, "serial32"),
    ],
)  # fmt: skip
def test_short_rows_have_a_block_or_two_each_where_clusters_are_many(b, topk, entry):
    (choice,) = Catalog().resolve([DECODE])
    variant = next(v for v in choice.kernel.variants if v.name == "folded")
    (launch,) = choice.kernel.launches(variant, decode_call(b, topk))
    assert launch.entry == f"sparse_attn_paged_decode_{entry}"


@pytest.mark.parametrize("name", ["folded16", "folded32", "serial", "block16", "pair16"])
@pytest.mark.parametrize("b", [1, 8, 64])
def test_a_way_that_is_named_is_always_gone(name, b):
    (choice,) = Catalog().resolve([DECODE])
    variant = next(v for v in choice.kernel.variants if v.name == name)
    (launch,) = choice.kernel.launches(variant, decode_call(b, 128))
    entries = {"folded16": "spread16_narrow", "folded32": "spread32", "serial": "serial32"}
    assert launch.entry == f"sparse_attn_paged_decode_{entries.get(name, name)}"


POOLS = ("window_pool", "cmp_pool")


def misaligned(call: Call, pool: str, how: str) -> Call:
    """The call with a pool that is a view: from another column of its rows, or of longer rows."""
    if how == "column":
        return replace(call, alignments={**call.alignments, pool: 2})
    return replace(call, strides={**call.strides, pool: (call.dims["d"] + 4, 1)})


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("how", ["column", "rows"])
def test_a_misaligned_pool_is_for_the_kernel_that_assumes_nothing_and_says_why(
    capability, m, pool, how
):
    told = decisions(on(capability, misaligned(paged_call(m), pool, how)), "sparse_attn_paged")
    first = next(i for i, d in enumerate(told) if d.taken)
    assert told[first].subject.startswith("sparse_attn_paged:plain [d512,has_cmp_counts0,has_lse0]")
    passed_over = told[:first]
    kernels = {"sparse_attn_paged_bf16", "sparse_attn_paged"}
    if capability == (9, 0):
        kernels.add("sparse_attn_paged_sm90")
    if capability == (9, 0) and m == 1:
        kernels.add("sparse_attn_paged_decode_sm90")
    wanted = {
        "column": (f"{pool} at a multiple of 16 bytes, found", f"{pool} must lie at a multiple"),
        "rows": (f"{pool}.stride(0) to be a multiple of", f"row stride of {pool} must be"),
    }[how]
    saying = [d for d in passed_over if any(w in d.reason for w in wanted)]
    assert {d.subject.partition(":")[0] for d in saying} == kernels


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("reference", "m"),
    [
        ("cu/sparse_attn_paged_sm90", 1), ("cu/sparse_attn_paged_sm90", 2),
        ("cu/sparse_attn_paged_decode_sm90", 1),
        ("triton/sparse_attn_paged_bf16", 1), ("triton/sparse_attn_paged_bf16", 2),
        ("sparse_attn_paged:hint16", 1), ("sparse_attn_paged:hint16", 2),
    ],
)  # fmt: skip
def test_a_kernel_that_was_named_refuses_a_misaligned_pool(reference, m, pool):
    assert taken(paged_call(m), reference) is not None
    for how in ("column", "rows"):
        told = decisions(misaligned(paged_call(m), pool, how), reference)
        assert not any(d.taken for d in told)
        assert any(pool in d.reason for d in told)


def pool_call(b: int = 3, **alignments: int) -> Call:
    """A call of gated_pool on packed tensors in the model's element types."""
    shapes = {"kv": (b, 8, 512), "score": (b, 8, 512), "out": (b, 1, 512)}
    return Call(
        dims={"B": b, "R": 8, "D": 512},
        dtypes={"kv": "fp32", "score": "fp32", "out": "bf16"},
        shapes=shapes,
        strides={n: packed_strides(s) for n, s in shapes.items()},
        alignments={**dict.fromkeys(shapes, 256), **alignments},
        scalars={},
        device=H200,
    )


@pytest.mark.parametrize("tensor", ["kv", "score"])
def test_a_misaligned_view_is_pooled_by_an_instance_that_assumes_nothing(tensor):
    fits, shifted = pool_call(), pool_call(**{tensor: 4})
    assert taken(fits, "gated_pool") == taken(shifted, "gated_pool")  # it loads single elements
    aligned = "kv_fp32,score_fp32,out_bf16,aligned"
    assert taken(fits, "triton/gated_pool") == f"gated_pool:unroll2 [{aligned}] sm_90a"
    told = decisions(shifted, "triton/gated_pool")
    reason = f"it assumes {tensor} at a multiple of 16 bytes, found an address divisible by 4 only"
    assert reason in [d.reason for d in told]
    plain = aligned.removesuffix(",aligned")
    assert next(d for d in told if d.taken).subject == f"gated_pool:unroll2 [{plain}] sm_90a"
