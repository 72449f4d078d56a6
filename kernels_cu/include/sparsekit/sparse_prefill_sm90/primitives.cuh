// Waits, arrivals, copies and numbers of the Hopper sparse prefill kernel.
#pragma once

#include "sparsekit/anew.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_prefill_sm90/shape.cuh"
#include "sparsekit/wait.cuh"

namespace sparsekit::sparse_prefill_sm90 {

using namespace sparsekit::ptx;

/// What this thread has seen land is ready for wgmma.
__device__ __forceinline__ void fence_copies() {
  if (kProxyFence) fence_proxy_async_shared_cta();
}

/// 16 bytes of a row, zeros where it is not valid.
__device__ __forceinline__ void copy_piece(unsigned dst_shared, const bf16* src, bool valid) {
  if (kL2Prefetch == 256) {
    cp_async_cg_shared_global_l2_256b_16(dst_shared, src, valid ? kPieceBytes : 0);
  } else {
    cp_async_cg_shared_global_l2_128b_16(dst_shared, src, valid ? kPieceBytes : 0);
  }
}

/// What one warp brings to a barrier: kArrivingLanes arrivals, for all that its lanes have done.
__device__ __forceinline__ void arrive(unsigned long long& barrier) {
  __syncwarp();
  mbarrier_arrive_shared_cta_b64(shared_address(&barrier), threadIdx.x % kWarp < kArrivingLanes);
}

}  // namespace sparsekit::sparse_prefill_sm90
