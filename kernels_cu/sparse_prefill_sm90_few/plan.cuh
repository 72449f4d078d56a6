// The plan warp: where the rows of the coming tiles are.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/warp_collective.cuh"

#include "primitives.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

/// What the plan warp knows of a token before it plans its tiles: loaded under the token before.
struct Outlook {
  const int* row;
  int index[kBatch][kHalf];  // of the first tiles
  int scan[kScanLoads];      // the last indices
  int length;                // as given

  __device__ __forceinline__ void load(const int* indices, long long row_stride_elems,
                                       const int* topk_length, int token, int topk, int lane) {
    row = indices + token * row_stride_elems;
    load_batch(index, 0, topk, lane);
    length = topk_length != nullptr ? min(max(__ldg(topk_length + token), 0), topk) : topk;
    if (kDeriveLength) load_scan(topk - kScanWidth, topk_length != nullptr ? 0 : topk, lane);
  }

  __device__ __forceinline__ void load_batch(int (&to)[kBatch][kHalf], int column, int columns,
                                             int lane) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int h = 0; h < kHalf; ++h) {
        to[b][h] = load_index(row, column + b * kBlockK + h * kWarp + lane, columns);
      }
    }
  }

  __device__ __forceinline__ void load_scan(int first, int columns, int lane) {
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      scan[j] = load_index(row, first + j * kWarp + lane, columns);
    }
  }

  /// The end of the last valid index, looked for from the end of the row in rounds.
  __device__ __forceinline__ int find_length(int topk, int s_kv, int lane) {
#pragma unroll 1
    for (int first = topk - kScanWidth;; first -= kScanWidth) {
      int end = 0;
#pragma unroll
      for (int j = 0; j < kScanLoads; ++j) {
        if (is_valid(scan[j], s_kv)) end = first + j * kWarp + lane + 1;
      }
      end = redux_sync_max_s32(end);
      if (end > 0 || first <= 0) return end;
      load_scan(first - kScanWidth, topk, lane);
    }
  }
};

/// The tiles of all tokens of this block.
__device__ __forceinline__ void plan_tokens(SharedMemory& smem, const Arguments& a, int lane) {
  const unsigned row_stride_pieces = static_cast<unsigned>(a.kv_row_stride_elems / kPiece);
  Position<kPlans> at;
  Outlook next;
  next.load(a.indices, a.indices_row_stride_elems, a.topk_length, blockIdx.x, a.topk, lane);
#pragma unroll 1
  for (int token = blockIdx.x; token < a.s_q; token += gridDim.x) {
    int length = next.length;
    if (kDeriveLength && a.topk_length == nullptr) length = next.find_length(a.topk, a.s_kv, lane);
    length = uniform(length);
    const Outlook current = next;
    int index[kBatch][kHalf];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int h = 0; h < kHalf; ++h) index[b][h] = current.index[b][h];
    }
    if (token + static_cast<int>(gridDim.x) < a.s_q) {
      next.load(a.indices, a.indices_row_stride_elems, a.topk_length, token + gridDim.x, a.topk,
                lane);
    }

    // An empty row has one tile, all masked.
    int column = 0;
#pragma unroll 1
    do {
      int ahead[kBatch][kHalf];
      current.load_batch(ahead, column + kBatch * kBlockK, length, lane);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (column < max(length, 1)) {
          Plan& plan = smem.plan[at.slot];
          wait(smem.plan_free[at.slot], at.parity ^ 1);
          unsigned listed[kHalf];
#pragma unroll
          for (int h = 0; h < kHalf; ++h) {
            const int r = h * kWarp + lane;
            const bool valid = column + r < length && is_valid(index[b][h], a.s_kv);
            plan.rows[r % kLines][r / kLines] = valid ? index[b][h] * row_stride_pieces : kUnlisted;
            listed[h] = __ballot_sync(0xffffffff, valid);
          }
          if (lane == 0) {
#pragma unroll
            for (int h = 0; h < kHalf; ++h) plan.listed[h] = listed[h];
            plan.flags = (column == 0 ? kFirst : 0) | (column + kBlockK >= length ? kLast : 0);
          }
          arrive(smem.plan_full[at.slot]);
          at.advance();
        }
        column += kBlockK;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int h = 0; h < kHalf; ++h) index[b][h] = ahead[b][h];
      }
    } while (column < length);
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
