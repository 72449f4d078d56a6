// S = Q K^T of a part.
#pragma once

#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/sparse_attn_paged_decode/rows.cuh"

namespace sparsekit::sparse_attn_paged_decode {

/// The first columns of a warp's tiles: every kGroups-th, or the last of the part again.
template <int kTiles, int kGroups>
struct Tiles {
  int first[kTiles];
  bool own[kTiles];  // else another warp has it

  __device__ __forceinline__ Tiles(int group, int part_columns) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int column = (group + j * kGroups) * kMmaN;
      first[j] = min(column, part_columns - kMmaN);
      own[j] = column == first[j];
    }
  }
};

/// Q in shared memory: a warp has a half of d and every fourth tile. The scores come where Q was.
template <int kHeads>
struct SharedQ {
  enum : int { kSums = kHalves, kGroups = kWarps / kSums };
  const bf16 (&q)[kHeads][kD];

  template <int kTiles, int kColumns, int kScoreRow>
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kColumns][kD],
                                           float (&score)[kSums][kHeads][kScoreRow],
                                           int part_columns) const {
    constexpr int kHeadTiles = kHeads / kMmaM;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, half = warp % kHalves;
    const Tiles<kTiles, kGroups> tiles(warp / kSums, part_columns);
    float s[kTiles][kParities][kHeadTiles][4] = {};
#pragma unroll 2
    for (int chunk = 0; chunk < kHalfChunks; chunk += 4) {
      const int first_chunk = half * kHalfChunks + chunk;
      unsigned a[kParities][kHeadTiles][4], b[kTiles][4];
#pragma unroll
      for (int parity = 0; parity < kParities; ++parity) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
          ldmatrix_sync_aligned_m8n8_x4_shared_b16(
              a[parity][m],
              chunk_address(q, m * kMmaM + lane % 16, first_chunk + 2 * parity + lane / 16));
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b[j], chunk_address(kv, tiles.first[j] + lane % 8, first_chunk + lane / 8));
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
          for (int parity = 0; parity < kParities; ++parity) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
                s[j][parity][m], a[parity][m], b[j][2 * parity], b[j][2 * parity + 1]);
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!tiles.own[j]) continue;
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<float2*>(
              &score[half][m * kMmaM + lane / 4 + 8 * i][tiles.first[j] + lane % 4 * 2]) =
              make_float2(s[j][0][m][2 * i] + s[j][1][m][2 * i],
                          s[j][0][m][2 * i + 1] + s[j][1][m][2 * i + 1]);
        }
      }
    }
  }
};

/// Q in registers for all parts: a warp has the even or the odd 16-wide steps of a half of d, and
/// every other tile.
template <int kHeads>
struct HeldQ {
  enum : int { kSums = kHalves * kParities, kGroups = kWarps / kSums };
  unsigned a[kStepsOfParity][kHeads / kMmaM][4];

  /// Where this warp's step begins; the next is kParities * 2 chunks on.
  __device__ __forceinline__ static int first_chunk() {
    const int sum = threadIdx.x / kWarp % kSums;
    return sum / kParities * kHalfChunks + sum % kParities * 2;
  }

  __device__ __forceinline__ void load(const bf16 (&q)[kHeads][kD]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kStepsOfParity; ++step) {
#pragma unroll
      for (int m = 0; m < kHeads / kMmaM; ++m) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[step][m], chunk_address(q, m * kMmaM + lane % 16,
                                      first_chunk() + step * kParities * 2 + lane / 16));
      }
    }
  }

  template <int kTiles, int kColumns, int kScoreRow>
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kColumns][kD],
                                           float (&score)[kSums][kHeads][kScoreRow],
                                           int part_columns) const {
    constexpr int kHeadTiles = kHeads / kMmaM;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const Tiles<kTiles, kGroups> tiles(warp / kSums, part_columns);
    float s[kTiles][kHeadTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kStepsOfParity; step += 2) {
      unsigned b[kTiles][4];  // of this step and the next
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int chunk = first_chunk() + (step + lane / 16) * kParities * 2 + lane / 8 % 2;
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b[j], chunk_address(kv, tiles.first[j] + lane % 8, chunk));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int m = 0; m < kHeadTiles; ++m) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(s[j][m], a[step + i][m],
                                                                b[j][2 * i], b[j][2 * i + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!tiles.own[j]) continue;
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<float2*>(
              &score[warp % kSums][m * kMmaM + lane / 4 + 8 * i][tiles.first[j] + lane % 4 * 2]) =
              make_float2(s[j][m][2 * i], s[j][m][2 * i + 1]);
        }
      }
    }
  }
};

template <int kScoreRow, int kHeads>
__device__ __forceinline__ float score_of(const float (&sums)[kHalves][kHeads][kScoreRow], int head,
                                          int column) {
  return sums[0][head][column] + sums[1][head][column];
}

template <int kScoreRow, int kHeads>
__device__ __forceinline__ float score_of(
    const float (&sums)[kHalves * kParities][kHeads][kScoreRow], int head, int column) {
  return (sums[0][head][column] + sums[1][head][column]) +
         (sums[2][head][column] + sums[3][head][column]);
}

}  // namespace sparsekit::sparse_attn_paged_decode
