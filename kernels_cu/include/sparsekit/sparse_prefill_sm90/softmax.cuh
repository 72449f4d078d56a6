// Online softmax of the tiles of a row.
#pragma once

#include "sparsekit/ptx/special_register.cuh"
#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// Online softmax of the two heads of a lane, kept by the four lanes of a quad, over scores s that
/// `scale`, which is at least least_scale(), is still to multiply. Weights are
/// exp((s - ref) scale): the reference follows the maximum only when it lags by more than kMaxLag,
/// since every move costs a pass over O.
struct Softmax {
  float max[2];  // masked() while no score above it was seen, and so is ref
  float ref[2];
  float sum[2];     // of this lane's columns; over the quad at least 1 once a score was finite
  float poison[2];  // 0, or NaN once a listed score of this lane was not finite

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = ref[r] = masked(), sum[r] = poison[r] = 0.0f;
  }

  /// What is subtracted from scaled scores. While nothing was seen it is 0, so that masked columns
  /// have the weight 0.
  __device__ __forceinline__ float subtracted(int r, float exponent_scale) const {
    return (ref[r] == masked() ? 0.0f : ref[r]) * exponent_scale;
  }

  /// The weights of kCount elements of a lane, from `first`, packed in pairs; added to tile_sum.
  template <int kCount>
  __device__ __forceinline__ void weights(const float (&s)[32], unsigned (&p)[16], int first,
                                          float exponent_scale, float (&tile_sum)[2]) const {
    const float less[2] = {subtracted(0, exponent_scale), subtracted(1, exponent_scale)};
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int e = first + i, r = e / 2 % 2;
      const float p0 = ex2_approx_ftz_f32(__fmaf_rn(s[e], exponent_scale, -less[r]));
      const float p1 = ex2_approx_ftz_f32(__fmaf_rn(s[e + 1], exponent_scale, -less[r]));
      tile_sum[r] += p0 + p1;
      p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
    }
  }

  /// S of one tile to P, packed in pairs, and the factors of O. Weights are computed with the
  /// reference as it is before the maximum is known; those that need another are computed again.
  __device__ __forceinline__ void tile(float (&s)[32], unsigned (&p)[16], float (&alpha)[2],
                                       unsigned listed_low, unsigned listed_high, float scale) {
    constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
    if ((listed_low & listed_high) != 0xffffffff) {
      const int t = tid_x() % 4;  // read anew: it is seldom needed
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int column = e / 4 * 8 + e % 2;
        const unsigned listed = (column < 32 ? listed_low : listed_high) >> 2 * t;
        if ((listed >> column % 32 & 1) == 0) s[e] = masked();
      }
    }
    const float exponent_scale = scale * log2_e();
    float tile_sum[2] = {0.0f, 0.0f};
    weights<kEarly>(s, p, 0, exponent_scale, tile_sum);

    // Two chains of each maximum. products: finite unless a score is not, or some are immense.
    float chain[4] = {max[0], s[1], max[1], s[3]}, products = 0.0f;
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
      float& even = chain[e / 2 % 2 * 2];
      float& odd = chain[e / 2 % 2 * 2 + 1];
      even = max_NaN_f32(even, s[e]);
      if (e >= 4) odd = max_NaN_f32(odd, s[e + 1]);
      products = __fmaf_rn(s[e], s[e + 1], products);
    }
    bool rare = !(fabsf(products) < infinity());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = max_NaN_f32(chain[2 * r], chain[2 * r + 1]);
      top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 1));
      max[r] = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 2));
      rare |= !((max[r] - ref[r]) * scale <= kMaxLag);
      alpha[r] = 1.0f;
    }
    if (__any_sync(0xffffffff, rare)) {
#pragma unroll
      for (int e = 0; e < 32; ++e) poison[e / 2 % 2] = __fmaf_rn(s[e], 0.0f, poison[e / 2 % 2]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old = ref[r];
        if (!((max[r] - old) * scale <= kMaxLag)) ref[r] = max[r];
        // Of nothing there is nothing to scale.
        if (ref[r] != old && old != masked()) alpha[r] = natural_exp((old - ref[r]) * scale);
        // A finite score may leave its type.
        poison[r] = __fmaf_rn(subtracted(r, exponent_scale), 0.0f, poison[r]);
        sum[r] *= alpha[r], tile_sum[r] = 0.0f;
      }
      weights<kEarly>(s, p, 0, exponent_scale, tile_sum);
    }
    weights<32 - kEarly>(s, p, kEarly, exponent_scale, tile_sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += tile_sum[r];
  }
};

}  // namespace sparsekit::sparse_prefill_sm90
