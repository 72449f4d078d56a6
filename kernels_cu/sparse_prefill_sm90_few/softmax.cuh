// Online softmax of the heads of a thread of the score warpgroups.
#pragma once

#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/softmax.cuh"

#include "primitives.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

/// The i-th head of a thread of the score and value warpgroups.
__device__ __forceinline__ int head_of(int i, int t) { return i / 2 * 8 + 2 * t + i % 2; }

/// Online softmax over rows, of the heads of a thread of a score warpgroup: 2 t, 2 t + 1 of every
/// eight. `scale`, at least least_scale(), is still to multiply scores s. Weights are
/// exp((s - ref) scale): the reference, which is all threads', follows the maximum only when it
/// lags by more than kMaxLag, since every move costs a pass over O. The two groups decide on it in
/// the order of the tiles; each has the sum over its own.
struct Softmax {
  static constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
  float max[kThreadHeads];     // of this thread's rows; masked() while it saw no score above it
  float ref[kThreadHeads];     // masked() while no thread did
  float sum[kThreadHeads];     // of this thread's rows
  float poison[kThreadHeads];  // 0, or NaN once a listed score of this thread was not finite

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      max[i] = ref[i] = masked(), sum[i] = poison[i] = 0.0f;
    }
  }

  /// Takes in the scores of one tile; whether some reference of this thread must move.
  __device__ __forceinline__ bool take(const float (&s)[kScores], float scale) {
    bool moves = false;
#pragma unroll
    for (int e = 0; e < kScores; ++e) {
      const int i = e / 4 * 2 + e % 2;
      max[i] = max_NaN_f32(max[i], s[e]);
      poison[i] = __fmaf_rn(s[e], 0.0f, poison[i]);
    }
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) moves |= !((max[i] - ref[i]) * scale <= kMaxLag);
    return moves;
  }

  /// Takes over the references as the other group left them.
  __device__ __forceinline__ void follow(const float (&shared_ref)[kHeads], int t, float scale) {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      const float new_ref = shared_ref[head_of(i, t)];
      if (new_ref != ref[i]) sum[i] *= factor(ref[i], new_ref, scale);
      ref[i] = new_ref;
    }
  }

  /// Moves the references that must, by the maxima of all threads; to alpha the factors of O.
  __device__ __forceinline__ void move(SharedMemory& smem, float (&alpha)[kHeads], int barrier,
                                       int warp, int g, int t, float scale) {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      const float top = over_rows(max[i]);
      if (g == 0) smem.top[warp][head_of(i, t)] = top;
    }
    bar_sync(barrier, kGroup);
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      float top = masked();
#pragma unroll
      for (int w = 0; w < kGroupWarps; ++w) top = max_NaN_f32(top, smem.top[w][head_of(i, t)]);
      const float new_ref = (top - ref[i]) * scale <= kMaxLag ? ref[i] : top;
      const float by = new_ref == ref[i] ? 1.0f : factor(ref[i], new_ref, scale);
      if (warp == 0 && g == 0) alpha[head_of(i, t)] = by;
      ref[i] = new_ref, sum[i] *= by;
      // A finite score may leave its type.
      poison[i] = __fmaf_rn(subtracted(new_ref) * (scale * log2_e()), 0.0f, poison[i]);
    }
  }

  /// S^T to P^T, packed in pairs of heads.
  __device__ __forceinline__ void weigh(const float (&s)[kScores], unsigned (&p)[kScores / 2],
                                        float scale) {
    const float exponent_scale = scale * log2_e();
    float minus[kThreadHeads];
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) minus[i] = -subtracted(ref[i]) * exponent_scale;
#pragma unroll
    for (int e = 0; e < kScores; e += 2) {
      const int i = e / 4 * 2;
      const float p0 = ex2_approx_ftz_f32(__fmaf_rn(s[e], exponent_scale, minus[i]));
      const float p1 = ex2_approx_ftz_f32(__fmaf_rn(s[e + 1], exponent_scale, minus[i + 1]));
      sum[i] += p0, sum[i + 1] += p1;
      p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
    }
  }

  /// This warp's part of what the value warpgroups need at the end of a token.
  __device__ __forceinline__ void end(End (&to)[kHeads], int g, int t) const {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      float total = sum[i];
#pragma unroll
      for (int x = 4; x < kWarp; x *= 2) total += __shfl_xor_sync(0xffffffff, total, x);
      const float top = over_rows(max[i]);
      const unsigned poisoned = __ballot_sync(0xffffffff, poison[i] != poison[i]);
      const float not_a_number = __int_as_float(0x7fc00000);
      if (g == 0) {
        to[head_of(i, t)] = {total, poisoned >> t & 0x11111111 ? not_a_number : 0.0f, top};
      }
    }
  }

  /// What weights by an old reference are multiplied by.
  static __device__ __forceinline__ float factor(float old, float now, float scale) {
    return natural_exp((old - subtracted(now)) * scale);
  }

  /// While nothing was seen 0 is subtracted, so that masked rows have the weight 0.
  static __device__ __forceinline__ float subtracted(float ref) {
    return ref == masked() ? 0.0f : ref;
  }

  /// The largest over the lanes that have the same heads.
  static __device__ __forceinline__ float over_rows(float x) {
#pragma unroll
    for (int y = 4; y < kWarp; y *= 2) x = max_NaN_f32(x, __shfl_xor_sync(0xffffffff, x, y));
    return x;
  }
};

}  // namespace sparsekit::sparse_prefill_sm90_few
