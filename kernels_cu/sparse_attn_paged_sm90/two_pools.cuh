// What sparse_attn_paged is called with, as a block asks for it: rows of two pools.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/sparse_prefill_sm90/items.cuh"

namespace sparsekit::sparse_prefill_sm90 {

struct Pool {
  const bf16* first;
  unsigned row_stride_bytes;
  int rows;
};

struct TwoPools : Items {
  const bf16* q;
  Pool window, cmp;  // columns before n_window are of the window
  const int* topk_idxs;
  const int* cmp_counts;  // null: every column may count
  long long q_b_stride_elems, q_m_stride_elems, q_head_stride_elems;
  long long topk_idxs_b_stride_elems, topk_idxs_m_stride_elems;
  long long cmp_counts_b_stride_elems, cmp_counts_m_stride_elems;
  int m, n_window;

  enum : int { kNumbersColumns = 1, kHasMaxLogits = 0 };

  // A token is query `query` of row `batch`.
  struct Item {
    int token;
    int first_head;
    int batch;
    int query;
  };
  __device__ __forceinline__ Item where(int item) const {
    const int at = token(item);
    return {at, first_head(item), at / m, at % m};
  }
  __device__ __forceinline__ long long q_offset_elems(Item at) const {
    return at.batch * q_b_stride_elems + at.query * q_m_stride_elems;
  }

  __device__ __forceinline__ const int* token_row(int item) const {
    const int at = token(item);
    return topk_idxs + at / m * topk_idxs_b_stride_elems + at % m * topk_idxs_m_stride_elems;
  }
  __device__ __forceinline__ bool has_length() const { return cmp_counts != nullptr; }
  __device__ __forceinline__ int load_length(int item) const {
    const int at = token(item);
    return __ldg(cmp_counts + at / m * cmp_counts_b_stride_elems +
                 at % m * cmp_counts_m_stride_elems);
  }
  __device__ __forceinline__ int length(int loaded) const {
    return n_window + min(max(loaded, 0), topk - n_window);
  }
  __device__ __forceinline__ bool is_listed(int index, int column) const {
    return is_valid(index, column < n_window ? window.rows : cmp.rows);
  }

  // An address, which is never 0.
  using Row = unsigned long long;
  enum : Row { kUnlisted = 0 };
  __device__ __forceinline__ Row row(int index, int column) const {
    const bool in_window = column < n_window;
    const unsigned stride = in_window ? window.row_stride_bytes : cmp.row_stride_bytes;
    const Row first = reinterpret_cast<Row>(in_window ? window.first : cmp.first);
    return is_listed(index, column) ? first + static_cast<Row>(index) * stride : kUnlisted;
  }
  __device__ __forceinline__ const bf16* element(Row row, int column) const {
    return reinterpret_cast<const bf16*>(row) + column;
  }
};

}  // namespace sparsekit::sparse_prefill_sm90
