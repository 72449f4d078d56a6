"""Softmax-weighted mean over the rows of a group, each column by itself.

    out[b, d] = sum_r kv[b, r, d] softmax_r(score[b, :, d])

Every variant walks r upwards from 0 with the same roundings, so all give the same bits:

    top = max_r score_r                               exact, NaN if one is
    w_r = ex2.approx((score_r - top) log2(e))         difference and product each rounded
    den += w_r;  num = fma(w_r, kv_r, num)
    out = div.full(num, den)                          then rounded once to the type of out
"""

import triton
import triton.language as tl


@triton.jit
def gated_pool_fwd(
    kv_ptr,
    score_ptr,
    out_ptr,
    R,
    D,
    kv_b_stride,
    kv_r_stride,
    score_b_stride,
    score_r_stride,
    out_b_stride,
    BLOCK_D: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """BLOCK_D columns of one group. Grid x: groups x column blocks, those of a group adjacent."""
    column_blocks = tl.cdiv(D, BLOCK_D)
    group = (tl.program_id(0) // column_blocks).to(tl.int64)
    cols = tl.program_id(0) % column_blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    in_row = cols < D
    score_group_ptr = score_ptr + group * score_b_stride
    kv_group_ptr = kv_ptr + group * kv_b_stride

    top = tl.full((BLOCK_D,), float("-inf"), tl.float32)
    score_row_ptr = score_group_ptr
    for _ in tl.range(0, R, loop_unroll_factor=UNROLL):
        score = tl.load(score_row_ptr + cols, mask=in_row, other=float("-inf"))
        top = tl.maximum(top, score.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
        score_row_ptr += score_r_stride

    den = tl.zeros((BLOCK_D,), tl.float32)
    num = tl.zeros((BLOCK_D,), tl.float32)
    score_row_ptr = score_group_ptr
    kv_row_ptr = kv_group_ptr
    for _ in tl.range(0, R, loop_unroll_factor=UNROLL):
        score = tl.load(score_row_ptr + cols, mask=in_row, other=float("-inf"))
        kv = tl.load(kv_row_ptr + cols, mask=in_row, other=0.0).to(tl.float32)
        score = score.to(tl.float32)
        score_row_ptr += score_r_stride
        kv_row_ptr += kv_r_stride
        w = tl.exp(score - top)
        den += w
        # A weight of 0 would keep a NaN in kv.
        num = tl.fma(w, tl.where(score != float("-inf"), kv, 0.0), num)
    out = tl.where(top == float("-inf"), 0.0, num / den)
    tl.store(out_ptr + group * out_b_stride + cols, out.to(out_ptr.dtype.element_ty), mask=in_row)
