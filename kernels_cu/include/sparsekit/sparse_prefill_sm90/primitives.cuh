// Waits, arrivals, copies and numbers of the Hopper sparse prefill kernel.
#pragma once

#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_prefill_sm90/shape.cuh"

namespace sparsekit::sparse_prefill_sm90 {

using namespace sparsekit::ptx;

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

enum : unsigned { kLeastScaleBits = 0x21800000 };  // 2^-60
/// Scaled by no less, masked() has the weight 0.
__device__ __forceinline__ float least_scale() { return __int_as_float(kLeastScaleBits); }

/// The same value, known to the compiler as equal in all lanes, so that one register may hold it.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

/// Waits for the end of the phase of that parity.
__device__ __forceinline__ void wait(const unsigned long long& barrier, int parity) {
  while (!mbarrier_try_wait_parity_shared_cta_b64(shared_address(&barrier), parity)) {
  }
}

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
  if (threadIdx.x % kWarp < kArrivingLanes) {
    mbarrier_arrive_shared_cta_b64(shared_address(&barrier));
  }
}

/// The index in `column`; -1, which is never valid, outside [0, columns).
__device__ __forceinline__ int load_index(const int* row, int column, int columns) {
  return static_cast<unsigned>(column) < static_cast<unsigned>(columns) ? __ldg(row + column) : -1;
}

__device__ __forceinline__ bool is_valid(int index, int s_kv) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(s_kv);
}

}  // namespace sparsekit::sparse_prefill_sm90
