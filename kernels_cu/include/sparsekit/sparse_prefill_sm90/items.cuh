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

/// The end of a row before column `past`, as a warp sees it that is number `share` of `shares` on
/// it: it looks at every shares-th 128 columns, backwards, until one is valid; 0 if none is. The
/// largest of the shares is the row's.
template <class Arguments>
__device__ __forceinline__ int scan_row(const Arguments& a, const int* row, int past, int share,
                                        int shares, int lane) {
  int end = 0;
#pragma unroll 1
  for (past -= share * kScanWidth; end == 0 && past > 0; past -= shares * kScanWidth) {
    const int from = past - kScanWidth + lane;
    int index[kScanLoads];
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) index[j] = load_index(row, from + j * kWarp, a.topk);
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      if (a.is_listed(index[j], from + j * kWarp)) end = from + j * kWarp + 1;
    }
    end = redux_sync_max_s32(end);
  }
  return end;
}

/// The lengths of a batch of this block's items from number `first` on, by the eight value warps:
/// four rows a warp, whose last eight columns it looks at in one load; rows that list none there
/// are scanned. Where a block has fewer items than warps, they share rows; length is 0 before that.
template <class Arguments>
__device__ __forceinline__ void find_lengths(SharedMemory<Arguments>& smem, const Arguments& a,
                                             int first, int warp, int lane) {
  const int left = (a.items() - item_of(first) + gridDim.x - 1) / static_cast<int>(gridDim.x);
  const bool shared = first == 0 && left < kValueWarps;
  const int row = first + (shared ? warp % left : warp), share = shared ? warp / left : 0;
  const int shares = shared ? (kValueWarps - warp % left + left - 1) / left : 1;
  const int number = row + lane / kLanesOfRow * kValueWarps, item = item_of(number);
  const bool there = item < a.items();
  int end = 0;
  if (a.has_length()) {
    if (there) end = a.length(a.load_length(item));
  } else if (!kDeriveLength) {
    end = a.topk;
  } else {
    const int last = a.topk - kLanesOfRow, column = last + lane % kLanesOfRow;
    if (there && a.is_listed(load_index(a.token_row(item), column, a.topk), column)) {
      end = column + 1;
    }
#pragma unroll
    for (int bit = 1; bit < kLanesOfRow; bit *= 2) {
      end = max(end, __shfl_xor_sync(0xffffffff, end, bit));
    }
    unsigned open = __ballot_sync(0xffffffff, there && end == 0 && lane % kLanesOfRow == 0);
#pragma unroll 1
    for (; open != 0; open &= open - 1) {
      const int of = (__ffs(open) - 1) / kLanesOfRow;
      const int* indices = a.token_row(item_of(row + of * kValueWarps));
      const int found = scan_row(a, indices, last, share, shares, lane);
      if (lane / kLanesOfRow == of) end = found;
    }
  }
  if (there && lane % kLanesOfRow == 0) {
    int& length = smem.length[number % kLengths];
    if (shared) {
      atomicMax(&length, end);
    } else {
      length = end;
    }
  }
}

/// Of item `number` of this block: the columns of its part that may be listed.
template <class Arguments>
__device__ __forceinline__ int length_of(const SharedMemory<Arguments>& smem, const Arguments& a,
                                         int number) {
  const int end = uniform(smem.length[number % kLengths]);
  if (!kPartColumns) return end;
  const int left = end - a.part(item_of(number)) * kPartColumns;
  return min(max(left, 0), static_cast<int>(kPartColumns));
}

/// An empty row has one tile, all masked.
__device__ __forceinline__ int tiles_of(int length) {
  return max((length + kBlockK - 1) / kBlockK, 1);
}

}  // namespace sparsekit::sparse_prefill_sm90
