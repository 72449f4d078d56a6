// What a block walks: items, and how long their rows are.
#pragma once

#include "sparsekit/anew.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/sparse_prefill_sm90/primitives.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// The item of that number of this block.
__device__ __forceinline__ int item_of(int number) { return blockIdx.x + number * gridDim.x; }

/// A token and 64 of its heads, or a part of that, is an item.
struct Items {
  int tokens, h_q, topk;

  /// A row is cut at fixed columns into parts, or not at all.
  __device__ __forceinline__ int parts() const {
    return kPartColumns ? anew(max((topk + kPartColumns - 1) / kPartColumns, 1)) : 1;
  }
  __device__ __forceinline__ int head_blocks() const { return anew((h_q + kHeads - 1) / kHeads); }
  __device__ __forceinline__ int items() const { return tokens * head_blocks() * parts(); }
  __device__ __forceinline__ int part(int item) const { return kPartColumns ? item % parts() : 0; }
  __device__ __forceinline__ int token(int item) const { return item / parts() / head_blocks(); }
  __device__ __forceinline__ int first_head(int item) const {
    return item / parts() % head_blocks() * kHeads;
  }
};

// What a kernel was called with, Arguments here and below, is Items and has
//   Item, where(item)           what is kept of an item: its token and first head, and more
//   q, q_offset_elems(Item), q_head_stride_elems
//   token_row(item)             the indices of its token
//   has_length(), load_length(item), length(loaded)  whether it is said how many of them may count,
//                               the word that says so, and how many
//   is_listed(index, column)    whether an index is valid
//   Row, row(index, column)     a word for where a row of a tile is, kUnlisted if it is not valid
//   element(row, column)        of a row, or of row 0 where it is not valid and nothing is read
//   kNumbersColumns             row() looks at the column
//   kHasMaxLogits               max_logits and lse are there; else lse may be

/// Where a thread stands, and how many items there are: known before the roles part.
struct Place {
  int warpgroup, thread, warp, lane;  // thread and warp: of the warpgroup
  int g, t;                           // quad of the lane, and lane of the quad
  int items;
};

/// Where results go. Of a part: O and what its softmax ended in, by token, head and part.
struct Results {
  bf16* out;
  float* max_logits;
  float* lse;
  const float* attn_sink;  // null: no sink
  float* part_out;
  float4* part_end;

  /// The row of a head of an item, in part_end; times kDV, in part_out.
  __device__ __forceinline__ long long part_row(const Items& a, int item, int head) const {
    return (static_cast<long long>(a.token(item)) * a.h_q + head) * a.parts() + a.part(item);
  }
};

/// What tells the end of a row to a value warp: a length that was given, or one of the last 256
/// indices a lane. Item `number` of this block; warp: of the eight.
template <class Arguments>
__device__ __forceinline__ int load_row_end(const Arguments& a, int number, int warp, int lane) {
  const int item = item_of(number);
  if (item >= a.items()) return -1;
  if (a.has_length()) return a.load_length(item);
  if (!kDeriveLength) return -1;
  return load_index(a.token_row(item), a.topk - kWarp * (warp + 1) + lane, a.topk);
}

/// The end of this warp's share of the row: of the last 256 columns, warp w looks at 32, counted
/// from the end, then of every 1024 before them at 128, until it finds a valid one. The largest of
/// the eight is the row's. index: this lane's of the 32.
template <class Arguments>
__device__ __forceinline__ int scan_share(const Arguments& a, const int* row, int warp, int lane,
                                          int index) {
  const int last = a.topk - kWarp * (warp + 1);
  int end = redux_sync_max_s32(a.is_listed(index, last + lane) ? last + lane + 1 : 0);
#pragma unroll 1
  for (int first = a.topk - kValueWarps * kWarp; end == 0 && first > 0;
       first -= kValueWarps * kScanWidth) {
    const int from = first - kScanWidth * (warp + 1) + lane;
    int round[kScanLoads];
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) round[j] = load_index(row, from + j * kWarp, a.topk);
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      if (a.is_listed(round[j], from + j * kWarp)) end = from + j * kWarp + 1;
    }
    end = redux_sync_max_s32(end);
  }
  return end;
}

/// A value warp's word of the length of item `number` of this block, from what was loaded.
template <class Arguments>
__device__ __forceinline__ void find_length(SharedMemory<Arguments>& smem, const Arguments& a,
                                            int number, int warp, int lane, int loaded) {
  const int item = item_of(number);
  if (item >= a.items()) return;
  int end = a.topk;
  if (a.has_length()) {
    end = a.length(loaded);
  } else if (kDeriveLength) {
    end = scan_share(a, a.token_row(item), warp, lane, loaded);
  }
  if (lane == 0) reinterpret_cast<int*>(&smem.end[number % kLengthSlots])[warp] = end;
}

/// Of item `number` of this block: the columns of its part that may be listed.
template <class Arguments>
__device__ __forceinline__ int length_of(const SharedMemory<Arguments>& smem, const Arguments& a,
                                         int number) {
  const int4 x = smem.end[number % kLengthSlots][0], y = smem.end[number % kLengthSlots][1];
  const int end = max(max(max(x.x, x.y), max(x.z, x.w)), max(max(y.x, y.y), max(y.z, y.w)));
  if (!kPartColumns) return uniform(end);
  const int left = end - a.part(item_of(number)) * kPartColumns;
  return uniform(min(max(left, 0), static_cast<int>(kPartColumns)));
}

/// An empty row has one tile, all masked.
__device__ __forceinline__ int tiles_of(int length) {
  return max((length + kBlockK - 1) / kBlockK, 1);
}

}  // namespace sparsekit::sparse_prefill_sm90
