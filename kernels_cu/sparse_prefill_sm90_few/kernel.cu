// Sparse MLA prefill on Hopper for few heads: wgmma with the heads as N, and cp.async (sm_90a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// A block walks tokens, and for each of them tiles of 64 rows.
//   score warpgroups (2)  S^T[row][head] = K Q^T, softmax over rows, P^T to shared memory: every
//                         other tile each
//   value warpgroups (2)  O^T[column][head] += V^T P^T, every other 64 of the 512 columns each
//   gather warps (2)      rows of kv, and Q, to shared memory
//   plan warp             where the rows of the coming tiles are
// A tile goes through a ring in units of a few 64-column chunks: both products read the rows as the
// gather leaves them, the first K-major, the second transposed. README.md draws the schedule.

#include "sparsekit/launch_facts.cuh"

#include "gather.cuh"
#include "plan.cuh"
#include "score.cuh"
#include "value.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_few_fwd, sizeof(SharedMemory));

// Grid: x = as many blocks as run at once; block b takes the tokens b, b + grid, ...
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_prefill_sm90_few_fwd(
    const bf16* __restrict__ q, const bf16* __restrict__ kv, const int* __restrict__ indices,
    const float* __restrict__ attn_sink,  // null: no sink
    const int* __restrict__ topk_length,  // null: every column may count
    bf16* __restrict__ out, float* __restrict__ max_logits, float* __restrict__ lse,
    long long q_token_stride_elems, long long q_head_stride_elems, long long kv_row_stride_elems,
    long long indices_row_stride_elems, int s_q, int h_q, int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const Arguments a = {q,
                       kv,
                       indices,
                       attn_sink,
                       topk_length,
                       out,
                       max_logits,
                       lse,
                       q_token_stride_elems,
                       q_head_stride_elems,
                       kv_row_stride_elems,
                       indices_row_stride_elems,
                       s_q,
                       h_q,
                       s_kv,
                       topk,
                       sm_scale};
  const int warpgroup = uniform(threadIdx.x / kGroup);
  const int thread = threadIdx.x % kGroup, warp = uniform(thread / kWarp);
  const int lane = threadIdx.x % kWarp;
  const Place place = {warpgroup, thread, warp, lane, lane / 4, lane % 4};
  const float scale = sm_scale >= least_scale() ? sm_scale : 1.0f;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kGatherThreads);
      mbarrier_init_shared_cta_b64(shared_address(&smem.free[s]), kValueWarps * kArrivingLanes);
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_full), kGatherThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_free), kScoreWarps * kArrivingLanes);
    for (int i = 0; i < kPlans; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.plan_full[i]), kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.plan_free[i]),
                                   (kGatherWarps + kScoreWarps) * kArrivingLanes);
    }
    for (int i = 0; i < kScoreGroups; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.decided[i]), kGroupWarps * kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.end_full[i]), kGroupWarps * kArrivingLanes);
    }
    for (int i = 0; i < kPBuffers; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.p_full[i]), kGroupWarps * kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.p_free[i]), kValueWarps * kArrivingLanes);
    }
  }
  __syncthreads();

  if (warpgroup == kLoadGroup) {
    setmaxnreg_dec_sync_aligned_u32<kLoadRegs>();
    if (warp < kGatherWarps) {
      gather_tokens(smem, a, thread);
    } else if (warp == kPlanWarp) {
      plan_tokens(smem, a, lane);
    }
  } else if (warpgroup < kScoreGroups) {
    set_registers<kScoreRegs>();
    score_tokens(smem, a, place, scale);
  } else {
    set_registers<kValueRegs>();
    value_tokens(smem, a, place, scale);
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
