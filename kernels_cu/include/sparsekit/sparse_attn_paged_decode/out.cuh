// O of a part, folded, and results.
#pragma once

#include "sparsekit/sparse_attn_paged_decode/weights.cuh"

namespace sparsekit::sparse_attn_paged_decode {

/// O of a block's heads, in the layout of the accumulators.
template <int kHeads>
struct Out {
  float of[kHeads / kMmaM][kOutTiles][4];
};

/// part = P V, for 64 columns of O.
template <int kHeads, int kColumns, int kPRow>
__device__ __forceinline__ void multiply_p(const bf16 (&p)[kPTerms][kHeads][kPRow],
                                           const bf16 (&kv)[kColumns][kD], int part_columns,
                                           Out<kHeads>& part) {
  constexpr int kHeadTiles = kHeads / kMmaM;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  part = {};
#pragma unroll 1
  for (int first = 0; first < part_columns; first += kMmaK) {
    unsigned a[kPTerms][kHeadTiles][4];
#pragma unroll
    for (int term = 0; term < kPTerms; ++term) {
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[term][m],
            shared_address(&p[term][m * kMmaM + lane % 16][first + lane / 16 * kChunk]));
      }
    }
#pragma unroll
    for (int tile = 0; tile < kOutTiles; tile += 2) {
      unsigned b[4];
      ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
          b, chunk_address(kv, first + lane % 16, warp * kOutTiles + tile + lane / 16));
#pragma unroll
      for (int term = kPTerms - 1; term >= 0; --term) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(part.of[m][tile + i], a[term][m],
                                                                b[2 * i], b[2 * i + 1]);
          }
        }
      }
    }
  }
}

/// O' = O_part b + O a, without O, which is 0 then, for the first of a block.
template <bool kFirst, int kHeads>
__device__ __forceinline__ void fold_part(Out<kHeads>& o, const Out<kHeads>& part,
                                          const float2 (&fold)[kHeads]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
    const float2 low = fold[m * kMmaM + lane / 4], high = fold[m * kMmaM + lane / 4 + 8];
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factors = i < 2 ? low : high;
        o.of[m][tile][i] =
            kFirst ? __fmaf_rn(part.of[m][tile][i], factors.y, 0.0f)
                   : folded(o.of[m][tile][i], factors.x, part.of[m][tile][i], factors.y);
      }
    }
  }
}

/// Where the results of a row go. lse: null where nobody asks for it.
struct Results {
  bf16* out;
  long long out_head_stride_elems;
  float* lse;
  const float* attn_sink;
};

/// The factor of O in out.
__device__ __forceinline__ float factor_of(const Totals& totals, bool any, float sink) {
  return any ? output_scale(totals.max, totals.sum, sink) : 0.0f;
}

__device__ __forceinline__ float lse_of(const Totals& totals, bool any) {
  return !any || totals.max == infinity() ? infinity() : totals.max + logf(totals.sum);
}

/// + 0 makes -0 to 0, as a part that lists nothing does to O: leaving it out then changes no bit.
__device__ __forceinline__ unsigned out_pair(float low, float high, float factor) {
  return cvt_rn_bf16x2_f32(__fmaf_rn(high, factor, 0.0f), __fmaf_rn(low, factor, 0.0f));
}

/// One part of a block, or some that are folded.
template <int kHeads>
struct Part {
  Out<kHeads> o = {};
  Totals totals[kHeads / kHeadsAtOnce];
  bool any = false;  // whether anything is listed
};

}  // namespace sparsekit::sparse_attn_paged_decode
