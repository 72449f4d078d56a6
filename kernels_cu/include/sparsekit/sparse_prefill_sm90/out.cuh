// O from registers to memory.
#pragma once

#include "sparsekit/ptx/global_store.cuh"
#include "sparsekit/ptx/shared_load.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// O of a warp's 16 heads, scaled, to the rows of out from `out_row` on, by way of `shared`: 8 KB
/// that the warp has for itself. Heads from heads_left on are none.
///
/// There a head has 512 bytes, of which piece j lies at piece (j + head) % 32, so that eight heads
/// meet in no bank; a warp stores a head at once.
__device__ __forceinline__ void store_out(const float (&o)[128], const float (&scale)[2],
                                          unsigned shared, bf16* out_row, int heads_left,
                                          int lane) {
  constexpr int kPieces = kDV / kValueGroups / kPiece;
  const int matrix_row = lane % 16;
  const unsigned row_shared = shared + matrix_row * kPieces * kPieceBytes;
#pragma unroll
  for (int j = 0; j < kPieces; j += 2) {
    unsigned part[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
      const int e = 4 * j + 2 * m, r = m % 2;
      part[m] = cvt_rn_bf16x2_f32(__fmaf_rn(o[e + 1], scale[r], 0.0f),
                                  __fmaf_rn(o[e], scale[r], 0.0f));
    }
    const int piece = (j + lane / 16 + matrix_row) % kPieces;
    stmatrix_sync_aligned_m8n8_x4_shared_b16(row_shared + piece * kPieceBytes, part);
  }
  __syncwarp();
  unsigned row[kMmaK][4];
#pragma unroll
  for (int r = 0; r < kMmaK; ++r) {
    ld_shared_v4_b32(row[r],
                     shared + r * kPieces * kPieceBytes + (lane + r) % kPieces * kPieceBytes);
  }
#pragma unroll
  for (int r = 0; r < kMmaK; ++r) {
    if (r < heads_left) st_global_v4_b32(out_row + r * kDV + lane * kPiece, row[r]);
  }
}

/// Half r of the rows of O as it is, to its row of a part: 8 bytes a lane.
__device__ __forceinline__ void store_part(const float (&o)[128], float* row, int r, int t) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *reinterpret_cast<float2*>(row + j * 8 + 2 * t) =
        make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
