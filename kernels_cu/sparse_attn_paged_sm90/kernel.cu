// Sparse attention over rows of a window pool and a compressed pool on Hopper (sm_90a).
//
// For one query and one head, over its listed columns k: the index topk_idxs[k] is a row of the
// window pool where k < n_window, else of the compressed one, and k < n_window + cmp_counts.
//   x_k = softmax_scale <q, v_k>        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k     lse' = ln(exp lse + exp sink)
// No listed column: out 0, lse +inf. Arithmetic and schedule are those of the block of
// ../sparse_prefill_sm90, which is told by two_pools.cuh where rows are.

#include "sparsekit/launch_facts.cuh"

#define SK_D_QK SK_D

#include "sparsekit/sparse_prefill_sm90/block.cuh"
#include "two_pools.cuh"

namespace sparsekit::sparse_prefill_sm90 {

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_sm90_prefill, sizeof(SharedMemory<TwoPools>));

// Grid: x = as many blocks as run at once; block b takes the items b, b + grid, ... Item i is token
// i / ceil(h / 64) of the b m tokens and its (i % ceil(h / 64))-th 64 heads.
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_attn_paged_sm90_prefill(
    const bf16* __restrict__ q, const bf16* __restrict__ window_pool,
    const bf16* __restrict__ cmp_pool, const float* __restrict__ attn_sink,
    const int* __restrict__ topk_idxs, const int* __restrict__ cmp_counts, bf16* __restrict__ out,
    float* __restrict__ lse,  // null: not asked for
    long long q_b_stride_elems, long long q_m_stride_elems, long long q_h_stride_elems,
    long long window_row_stride_elems, long long cmp_row_stride_elems,
    long long topk_idxs_b_stride_elems, long long topk_idxs_m_stride_elems,
    long long cmp_counts_b_stride_elems, long long cmp_counts_m_stride_elems, int tokens, int m,
    int h, int topk, int n_window, int window_rows, int cmp_rows, float softmax_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  auto& smem = *reinterpret_cast<SharedMemory<TwoPools>*>(dynamic_smem);
  const auto pool = [](const bf16* first, long long row_stride_elems, int rows) {
    return Pool{first, static_cast<unsigned>(row_stride_elems * sizeof(bf16)), rows};
  };
  const TwoPools a = {{tokens, h, topk},
                      q,
                      pool(window_pool, window_row_stride_elems, window_rows),
                      pool(cmp_pool, cmp_row_stride_elems, cmp_rows),
                      topk_idxs,
                      cmp_counts,
                      q_b_stride_elems,
                      q_m_stride_elems,
                      q_h_stride_elems,
                      topk_idxs_b_stride_elems,
                      topk_idxs_m_stride_elems,
                      cmp_counts_b_stride_elems,
                      cmp_counts_m_stride_elems,
                      m,
                      n_window};
  const Results results = {out, nullptr, lse, attn_sink, nullptr, nullptr};
  run_block(smem, a, results, softmax_scale);
}

}  // namespace sparsekit::sparse_prefill_sm90
