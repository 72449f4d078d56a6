"""Attention of one latent KV head over listed rows of two pools, with a sink per head.

    out[b, m, h] = sum_k exp(x_k) v_k / (sum_k exp(x_k) + exp(sink_h))
    x_k = softmax_scale <q[b, m, h], v_k>

v_k is row topk_idxs[b, m, k] of the window pool where k < n_window, else of the compressed pool.
A row is one (b, m), a tile BLOCK_K columns k of it, a split BLOCK_SPLIT columns. Products are of
bf16 with fp32 sums.
"""

import triton
import triton.language as tl


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _skip_trailing_columns(
    idxs_row_ptr, first, end, n_window, window_rows, cmp_rows, SCAN_K: tl.constexpr
):
    """end, less the stretches of SCAN_K columns at the end of [first, end) that list nothing.

    first: a multiple of SCAN_K.
    """
    # One stretch at a time and as wide as a warp: the maximum is then one redux.sync, whose result
    # ptxas knows to be uniform.
    live = 0
    while (live == 0) & (end > first):
        start = (end - 1) // SCAN_K * SCAN_K
        cols = start + tl.arange(0, SCAN_K)
        in_list = cols < end
        idx = tl.load(idxs_row_ptr + cols, mask=in_list, other=-1)
        valid = (idx >= 0) & (idx < tl.where(cols < n_window, window_rows, cmp_rows))
        live = tl.max(valid.to(tl.int32), axis=0)
        end = tl.where(live == 0, start, end)
    return end


@triton.jit
def _is_given(ptr):
    return ptr.to(tl.int64) != 0


@triton.jit
def _live_columns(count_ptr, topk, n_window):
    return n_window + tl.minimum(tl.maximum(tl.load(count_ptr), 0), topk - n_window)


@triton.jit
def _listed(idxs_row_ptr, start, end, BLOCK_K: tl.constexpr):
    """The indices of the columns from start on, -1 from end on: [BLOCK_K] i32."""
    cols = start + tl.arange(0, BLOCK_K)
    in_list = cols < end
    return tl.load(idxs_row_ptr + cols, mask=in_list, other=-1)


@triton.jit
def _rows(
    idx,
    start,
    window_pool_ptr,
    cmp_pool_ptr,
    n_window,
    window_rows,
    cmp_rows,
    window_pool_row_stride,
    cmp_pool_row_stride,
    D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The rows of the columns from start on, 0 where idx is not valid, and where it is."""
    cols = start + tl.arange(0, BLOCK_K)
    dims = tl.arange(0, D)
    is_window = cols < n_window
    valid = (idx >= 0) & (idx < tl.where(is_window, window_rows, cmp_rows))
    # One load site for both pools. The address of an index that is not valid may be wild; its mask
    # keeps it from being read.
    pool_ptr = tl.where(is_window, window_pool_ptr, cmp_pool_ptr)
    row_stride = tl.where(is_window, window_pool_row_stride, cmp_pool_row_stride)
    # The select hides from Triton 3.8 and 3.9 that a row starts at a multiple of 16 bytes.
    row_ptr = tl.multiple_of(pool_ptr + idx.to(tl.int64) * row_stride, 16)
    kv = tl.load(row_ptr[:, None] + dims[None, :], mask=valid[:, None], other=0.0)
    return kv, valid


@triton.jit
def _attend(
    q,
    window_pool_ptr,
    cmp_pool_ptr,
    idxs_row_ptr,
    softmax_scale,
    n_window,
    window_rows,
    cmp_rows,
    window_pool_row_stride,
    cmp_pool_row_stride,
    first,
    end,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    P_TERMS: tl.constexpr,
):
    """Online softmax over the columns [first, end).

    q: [BLOCK_H, D] bf16.
    Returns the largest score [BLOCK_H], the sum of exp(score - largest) [BLOCK_H] and the sum of
    exp(score - largest) v [BLOCK_H, D], fp32; -inf, 0 and 0 where no column is valid.
    """
    running_max = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_H,), tl.float32)
    acc = tl.zeros((BLOCK_H, D), tl.float32)
    idx = _listed(idxs_row_ptr, first, end, BLOCK_K)
    next_kv, next_valid = _rows(
        idx,
        first,
        window_pool_ptr,
        cmp_pool_ptr,
        n_window,
        window_rows,
        cmp_rows,
        window_pool_row_stride,
        cmp_pool_row_stride,
        D,
        BLOCK_K,
    )
    idx = _listed(idxs_row_ptr, first + BLOCK_K, end, BLOCK_K)
    for start in range(first, end, BLOCK_K):
        kv, valid = next_kv, next_valid
        next_kv, next_valid = _rows(
            idx,
            start + BLOCK_K,
            window_pool_ptr,
            cmp_pool_ptr,
            n_window,
            window_rows,
            cmp_rows,
            window_pool_row_stride,
            cmp_pool_row_stride,
            D,
            BLOCK_K,
        )
        idx = _listed(idxs_row_ptr, start + 2 * BLOCK_K, end, BLOCK_K)

        # Columns by heads: each warp has all columns of its heads, so that none computes what
        # another does, and the maximum and the sum stay inside a warp.
        x = tl.dot(kv, tl.trans(q)) * softmax_scale
        # Masked after scaling, so that the sign of the scale does not matter.
        score = tl.where(valid[:, None], x, float("-inf"))
        new_max = _max_or_nan(running_max, tl.reduce(score, 0, _max_or_nan))
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp(score - safe_max[None, :])
        alpha = tl.exp(running_max - safe_max)
        # 0 x is 0, but NaN for a score that is not finite: -inf would have the weight 0 unnoticed.
        weight = tl.where(valid[:, None], tl.fma(x, 0.0, p), 0.0)
        running_sum = running_sum * alpha + tl.sum(p, axis=0)
        high = weight.to(tl.bfloat16)
        acc = tl.dot(tl.trans(high), kv, acc * alpha[:, None])
        if P_TERMS == 2:
            low = (weight - high.to(tl.float32)).to(tl.bfloat16)
            acc = tl.dot(tl.trans(low), kv, acc)
        running_max = new_max
    return running_max, running_sum, acc


@triton.jit
def _normaliser(running_max, running_sum, sink):
    """1 / (running_sum + exp(sink - running_max)); 1 where running_sum is 0, whatever the sink."""
    safe_max = tl.where(running_max == float("-inf"), 0.0, running_max)
    total = running_sum + tl.exp(sink - safe_max)
    return 1.0 / tl.where(running_sum == 0.0, 1.0, total)


@triton.jit
def _natural_lse(running_max, running_sum, empty):
    """ln of the sum of exp(score); `empty` where that sum is 0."""
    # A score of +inf makes the sum NaN; its lse is +inf all the same.
    lse = tl.where(running_max == float("inf"), running_max, running_max + tl.log(running_sum))
    return tl.where(running_sum == 0.0, empty, lse)


@triton.jit
def sparse_attn_paged_bf16_prefill(
    q_ptr,
    window_pool_ptr,
    cmp_pool_ptr,
    attn_sink_ptr,
    topk_idxs_ptr,
    cmp_counts_ptr,
    out_ptr,
    lse_ptr,
    softmax_scale,
    m,
    h,
    topk,
    n_window,
    window_rows,
    cmp_rows,
    q_b_stride,
    q_m_stride,
    q_h_stride,
    window_pool_row_stride,
    cmp_pool_row_stride,
    topk_idxs_b_stride,
    topk_idxs_m_stride,
    cmp_counts_b_stride,
    cmp_counts_m_stride,
    out_b_stride,
    out_m_stride,
    out_h_stride,
    lse_b_stride,
    lse_m_stride,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SCAN_K: tl.constexpr,
    P_TERMS: tl.constexpr,
):
    """BLOCK_H heads of one row. Grid x: rows x head blocks, the head blocks of a row adjacent."""
    head_blocks = tl.cdiv(h, BLOCK_H)
    row = tl.program_id(0) // head_blocks
    batch = (row // m).to(tl.int64)
    token = (row % m).to(tl.int64)
    heads = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, D)
    real_head = heads < h
    idxs_row_ptr = topk_idxs_ptr + batch * topk_idxs_b_stride + token * topk_idxs_m_stride

    if _is_given(cmp_counts_ptr):
        count_ptr = cmp_counts_ptr + batch * cmp_counts_b_stride + token * cmp_counts_m_stride
        end = _live_columns(count_ptr, topk, n_window)
    else:
        end = _skip_trailing_columns(idxs_row_ptr, 0, topk, n_window, window_rows, cmp_rows, SCAN_K)

    q_row_ptr = q_ptr + batch * q_b_stride + token * q_m_stride
    q = tl.load(
        q_row_ptr + heads.to(tl.int64)[:, None] * q_h_stride + dims[None, :],
        mask=real_head[:, None],
        other=0.0,
    )
    running_max, running_sum, acc = _attend(
        q,
        window_pool_ptr,
        cmp_pool_ptr,
        idxs_row_ptr,
        softmax_scale,
        n_window,
        window_rows,
        cmp_rows,
        window_pool_row_stride,
        cmp_pool_row_stride,
        0,
        end,
        D,
        BLOCK_H,
        BLOCK_K,
        P_TERMS,
    )

    # The heads again, in a form that is not merged with the first: kept over the tile loop they
    # and their masks take registers, of which few are left.
    heads = tl.program_id(0) * BLOCK_H - row * (head_blocks * BLOCK_H) + tl.arange(0, BLOCK_H)
    real_head = heads < h
    sink = tl.load(attn_sink_ptr + heads, mask=real_head, other=float("-inf"))
    # + 0.0 makes -0.0 to 0.0, as an empty tile does to acc: skipping it then changes no bit.
    out = tl.fma(acc, _normaliser(running_max, running_sum, sink)[:, None], 0.0)
    out_row_ptr = out_ptr + batch * out_b_stride + token * out_m_stride
    tl.store(
        out_row_ptr + heads.to(tl.int64)[:, None] * out_h_stride + dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=real_head[:, None],
    )
    if _is_given(lse_ptr):
        poisoned = tl.max((acc != acc).to(tl.int32), axis=1) > 0
        empty = tl.where(poisoned, float("-inf"), float("inf"))
        lse_row_ptr = lse_ptr + batch * lse_b_stride + token * lse_m_stride
        tl.store(lse_row_ptr + heads, _natural_lse(running_max, running_sum, empty), mask=real_head)


@triton.jit
def sparse_attn_paged_bf16_decode_split(
    q_ptr,
    window_pool_ptr,
    cmp_pool_ptr,
    topk_idxs_ptr,
    cmp_counts_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    softmax_scale,
    h,
    topk,
    n_splits,
    n_window,
    window_rows,
    cmp_rows,
    q_b_stride,
    q_h_stride,
    window_pool_row_stride,
    cmp_pool_row_stride,
    topk_idxs_b_stride,
    cmp_counts_b_stride,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_SPLIT: tl.constexpr,
    SCAN_K: tl.constexpr,
    P_TERMS: tl.constexpr,
):
    """BLOCK_H heads of one split of one row (m = 1), without the sink.

    partial_out: [b, h, n_splits, D] fp32, normalised by the split's own sum; 0 where it is empty.
    partial_lse: [b, h, n_splits] fp32, natural log; -inf where the split is empty.
    Grid x: b x n_splits x head blocks, the head blocks of a split adjacent.
    """
    head_blocks = tl.cdiv(h, BLOCK_H)
    unit = tl.program_id(0) // head_blocks
    split = unit % n_splits
    batch = (unit // n_splits).to(tl.int64)
    heads = tl.program_id(0) % head_blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    dims = tl.arange(0, D)
    real_head = heads < h
    idxs_row_ptr = topk_idxs_ptr + batch * topk_idxs_b_stride

    first = split * BLOCK_SPLIT
    if _is_given(cmp_counts_ptr):
        live = _live_columns(cmp_counts_ptr + batch * cmp_counts_b_stride, topk, n_window)
        end = tl.minimum(first + BLOCK_SPLIT, live)
    else:
        end = tl.minimum(first + BLOCK_SPLIT, topk)
        end = _skip_trailing_columns(
            idxs_row_ptr, first, end, n_window, window_rows, cmp_rows, SCAN_K
        )

    q = tl.load(
        q_ptr + batch * q_b_stride + heads.to(tl.int64)[:, None] * q_h_stride + dims[None, :],
        mask=real_head[:, None],
        other=0.0,
    )
    running_max, running_sum, acc = _attend(
        q,
        window_pool_ptr,
        cmp_pool_ptr,
        idxs_row_ptr,
        softmax_scale,
        n_window,
        window_rows,
        cmp_rows,
        window_pool_row_stride,
        cmp_pool_row_stride,
        first,
        end,
        D,
        BLOCK_H,
        BLOCK_K,
        P_TERMS,
    )

    # The heads again, as in the prefill.
    heads = tl.program_id(0) * BLOCK_H - unit * (head_blocks * BLOCK_H) + tl.arange(0, BLOCK_H)
    real_head = heads < h
    partial = (batch * h + heads) * n_splits + split
    out = acc * _normaliser(running_max, running_sum, float("-inf"))[:, None]
    tl.store(partial_out_ptr + partial[:, None] * D + dims[None, :], out, mask=real_head[:, None])
    lse = _natural_lse(running_max, running_sum, float("-inf"))
    tl.store(partial_lse_ptr + partial, lse, mask=real_head)


@triton.jit
def sparse_attn_paged_bf16_decode_merge(
    partial_out_ptr,
    partial_lse_ptr,
    attn_sink_ptr,
    out_ptr,
    lse_ptr,
    h,
    n_splits,
    out_b_stride,
    out_h_stride,
    lse_b_stride,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One head of one row (m = 1): the splits in ascending order, the sink once. Grid x: b x h."""
    batch = (tl.program_id(0) // h).to(tl.int64)
    head = tl.program_id(0) % h
    dims = tl.arange(0, D)
    partial = (batch * h + head) * n_splits

    running_max = float("-inf")
    for first in range(0, n_splits, BLOCK_S):
        splits = first + tl.arange(0, BLOCK_S)
        real_split = splits < n_splits
        lse = tl.load(partial_lse_ptr + partial + splits, mask=real_split, other=float("-inf"))
        running_max = _max_or_nan(running_max, tl.reduce(lse, 0, _max_or_nan))

    safe_max = tl.where(running_max == float("-inf"), 0.0, running_max)
    total = 0.0
    acc = tl.zeros((D,), tl.float32)
    # Nothing to mask from here on: D is whole, and split and head are in range.
    for split in tl.range(n_splits, loop_unroll_factor=4):  # loads of four splits under way
        weight = tl.exp(tl.load(partial_lse_ptr + partial + split) - safe_max)
        total += weight
        acc = tl.fma(weight, tl.load(partial_out_ptr + (partial + split) * D + dims), acc)

    sink = tl.load(attn_sink_ptr + head)
    # + 0.0 makes -0.0 to 0.0, as in the prefill.
    out = tl.fma(acc, _normaliser(running_max, total, sink), 0.0)
    tl.store(
        out_ptr + batch * out_b_stride + head.to(tl.int64) * out_h_stride + dims,
        out.to(out_ptr.dtype.element_ty),
    )
    if _is_given(lse_ptr):
        poisoned = tl.max((acc != acc).to(tl.int32), axis=0) > 0
        empty = tl.where(poisoned, float("-inf"), float("inf"))
        tl.store(lse_ptr + batch * lse_b_stride + head, _natural_lse(running_max, total, empty))
