// A block of the Hopper sparse prefill kernel: its barriers, and who does what.
#pragma once

#include "sparsekit/sparse_prefill_sm90/score.cuh"
#include "sparsekit/sparse_prefill_sm90/value.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// The items blockIdx.x, blockIdx.x + gridDim.x, ...
template <class Arguments>
__device__ __forceinline__ void run_block(SharedMemory<Arguments>& smem, const Arguments& a,
                                          const Results& results, float sm_scale) {
  const int warpgroup = uniform(threadIdx.x / kGroup), thread = threadIdx.x % kGroup;
  const int warp = uniform(thread / kWarp), lane = threadIdx.x % kWarp;
  const Place place = {warpgroup, thread, warp, lane, lane / 4, lane % 4, a.items()};
  if (threadIdx.x == 0) {
    smem.course = {0, kAtQ, nullptr};
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kValueThreads + kArrivingLanes);
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.rope_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.s_done), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_full), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_free), kValueWarps * kArrivingLanes);
    for (int i = 0; i < kQReads; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.q_read[i]), kGroupWarps * kArrivingLanes);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.end_full[i]), kGroupWarps * kArrivingLanes);
    }
  }
  if (threadIdx.x < kLengths) smem.length[threadIdx.x] = 0;
  if (threadIdx.x < kPlans * kBlockK) smem.rows[0][threadIdx.x] = Arguments::kUnlisted;
  __syncthreads();

  if (place.warpgroup == 0) {
    score_warpgroup(smem, a, results, place, sm_scale);
  } else {
    value_warpgroup(smem, a, results, place);
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
