// What sparse_prefill is called with, as a block asks for it: rows of one pool.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/sparse_prefill_sm90/items.cuh"

namespace sparsekit::sparse_prefill_sm90 {

struct OnePool : Items {
  const bf16* q;
  const bf16* kv;
  const int* indices;
  const int* topk_length;  // null: every column may count
  long long q_token_stride_elems, q_head_stride_elems;
  unsigned kv_row_stride_pieces;
  long long indices_row_stride_elems;
  int s_kv;

  enum : int { kNumbersColumns = 0, kHasMaxLogits = 1 };

  // A token, and the first of its heads.
  struct Item {
    int token;
    int first_head;
  };
  __device__ __forceinline__ Item where(int item) const { return {token(item), first_head(item)}; }
  __device__ __forceinline__ long long q_offset_elems(Item at) const {
    return at.token * q_token_stride_elems;
  }
  __device__ __forceinline__ const int* token_row(int item) const {
    return indices + token(item) * indices_row_stride_elems;
  }
  __device__ __forceinline__ bool has_length() const { return topk_length != nullptr; }
  __device__ __forceinline__ int load_length(int item) const {
    return __ldg(topk_length + token(item));
  }
  __device__ __forceinline__ int length(int loaded) const { return min(max(loaded, 0), topk); }
  __device__ __forceinline__ bool is_listed(int index, int column) const {
    return is_valid(index, s_kv);
  }

  // In pieces from the first of kv.
  using Row = unsigned;
  enum : Row { kUnlisted = 0xffffffff };
  __device__ __forceinline__ Row row(int index, int column) const {
    return is_listed(index, column) ? index * kv_row_stride_pieces : kUnlisted;
  }
  __device__ __forceinline__ const bf16* element(unsigned long long row, int column) const {
    return kv + column + row * kPiece;
  }
};

}  // namespace sparsekit::sparse_prefill_sm90
