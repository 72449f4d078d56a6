// Weights of a part, and its place among the parts before it.
#pragma once

#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_attn_paged_decode/scores.cuh"

namespace sparsekit::sparse_attn_paged_decode {

/// e^(x - of), or 0 where x is -inf and nothing is above it.
__device__ __forceinline__ float weight_of(float x, float of) {
  const float reference = of == -infinity() ? 0.0f : of;
  return ex2_approx_ftz_f32(__fmul_rn(__fsub_rn(x, reference), log2_e()));
}

__device__ __forceinline__ float folded(float so_far, float a, float part, float b) {
  return __fmaf_rn(part, b, __fmul_rn(so_far, a));
}

/// M and L of a head.
struct Totals {
  float max = -infinity(), sum = 0.0f;

  /// Adds a part; gives a and b.
  __device__ __forceinline__ float2 fold(float part_max, float part_sum) {
    const float top = max_NaN_f32(max, part_max);
    const float a = weight_of(max, top), b = weight_of(part_max, top);
    sum = folded(sum, a, part_sum, b);
    max = top;
    return make_float2(a, b);
  }
};

/// The heads of a softmax lane are kHeadsAtOnce apart.
enum : int { kHeadsAtOnce = kThreads / kLanesOfHead };

/// The two heads of a warp are two apart: their scores then meet all banks.
__device__ __forceinline__ int head_of_lane(int round) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return round * kHeadsAtOnce + warp / 2 * 4 + warp % 2 + lane / kLanesOfHead * 2;
}

/// The weights of a part and its place in the totals, of all heads side by side.
template <int kHeads, int kColumns, class Shared>
__device__ __forceinline__ void weigh(Shared& smem, const unsigned char (&valid)[kColumns],
                                      float scale, int part_columns,
                                      Totals (&totals)[kHeads / kHeadsAtOnce]) {
  constexpr int kRounds = kHeads / kHeadsAtOnce, kMostOfLane = kColumns / kLanesOfHead;
  const int lane = threadIdx.x % kLanesOfHead;
  bool listed[kMostOfLane];
  float x[kRounds][kMostOfLane], top[kRounds], sum[kRounds];
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int column = lane + i * kLanesOfHead;
    listed[i] = column < part_columns && valid[column];
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = head_of_lane(round);
    top[round] = -infinity();
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const int column = lane + i * kLanesOfHead;
      const float score = score_of(smem.score, head, column);
      x[round][i] = listed[i] ? __fmul_rn(score, scale) : -infinity();
      top[round] = max_NaN_f32(top[round], x[round][i]);
    }
  }
#pragma unroll
  for (int lanes = kLanesOfHead / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      top[round] = max_NaN_f32(top[round], __shfl_xor_sync(0xffffffff, top[round], lanes));
    }
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = head_of_lane(round);
    sum[round] = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const int column = lane + i * kLanesOfHead;
      const float e = weight_of(x[round][i], top[round]);
      sum[round] = __fadd_rn(sum[round], e);
      // 0 x is 0, but NaN for a score that is not finite: -inf would have the weight 0 unnoticed.
      const float weight = listed[i] ? __fmaf_rn(x[round][i], 0.0f, e) : 0.0f;
      const unsigned short high = cvt_rn_bf16_f32(weight);
      smem.p[0][head][column].bits = high;
      if (kPTerms == 2) {
        const float rest = weight - __int_as_float(high << 16);
        smem.p[kPTerms - 1][head][column].bits = cvt_rn_bf16_f32(rest);
      }
    }
  }
#pragma unroll
  for (int lanes = kLanesOfHead / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      sum[round] = __fadd_rn(sum[round], __shfl_xor_sync(0xffffffff, sum[round], lanes));
    }
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const float2 factors = totals[round].fold(top[round], sum[round]);
    if (lane == 0) smem.fold[head_of_lane(round)] = factors;
  }
}

}  // namespace sparsekit::sparse_attn_paged_decode
