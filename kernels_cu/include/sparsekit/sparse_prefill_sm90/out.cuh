// O from registers to memory.
#pragma once

#include "sparsekit/ptx/global_store.cuh"
#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// O, scaled, to out. A lane of a quad holds a quarter of 8 columns; over the quad four of these
/// pieces are transposed, so that each lane stores one.
__device__ __forceinline__ void store_out(const float (&o)[128], const float (&scale)[2],
                                          bf16* out_row, int heads_left, int t) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const int e = (4 * j + k) * 4 + 2 * r;
        v[k] = cvt_rn_bf16x2_f32(__fmaf_rn(o[e + 1], scale[r], 0.0f),
                                 __fmaf_rn(o[e], scale[r], 0.0f));
      }
      // Transposed over the quad: v[k] of lane t becomes v[t] of lane k.
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const unsigned got = __shfl_xor_sync(0xffffffff, t & 1 ? v[k] : v[k + 1], 1);
        (t & 1 ? v[k] : v[k + 1]) = got;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const unsigned got = __shfl_xor_sync(0xffffffff, t & 2 ? v[k] : v[k + 2], 2);
        (t & 2 ? v[k] : v[k + 2]) = got;
      }
      if (r * 8 < heads_left) {
        st_global_v4_b32(out_row + r * 8 * kDV + (4 * j + t) * kPiece, v);
      }
    }
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
