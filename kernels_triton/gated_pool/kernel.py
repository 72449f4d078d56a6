"""Softmax-weighted mean over the rows of a group, column by column: out[b, d] = sum_r kv[b, r, d] softmax_r(score[b, :, d]).

Every variant walks r upwards with the same roundings, so all of them give the same bits:
m = max_r s, w_r = ex2.approx((s_r - m) log2(e)), den += w_r, num = fma(w_r, kv_r, num), out = div.full(num, den).
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
    """One program: BLOCK_D columns of one group. Grid x: group-major, the column blocks of a group adjacent."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    column_blocks = tl.cdiv(D, BLOCK_D)
    group = (tl.program_id(0) // column_blocks).to(tl.int64)
    cols = tl.program_id(0) % column_blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    in_row = cols < D
    score_group_ptr = score_ptr + group * score_b_stride + cols
    kv_group_ptr = kv_ptr + group * kv_b_stride + cols

    row_max = tl.full((BLOCK_D,), float("-inf"), tl.float32)
    for r in tl.range(0, R, loop_unroll_factor=UNROLL):
        score = tl.load(score_group_ptr + r * score_r_stride, mask=in_row, other=float("-inf"))
        row_max = tl.maximum(row_max, score.to(tl.float32))
    # Without a finite score nothing is subtracted: -inf - -inf would be NaN.
    shift = tl.where(row_max == float("-inf"), 0.0, row_max)

    den = tl.zeros((BLOCK_D,), tl.float32)
    num = tl.zeros((BLOCK_D,), tl.float32)
    for r in tl.range(0, R, loop_unroll_factor=UNROLL):
        score = tl.load(score_group_ptr + r * score_r_stride, mask=in_row, other=float("-inf"))
        score = score.to(tl.float32)
        kv = tl.load(kv_group_ptr + r * kv_r_stride, mask=in_row, other=0.0).to(tl.float32)
        w = tl.exp2((score - shift) * LOG2_E)
        den += w
        # A weight of 0 does not remove a NaN.
        num = tl.fma(w, tl.where(score == float("-inf"), 0.0, kv), num)
    out = tl.where(den == 0.0, 0.0, num / den)
    tl.store(out_ptr + group * out_b_stride + cols, out.to(out_ptr.dtype.element_ty), mask=in_row)
