// S = Q K^T of a tile, by a score warp.
#pragma once

#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/sparse_prefill/shape.cuh"

namespace sparsekit::sparse_prefill {

using namespace sparsekit::ptx;

/// S = Q K^T over this warp's d steps. Operands are loaded a step ahead.
template <class Rows>
__device__ __forceinline__ void score_mma(
    float (&s)[kScoreHeadTiles][kScoreTokenTiles][4],
    const unsigned (&q)[kQRegSteps > 0 ? kQRegSteps : 1][kScoreHeadTiles][4], unsigned q_shared,
    unsigned k_shared) {
  unsigned a[2][kScoreHeadTiles][4], b[2][kScoreTokenTiles / 2][4];
  const auto load = [&](int step) {
#pragma unroll
    for (int m = 0; m < kScoreHeadTiles; ++m) {
      if (step < kQRegSteps) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[step % 2][m][e] = q[step][m][e];
      } else {
        const int i = step - kQRegSteps;
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[step % 2][m],
            (q_shared ^ i % 2 * (kLineBytes / 2)) + i / 2 * kLineBytes + m * 16 * kQSharedRowBytes);
      }
    }
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles / 2; ++n) {
      ldmatrix_sync_aligned_m8n8_x4_shared_b16(
          b[step % 2][n], (k_shared ^ step % 2 * (kLineBytes / 2)) +
                              step / 2 * Rows::kLineStrideBytes + n * 16 * Rows::kRowStrideBytes);
    }
  };
#pragma unroll
  for (int m = 0; m < kScoreHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles; ++n) {
      s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
    }
  }
  load(0);
#pragma unroll
  for (int step = 0; step < kDSteps; ++step) {
    if (step + 1 < kDSteps) load(step + 1);
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kScoreHeadTiles; ++m) {
        const unsigned (&pair)[4] = b[step % 2][n / 2];
        mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(s[m][n], a[step % 2][m],
                                                            pair[n % 2 * 2], pair[n % 2 * 2 + 1]);
      }
    }
  }
}

}  // namespace sparsekit::sparse_prefill
