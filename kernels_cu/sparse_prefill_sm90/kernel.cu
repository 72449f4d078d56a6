// Sparse MLA prefill on Hopper: wgmma and cp.async (sm_90a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// A block walks items, each a token and 64 of its heads, and for each item tiles of 64 rows.
//   score warpgroup      S = Q K^T, softmax, P and alpha to shared memory
//   value warpgroups (2) O += P V for 256 of the 512 columns each, and the gather of everything
// The ring of three slots holds, in order, Q and the tiles of an item, then those of the next: a
// value warpgroup loads its own half of the columns, so it waits for no one to reuse a slot.
// README.md draws the schedule.

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/sparse_prefill_sm90/block.cuh"
#include "sparsekit/sparse_prefill_sm90/one_pool.cuh"

namespace sparsekit::sparse_prefill_sm90 {

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_fwd, sizeof(SharedMemory<OnePool>));

// Grid: x = as many blocks as run at once; block b takes the items b, b + grid, ... Item i is token
// i / ceil(h_q / 64) and its (i % ceil(h_q / 64))-th 64 heads.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_prefill_sm90_fwd(const bf16* __restrict__ q, const bf16* __restrict__ kv,
                            const int* __restrict__ indices,
                            const float* __restrict__ attn_sink,  // null: no sink
                            const int* __restrict__ topk_length, bf16* __restrict__ out,
                            float* __restrict__ max_logits, float* __restrict__ lse,
                            long long q_token_stride_elems, long long q_head_stride_elems,
                            long long kv_row_stride_elems, long long indices_row_stride_elems,
                            int s_q, int h_q, int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  auto& smem = *reinterpret_cast<SharedMemory<OnePool>*>(dynamic_smem);
  const OnePool a = {{s_q, h_q, topk},
                     q,
                     kv,
                     indices,
                     topk_length,
                     q_token_stride_elems,
                     q_head_stride_elems,
                     static_cast<unsigned>(kv_row_stride_elems / kPiece),
                     indices_row_stride_elems,
                     s_kv};
  const Results results = {out, max_logits, lse, attn_sink, nullptr, nullptr};
  run_block(smem, a, results, sm_scale);
}

}  // namespace sparsekit::sparse_prefill_sm90
