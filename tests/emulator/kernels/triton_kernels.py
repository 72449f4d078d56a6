"""Triton kernels for the emulator's tests: products, with and without tensor descriptors, and
attention over gathered rows."""

import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """C = A B^T, rows of C 1024 apart."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * k + (start + depth)[None, :])
        b = tl.load(b_ptr + columns[:, None] * k + (start + depth)[None, :])
        acc = tl.dot(a, tl.trans(b), acc)
    tl.store(c_ptr + rows[:, None] * 1024 + columns[None, :], acc)


@triton.jit
def product_of_tiles(
    a_desc, b_desc, c_ptr, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """The same, with tiles by tensor copies."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        a = a_desc.load([row, start])
        b = b_desc.load([column, start])
        acc = tl.dot(a, tl.trans(b), acc)
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    tl.store(c_ptr + rows[:, None] * 1024 + columns[None, :], acc)


@triton.jit
def gathered_attention(
    q_ptr, kv_ptr, index_ptr, out_ptr, total, scale, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Softmax over the rows of kv that an index lists; scale has log2(e) in it."""
    token = tl.program_id(0)
    heads, dims = tl.arange(0, BLOCK_H), tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + (token * BLOCK_H + heads)[:, None] * HEAD_DIM + dims[None, :])
    largest = tl.full([BLOCK_H], -float("inf"), dtype=tl.float32)
    total_weight = tl.zeros([BLOCK_H], dtype=tl.float32)
    acc = tl.zeros([BLOCK_H, HEAD_DIM], dtype=tl.float32)
    for start in range(0, total, BLOCK_T):
        row = tl.load(index_ptr + token * total + start + tl.arange(0, BLOCK_T))
        kv = tl.load(kv_ptr + row.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :])
        scores = tl.dot(q, tl.trans(kv)) * scale
        new = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new[:, None])
        factor = tl.exp2(largest - new)
        total_weight = total_weight * factor + tl.sum(weights, 1)
        acc = tl.dot(weights.to(tl.bfloat16), kv, acc * factor[:, None])
        largest = new
    out = (acc / total_weight[:, None]).to(tl.bfloat16)
    tl.store(out_ptr + (token * BLOCK_H + heads)[:, None] * HEAD_DIM + dims[None, :], out)


@triton.jit
def product_of_made_tiles(
    a_ptr, b_ptr, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The same, with descriptors that the kernel makes, and C by a tensor copy too."""
    a_desc = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [n, k], [k, 1], [BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, [m, n], [1024, 1], [BLOCK_M, BLOCK_N])
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        a = a_desc.load([row, start])
        b = b_desc.load([column, start])
        acc = tl.dot(a, tl.trans(b), acc)
    c_desc.store([row, column], acc)


@triton.jit
def persistent_product(
    a_desc, b_desc, c_ptr, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """The same by so many programs for all tiles; specialised: warps for copies and products."""
    across = n // BLOCK_N
    total = (m // BLOCK_M) * across
    for tile in tl.range(tl.program_id(0), total, PROGRAMS, warp_specialize=SPECIALIZE):
        row, column = (tile // across) * BLOCK_M, (tile % across) * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, k, BLOCK_K):
            a = a_desc.load([row, start])
            b = b_desc.load([column, start])
            acc = tl.dot(a, tl.trans(b), acc)
        rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
        tl.store(c_ptr + rows[:, None] * 1024 + columns[None, :], acc)
