// O from registers to memory.
#pragma once

#include "sparsekit/ptx/global_store.cuh"
#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// Word t of each of the four lanes of a quad to lane t, in the order of the lanes.
__device__ __forceinline__ void transpose_quad(unsigned (&word)[4], int t) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = t & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const unsigned got = __shfl_xor_sync(0xffffffff, upper ? word[i] : word[i + bit], bit);
      if (upper) {
        word[i] = got;
      } else {
        word[i + bit] = got;
      }
    }
  }
}

/// O of a warp's 16 heads, scaled, to the rows of out from `out_row` on: 16 bytes a lane, 64 of
/// each of eight heads at once. Heads from heads_left on are none.
__device__ __forceinline__ void store_out(const float (&o)[128], const float (&scale)[2],
                                          bf16* out_row, int heads_left, int lane) {
  constexpr int kBlocks = kDV / kValueGroups / (4 * kPiece);
  const int g = lane / 4, t = lane % 4;
  bf16* lane_out = out_row + g * kDV + t * kPiece;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const int e = 16 * b + 4 * i + 2 * r;
        word[i] =
            cvt_rn_bf16x2_f32(__fmaf_rn(o[e + 1], scale[r], 0.0f), __fmaf_rn(o[e], scale[r], 0.0f));
      }
      transpose_quad(word, t);
      if (g + 8 * r < heads_left) {
        st_global_v4_b32(lane_out + 8 * r * kDV + b * 4 * kPiece, word);
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
