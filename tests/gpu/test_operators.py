"""On a GPU: the callables, their errors, streams, graphs and devices."""

from __future__ import annotations

import pytest
import torch

import sparsekit

pytestmark = pytest.mark.gpu
CUDA = "cuda"


@pytest.fixture(scope="module")
def prefill():
    return sparsekit.load("sparse_prefill")


@pytest.fixture(scope="module")
def paged():
    return sparsekit.load("sparse_attn_paged")


@pytest.fixture(scope="module")
def pool():
    return sparsekit.load("gated_pool")


def prefill_inputs(s_q=4, s_kv=300, h_q=16, d_qk=576, topk=128, device=CUDA):
    torch.manual_seed(s_q + h_q)
    return {
        "q": torch.randn(s_q, h_q, d_qk, device=device, dtype=torch.bfloat16),
        "kv": torch.randn(s_kv, 1, d_qk, device=device, dtype=torch.bfloat16),
        "indices": torch.randint(0, max(s_kv, 1), (s_q, 1, topk), device=device, dtype=torch.int32),
        "sm_scale": d_qk**-0.5,
    }


def paged_inputs(b=3, m=1, h=16, d=512, topk=100, n_window=40, device=CUDA):
    torch.manual_seed(b + h)
    return {
        "q": torch.randn(b, m, h, d, device=device, dtype=torch.bfloat16),
        "window_pool": torch.randn(200, d, device=device, dtype=torch.bfloat16),
        "cmp_pool": torch.randn(300, d, device=device, dtype=torch.bfloat16),
        "attn_sink": torch.randn(h, device=device),
        "topk_idxs": torch.randint(0, 200, (b, m, topk), device=device, dtype=torch.int32),
        "n_window": n_window,
        "softmax_scale": d**-0.5,
    }


def same(a, b) -> bool:
    return all(
        torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True)
    )


def test_the_signature_is_flash_mla_s(prefill):
    i = prefill_inputs()
    sink, length = (
        torch.zeros(16, device=CUDA),
        torch.full((4,), 50, device=CUDA, dtype=torch.int32),
    )
    positional = prefill(i["q"], i["kv"], i["indices"], i["sm_scale"], 512, sink, length)
    named = prefill(**i, d_v=512, attn_sink=sink, topk_length=length)
    assert [tuple(t.shape) for t in positional] == [(4, 16, 512), (4, 16), (4, 16)]
    assert same(positional, named)


@pytest.mark.parametrize("s_q", [1, 64, 65, 128])
@pytest.mark.parametrize("filler", ["valid", "minus one"])
def test_columns_past_topk_length_count_for_nothing(prefill, s_q, filler):
    i = prefill_inputs(s_q=s_q)
    length = torch.full((s_q,), 3, device=CUDA, dtype=torch.int32)
    base = prefill(**i, topk_length=length)
    changed = i["indices"].clone()
    changed[..., 3:] = -1 if filler == "minus one" else changed[..., 3:].flip(-1)
    assert same(base, prefill(**{**i, "indices": changed}, topk_length=length))


def test_lengths_are_clamped_and_never_reach_the_next_row(prefill):
    i = prefill_inputs(s_q=6, topk=64)
    wide = torch.randint(0, 300, (6, 1, 128), device=CUDA, dtype=torch.int32)
    wide[..., :64] = i["indices"]
    lengths = torch.tensor([0, 1, 64, 65, 1000, -1], device=CUDA, dtype=torch.int32)
    out = prefill(**{**i, "indices": wide[..., :64]}, topk_length=lengths)
    clamped = prefill(**i, topk_length=lengths.clamp(0, 64))
    assert same(out, clamped)
    assert not out[0][0].any()
    assert not out[0][5].any()
    assert torch.isposinf(out[2][0]).all()


def test_only_the_valid_index_counts(prefill, paged):
    """Slot 0 holds a huge value and must appear nowhere."""
    bad = [-1, -2, -(2**31), 300, 301, 2147480000] + [-1] * 26
    i = prefill_inputs(s_q=2, topk=33)
    i["kv"][0] = 3e38
    i["indices"] = torch.tensor([[[7, *bad]]] * 2, device=CUDA, dtype=torch.int32)
    out, max_logits, lse = prefill(**i)
    assert torch.equal(out, i["kv"][7, :, :512].expand(2, 16, 512))
    assert torch.equal(max_logits, lse)
    p = paged_inputs(b=2, topk=33, n_window=33)
    p["window_pool"][0] = 3e38
    p["attn_sink"].fill_(float("-inf"))
    p["topk_idxs"] = torch.tensor([[[7, *bad]]] * 2, device=CUDA, dtype=torch.int32)
    assert torch.equal(paged(**p), p["window_pool"][7].expand(2, 1, 16, 512))


def test_empty_calls_launch_nothing_and_keep_their_form(prefill, paged, pool):
    i = prefill_inputs(s_q=0)
    out, max_logits, lse = prefill(**i)
    assert (tuple(out.shape), out.dtype, out.device.type) == ((0, 16, 512), torch.bfloat16, "cuda")
    assert tuple(lse.shape) == (0, 16) == tuple(max_logits.shape)
    p = paged_inputs(b=0)
    out, lse = paged(**p, return_lse=True)
    assert (tuple(out.shape), tuple(lse.shape)) == ((0, 1, 16, 512), (0, 1, 16))
    assert tuple(
        pool(torch.zeros(0, 8, 64, device=CUDA), torch.zeros(0, 8, 64, device=CUDA)).shape
    ) == (0, 1, 64)


def test_no_rows_in_the_pool(prefill):
    i = prefill_inputs(s_kv=0)
    i["indices"].fill_(-1)
    out, max_logits, lse = prefill(**i)
    assert not out.any()
    assert torch.isneginf(max_logits).all()
    assert torch.isposinf(lse).all()


@pytest.mark.parametrize("h_q", [1, 8, 16, 20, 32, 96, 128])
def test_a_token_does_not_depend_on_the_next(prefill, h_q):
    i = prefill_inputs(s_q=2, h_q=h_q)
    both = prefill(**i)
    alone = prefill(**{**i, "q": i["q"][1:], "indices": i["indices"][1:]})
    assert same([t[1:] for t in both], alone)


WRONG = [
    ("indices", lambda t: t.long(), TypeError, "indices must be i32, found i64"),
    ("q", lambda t: t.half(), TypeError, "q must be bf16, found fp16"),
    ("q", lambda t: t.float(), TypeError, "q must be bf16, found fp32"),
    ("kv", lambda t: t.half(), TypeError, "kv must be bf16, found fp16"),
    ("kv", lambda t: t.cpu(), ValueError, "on one device"),
    ("kv", lambda t: t.expand(300, 2, 576), ValueError, "h_kv must be 1|h_kv = 2"),
    ("q", lambda t: t[..., :500], ValueError, "d_qk"),
    ("q", lambda t: t.transpose(0, 2), ValueError, "q"),
    ("indices", lambda t: t[:3], ValueError, "s_q = 4"),
    ("sm_scale", lambda t: float("nan"), ValueError, "sm_scale must be finite"),
    ("sm_scale", lambda t: None, TypeError, "sm_scale"),
    ("d_v", lambda t: 256, ValueError, "d_v must be 512"),
    (
        "topk_length",
        lambda t: torch.zeros(4, device=CUDA, dtype=torch.int64),
        TypeError,
        "topk_length must be i32",
    ),
    ("attn_sink", lambda t: torch.zeros(5, device=CUDA), ValueError, "attn_sink"),
    ("nonsense", lambda t: 1, TypeError, "unknown argument 'nonsense'"),
]


@pytest.mark.parametrize(("name", "change", "kind", "told"), WRONG)
def test_wrong_arguments_are_named_before_any_launch(prefill, name, change, kind, told):
    i = prefill_inputs()
    i[name] = change(i.get(name))
    with pytest.raises(kind, match=told):
        prefill(**i)


def test_strides_that_are_no_multiple_of_eight(prefill):
    i = prefill_inputs()
    memory = torch.zeros(300, 1, 577, device=CUDA, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="strides of kv must be multiples of 8"):
        prefill(**{**i, "kv": memory[..., :576]})
    shifted = torch.zeros(300 * 576 + 1, device=CUDA, dtype=torch.bfloat16)[1:].view(300, 1, 576)
    with pytest.raises(ValueError, match="kv must lie at a multiple of 16 bytes"):
        prefill(**{**i, "kv": shifted})


def test_misaligned_pools(paged):
    """hint16 refuses them by name; unnamed, the variant that assumes nothing is taken."""
    i = paged_inputs()
    shifted = torch.empty(200 * 512 + 1, device=CUDA, dtype=torch.bfloat16)[1:].view(200, 512)
    shifted.copy_(i["window_pool"])
    moved = {**i, "window_pool": shifted}
    hint16 = sparsekit.load("sparse_attn_paged:hint16")
    with pytest.raises(ValueError, match="window_pool"):
        hint16(**moved)
    plain = sparsekit.load("sparse_attn_paged:plain")
    assert same([paged(**moved)], [plain(**i)])
    taken = [d for d in paged.decisions(paged.bind(**moved)) if d.taken]
    assert taken[0].candidate.variant.name == "plain"


def test_the_current_stream_is_used(prefill):
    """What a side stream queued before the call is seen by it; its result, by what follows."""
    i = prefill_inputs(s_q=64)
    expected = prefill(**i)[0].clone()
    stream = torch.cuda.Stream()
    for _ in range(200):
        with torch.cuda.stream(stream):
            q = torch.zeros_like(i["q"])
            torch.cuda._sleep(200_000)
            q.copy_(i["q"])
            out = prefill(**{**i, "q": q})[0].clone()
        stream.synchronize()
        assert torch.equal(out, expected)


def test_graph_capture(paged):
    """Captured after prepare(); the counts that it reads may change between replays."""
    i = paged_inputs(b=8, topk=100, n_window=40)
    counts = torch.full((8, 1), 60, device=CUDA, dtype=torch.int32)
    fresh = sparsekit.load("sparse_attn_paged")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(Exception, match="prepare"), torch.cuda.graph(graph):
        fresh(**i, cmp_counts=counts)
    fresh.prepare(**i, cmp_counts=counts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fresh(**i, cmp_counts=counts)
    for count in (60, 0, 17):
        counts.fill_(count)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, paged(**i, cmp_counts=counts))


def test_a_captured_batch_with_rubbish_in_its_padding_rows(paged):
    """Rows 6 and 7 hold garbage: the replay ends, and rows 0 to 5 are as before."""
    i = paged_inputs(b=8)
    counts = torch.full((8, 1), 60, device=CUDA, dtype=torch.int32)
    paged.prepare(**i, cmp_counts=counts)
    expected = paged(**i, cmp_counts=counts).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged(**i, cmp_counts=counts)
    i["topk_idxs"][6:] = torch.randint(
        -(2**31), 2**31 - 1, (2, 1, 100), device=CUDA, dtype=torch.int64
    ).int()
    counts[6:] = torch.tensor([[2**31 - 1], [-(2**31)]], dtype=torch.int32)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out[:6], expected[:6])


def test_duplicates_count_each_time(prefill):
    i = prefill_inputs(s_q=1, topk=40)
    i["q"].zero_()
    i["indices"].fill_(-1)
    i["indices"][0, 0, :4] = torch.tensor([5, 5, 5, 9])
    out, max_logits, lse = prefill(**i)
    v = i["kv"][:, 0, :512].float()
    assert torch.allclose(out[0, 0].float(), (3 * v[5] + v[9]) / 4, rtol=2**-7, atol=1e-6)
    assert torch.allclose(lse, torch.tensor(4.0, device=CUDA).log())
    assert not max_logits.any()


def test_a_token_in_both_pools_counts_twice(paged):
    i = paged_inputs(b=1, topk=3, n_window=1)
    i["q"].zero_()
    i["cmp_pool"][4] = i["window_pool"][9]
    i["topk_idxs"] = torch.tensor([[[9, 4, 8]]], device=CUDA, dtype=torch.int32)
    i["attn_sink"].fill_(float("-inf"))
    out, lse = paged(**i, return_lse=True)
    expected = (2 * i["window_pool"][9].float() + i["cmp_pool"][8].float()) / 3
    assert torch.allclose(out[0, 0, 0].float(), expected, rtol=2**-7, atol=1e-6)
    assert torch.allclose(lse, torch.tensor(3.0, device=CUDA).log())


def test_tiny_weights_flush_or_stay_but_never_poison(prefill):
    """A score 92 below the largest has weight 1e-40, under 2^-126: it may count as zero."""
    i = prefill_inputs(s_q=1, h_q=1, topk=2, d_qk=512)
    i["q"].fill_(0)
    i["q"][..., 0] = 1
    i["kv"][0, 0, 0], i["kv"][1, 0, 0] = 92.0, 0.0
    i["indices"] = torch.tensor([[[0, 1]]], device=CUDA, dtype=torch.int32)
    out, _, lse = prefill(**{**i, "sm_scale": 1.0})
    assert torch.equal(out[0, 0], i["kv"][0, 0])
    assert abs(float(lse) - 92.0) <= 2**-17  # a unit in the last place of 92


def test_gated_pool_window_by_window(pool):
    """A whole call and one window per call give the same bits (overlapping windows of ratio 4)."""
    torch.manual_seed(0)
    rows, window, step = 32, 8, 4
    kv, score = torch.randn(rows, 128, device=CUDA), torch.randn(rows, 128, device=CUDA)
    for fill in (None, float("-inf"), 0.25):
        if fill is not None:
            score.fill_(fill)
        kvs, scores = (
            kv.unfold(0, window, step).transpose(1, 2),
            score.unfold(0, window, step).transpose(1, 2),
        )
        kvs, scores = kvs.contiguous(), scores.contiguous()
        whole = pool(kvs, scores, "fp32")
        parts = [pool(kvs[g : g + 1], scores[g : g + 1], "fp32") for g in range(len(kvs))]
        assert same([whole], [torch.cat(parts)])
        if fill == 0.25:
            assert torch.allclose(whole[:, 0], kvs.mean(1), atol=1e-6)
        if fill == float("-inf"):
            assert not whole.any()


def test_out_can_be_given(pool):
    kv = torch.randn(3, 8, 64, device=CUDA)
    out = torch.empty(3, 1, 64, device=CUDA)
    assert pool(kv, kv, "fp32", out=out) is out
    assert same([out], [pool(kv, kv, torch.float32)])
    with pytest.raises(TypeError, match="out must be bf16, found fp32"):
        pool(kv, kv, out=out)


def test_outputs_that_are_given_must_be_as_the_kernel_writes_them(prefill):
    i = prefill_inputs(s_q=3)
    whole = torch.zeros(3, 64, 512, device=CUDA, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"takes out with stride\(0\) = 8192 only, found 32768"):
        prefill(**i, out=whole[:, :16])
    assert not whole.any()
    out = torch.empty(3, 16, 512, device=CUDA, dtype=torch.bfloat16)
    assert prefill(**i, out=out)[0] is out
    assert same([out], prefill(**i)[:1])


def test_the_stride_of_a_single_token_is_never_looked_at(prefill):
    i = prefill_inputs(s_q=1)
    odd = i["q"].as_strided((1, 16, 576), (9219, 576, 1))
    assert same(prefill(**i), prefill(**{**i, "q": odd}))


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("b", [1, 64, 65])
def test_columns_past_the_counts_are_never_seen(paged, b, m):
    """Valid indices there, or -1: the same bits."""
    i = paged_inputs(b=b, m=m)
    counts = torch.full((b, m), 3, device=CUDA, dtype=torch.int32)
    found = paged(**i, cmp_counts=counts)
    i["topk_idxs"][..., i["n_window"] + 3 :] = -1
    assert same([found], [paged(**i, cmp_counts=counts)])
    assert same([found], [paged(**i)])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_is_used_and_the_current_one_left_alone(prefill):
    i = prefill_inputs()
    there = {n: t.to("cuda:1") if isinstance(t, torch.Tensor) else t for n, t in i.items()}
    with torch.cuda.device(0):
        expected, found = prefill(**i), prefill(**there)
        assert torch.cuda.current_device() == 0
        assert {t.device.index for t in found} == {1}
        assert same(expected, [t.to("cuda:0") for t in found])
        with pytest.raises(ValueError, match="on one device"):
            prefill(**{**there, "q": i["q"]})
