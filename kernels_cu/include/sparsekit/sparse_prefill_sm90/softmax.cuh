// Online softmax of the tiles of a row.
#pragma once

#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// Online softmax of the two heads of a lane, kept by the four lanes of a quad, over scores s that
/// `scale`, which is at least least_scale(), is still to multiply. Weights are
/// exp((s - ref) scale): the reference follows the maximum only when it lags by more than kMaxLag,
/// since every move costs a pass over O.
struct Softmax {
  float max[2];     // masked() while no score above it was seen, and so is ref
  float ref[2];
  float sum[2];     // of this lane's columns; over the quad at least 1 once a score was finite
  float poison[2];  // 0, or NaN once a listed score of this lane was not finite

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = ref[r] = masked(), sum[r] = poison[r] = 0.0f;
  }

  /// S of one tile to P, packed in pairs, and the factors of O.
  __device__ __forceinline__ void tile(float (&s)[32], unsigned (&p)[16], float (&alpha)[2],
                                       unsigned listed_low, unsigned listed_high, int t,
                                       float scale) {
    constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
    float top[2] = {max[0], max[1]};
    if ((listed_low & listed_high) != 0xffffffff) {
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int column = e / 4 * 8 + e % 2;
        const unsigned listed = (column < 32 ? listed_low : listed_high) >> 2 * t;
        if ((listed >> column % 32 & 1) == 0) s[e] = masked();
      }
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int r = e / 2 % 2;
      top[r] = max_NaN_f32(top[r], s[e]);
      poison[r] = __fmaf_rn(s[e], 0.0f, poison[r]);
    }
    const float exponent_scale = scale * log2_e();
    float subtracted[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = max_NaN_f32(top[r], __shfl_xor_sync(0xffffffff, top[r], 1));
      top[r] = max_NaN_f32(top[r], __shfl_xor_sync(0xffffffff, top[r], 2));
      // While nothing was seen 0 is subtracted, so that masked columns have the weight 0.
      const float new_ref = (top[r] - ref[r]) * scale <= kMaxLag ? ref[r] : top[r];
      const float less = new_ref == masked() ? 0.0f : new_ref;
      alpha[r] = new_ref == ref[r] ? 1.0f : natural_exp((ref[r] - less) * scale);
      subtracted[r] = -less * exponent_scale;
      poison[r] = __fmaf_rn(subtracted[r], 0.0f, poison[r]);  // a finite score may leave its type
      max[r] = top[r], ref[r] = new_ref, sum[r] *= alpha[r];
    }
    float tile_sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
      const int r = e / 2 % 2;
      const float p0 = ex2_approx_ftz_f32(__fmaf_rn(s[e], exponent_scale, subtracted[r]));
      const float p1 = ex2_approx_ftz_f32(__fmaf_rn(s[e + 1], exponent_scale, subtracted[r]));
      tile_sum[r] += p0 + p1;
      p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += tile_sum[r];
  }
};

}  // namespace sparsekit::sparse_prefill_sm90
