// Softmax, O += P V and O to out, by the value warps.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_prefill/shape.cuh"

namespace sparsekit::sparse_prefill {

using namespace sparsekit::ptx;

/// O += P V over one 16-row step of the tile.
__device__ __forceinline__ void value_mma(float (&o)[kValueHeadTiles][kValueColTiles][4],
                                          unsigned p_shared, unsigned v_shared) {
  unsigned a[kValueHeadTiles][4];
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
    ldmatrix_sync_aligned_m8n8_x4_shared_b16(a[m], p_shared + m * 16 * kPRowBytes);
  }
#pragma unroll
  for (int n = 0; n < kValueColTiles; n += 2) {
    unsigned b[4];
    ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(b, v_shared ^ n * kChunkBytes);
#pragma unroll
    for (int m = 0; m < kValueHeadTiles; ++m) {
      mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(o[m][n], a[m], b[0], b[1]);
      mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(o[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

/// Online softmax of one head, kept by the four lanes of a quad. Weights are exp(x - ref): the
/// reference follows the maximum only when it lags by more than kMaxLag, since every move costs a
/// pass over O.
struct Softmax {
  float max;  // masked() while no score above it was seen, and so is ref
  float ref;
  float sum;     // of this lane's columns; over the quad at least 1 once a score was finite
  float poison;  // 0, or NaN once a listed score of this lane was not finite
};

/// Softmax of the 8 heads of group `warp` over one tile: S to P, alpha and moved.
template <class Rows>
__device__ __forceinline__ void softmax(SharedMemory<Rows>& smem, Softmax& rows, int tile, int warp,
                                        int thread, int s_kv, float sm_scale) {
  constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
  const int head = thread / 4, pair = thread % 4, lane = thread % kWarp;
  const int index = smem.index[tile % kIndexTiles][lane % kBlockK];
  const unsigned listed = __ballot_sync(0xffffffff, is_valid(index, s_kv));

  float x[kScoreTokenTiles][2];
#pragma unroll
  for (int v = 0; v < kScoreVecs; ++v) {
    const auto& s = smem.s[tile % 2];
    const int score_warp = warp / kScoreGroups * 2, group = warp % kScoreGroups;
    const float4 even = s[score_warp][group][v][lane], odd = s[score_warp + 1][group][v][lane];
    x[2 * v][0] = even.x + odd.x, x[2 * v][1] = even.y + odd.y;
    x[2 * v + 1][0] = even.z + odd.z, x[2 * v + 1][1] = even.w + odd.w;
  }
  float top = rows.max;
#pragma unroll
  for (int n = 0; n < kScoreTokenTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[n][e] = listed >> (2 * pair) >> (n * 8 + e) & 1 ? x[n][e] * sm_scale : masked();
      top = max_NaN_f32(top, x[n][e]);
      rows.poison = __fmaf_rn(x[n][e], 0.0f, rows.poison);
    }
  }
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 1));
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 2));

  // While nothing was seen 0 is subtracted, so that masked columns have the weight 0.
  const float ref = top - rows.ref <= kMaxLag ? rows.ref : top;
  const float subtracted = ref == masked() ? 0.0f : ref;
  const float alpha = ref == rows.ref ? 1.0f : natural_exp(rows.ref - subtracted);
  float tile_sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kScoreTokenTiles; ++n) {
    const float p0 = natural_exp(x[n][0] - subtracted), p1 = natural_exp(x[n][1] - subtracted);
    tile_sum += p0 + p1;
    smem.p[head][(n ^ head % 8 / kPRowsPerLine) * (kChunk / 2) + pair] = cvt_rn_bf16x2_f32(p1, p0);
  }
  rows.max = top, rows.ref = ref, rows.sum = rows.sum * alpha + tile_sum;

  const bool moved = __any_sync(0xffffffff, alpha != 1.0f);
  if (pair == 0) smem.alpha[head % 8][warp] = alpha;
  if (lane == 0) smem.moved[warp] = moved;
}

/// O *= alpha in the 16-head tiles where some alpha is not 1; a factor of exactly 1 changes no bit.
template <class Rows>
__device__ __forceinline__ void rescale(float (&o)[kValueHeadTiles][kValueColTiles][4],
                                        const SharedMemory<Rows>& smem) {
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
    const uint2 moved = *reinterpret_cast<const uint2*>(&smem.moved[2 * m]);
    if ((moved.x | moved.y) == 0) continue;
    const int g = threadIdx.x % kWarp / 4;
    const float2 alpha = *reinterpret_cast<const float2*>(&smem.alpha[g][2 * m]);
#pragma unroll
    for (int n = 0; n < kValueColTiles; ++n) {
      o[m][n][0] *= alpha.x, o[m][n][1] *= alpha.x;
      o[m][n][2] *= alpha.y, o[m][n][3] *= alpha.y;
    }
  }
}

/// O, scaled, to the rows of out from out_rows on: kBlockK heads at a time through the first stage,
/// of which each warp uses its own columns.
template <class Rows>
__device__ __forceinline__ void store_out(SharedMemory<Rows>& smem,
                                          const float (&o)[kValueHeadTiles][kValueColTiles][4],
                                          bf16* out_rows, int heads, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = smem.o_scale[g][2 * m + r];
      bf16* staged = Rows::at(smem.kv[0], m * 16 % kBlockK + r * 8 + g, warp, t * 2);
#pragma unroll
      for (int n = 0; n < kValueColTiles; ++n) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const float left = __fmaf_rn(o[m][n][2 * r], scale, 0.0f);
        const float right = __fmaf_rn(o[m][n][2 * r + 1], scale, 0.0f);
        *reinterpret_cast<unsigned*>(staged + (n ^ g) * kChunk) = cvt_rn_bf16x2_f32(right, left);
      }
    }
    if ((m + 1) * 16 % kBlockK != 0) continue;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlockK; i += 4) {
      const int row = i + lane / 8, head = (m + 1) * 16 - kBlockK + row, chunk = lane % 8;
      if (head >= heads) continue;
      const bf16* staged = Rows::at(smem.kv[0], row, warp, (chunk ^ row % 8) * kChunk);
      *reinterpret_cast<uint4*>(out_rows + head * kDV + warp * kLine + chunk * kChunk) =
          *reinterpret_cast<const uint4*>(staged);
    }
    __syncwarp();
  }
}

}  // namespace sparsekit::sparse_prefill
