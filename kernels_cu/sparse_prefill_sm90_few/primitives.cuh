// Arrivals, copies, places in rings, and products by size.
#pragma once

#include "sparsekit/anew.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/ptx/wgmma.cuh"
#include "sparsekit/shared_address.cuh"
#include "sparsekit/wait.cuh"

#include "shape.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

using namespace sparsekit::ptx;

/// What one warp brings to a barrier: kArrivingLanes arrivals, for all that its lanes have done.
__device__ __forceinline__ void arrive(unsigned long long& barrier) {
  __syncwarp();
  mbarrier_arrive_shared_cta_b64(shared_address(&barrier), threadIdx.x % kWarp < kArrivingLanes);
}

/// This many registers for each thread of a warpgroup, more or fewer than it was launched with.
template <int kRegisters>
__device__ __forceinline__ void set_registers() {
  if (kRegisters > kLaunchRegs) {
    setmaxnreg_inc_sync_aligned_u32<kRegisters>();
  } else {
    setmaxnreg_dec_sync_aligned_u32<kRegisters>();
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

/// The first column of kv and q that a chunk of a tile holds.
__device__ __forceinline__ constexpr int column_of(int chunk) {
  return kHasRope ? (chunk == 0 ? kDV : (chunk - 1) * kChunk) : chunk * kChunk;
}

/// A place in a ring of kCount, and the parity of its phase.
template <int kCount>
struct Position {
  int slot = 0;
  int parity = 0;
  __device__ __forceinline__ void advance() { *this = ahead(1); }
  /// At most kCount places on.
  __device__ __forceinline__ Position ahead(int places) const {
    const int to = slot + places;
    if (kCount == 1) return {slot, parity ^ (places & 1)};
    return to < kCount ? Position{to, parity} : Position{to - kCount, parity ^ 1};
  }
};

// wgmma of m64nNk16, by the size of d.
__device__ __forceinline__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n8k16_f32_bf16_bf16(d, a, b, accumulate);
}

__device__ __forceinline__ void multiply(float (&d)[8], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n16k16_f32_bf16_bf16(d, a, b, accumulate);
}

__device__ __forceinline__ void multiply(float (&d)[16], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16(d, a, b, accumulate);
}

// The same, A transposed.
__device__ __forceinline__ void multiply_transposed(float (&d)[4], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n8k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

__device__ __forceinline__ void multiply_transposed(float (&d)[8], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n16k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

__device__ __forceinline__ void multiply_transposed(float (&d)[16], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

// P^T of a warp to rows of 8, 16 and 32 heads; a lane addresses its row of each 16.
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[2]) {
  stmatrix_sync_aligned_m8n8_x2_trans_shared_b16(to, p);
}

__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[4]) {
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to, p);
}

__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[8]) {
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to, {p[0], p[1], p[2], p[3]});
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to + 16 * kLineBytes, {p[4], p[5], p[6], p[7]});
}

/// wgmma.wait_group for a number that is a constant once loops are unrolled.
__device__ __forceinline__ void wait_groups(int pending) {
  static_assert(kGroupChunks <= 8, "as many cases");
  switch (pending) {
    case 0:
      return wgmma_wait_group_sync_aligned<0>();
    case 1:
      return wgmma_wait_group_sync_aligned<1>();
    case 2:
      return wgmma_wait_group_sync_aligned<2>();
    case 3:
      return wgmma_wait_group_sync_aligned<3>();
    case 4:
      return wgmma_wait_group_sync_aligned<4>();
    case 5:
      return wgmma_wait_group_sync_aligned<5>();
    case 6:
      return wgmma_wait_group_sync_aligned<6>();
    default:
      return wgmma_wait_group_sync_aligned<7>();
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
