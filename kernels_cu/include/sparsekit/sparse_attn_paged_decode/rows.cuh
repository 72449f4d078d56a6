// Rows of a part, and Q, to shared memory.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/sparse_attn_paged_decode/shape.cuh"

namespace sparsekit::sparse_attn_paged_decode {

using namespace sparsekit::ptx;

/// Rows of bf16.
struct Pool {
  const bf16* rows;
  long long row_stride_elems;
  int count;
};

/// One row of the batch. A pool of another kind has a gather of its own.
template <class AnyPool>
struct RowOf {
  const bf16* q;
  long long q_head_stride_elems;
  AnyPool window, compressed;
  const int* indices;
  int topk, n_window, live;  // columns from `live` on are dead
  int part_columns;          // a multiple of 16
  int parts;                 // of all columns
};
using Row = RowOf<Pool>;

/// Chunk c of row r lies at chunk c ^ (r % 8) of its 128-byte line, so that the eight rows of one
/// chunk column, which is what ldmatrix reads at once, meet all banks.
__device__ __forceinline__ int swizzled(int row, int chunk) {
  return (chunk & ~7) | ((chunk ^ row) & 7);
}

template <int kRows>
__device__ __forceinline__ unsigned chunk_address(const bf16 (&rows)[kRows][kD], int row,
                                                  int chunk) {
  return shared_address(rows) + row * kRowBytes + swizzled(row, chunk) * kChunkBytes;
}

/// The column of the part that this lane looks up for its warp; the others have none.
__device__ __forceinline__ int looked_up() {
  return threadIdx.x % kWarp * kWarps + threadIdx.x / kWarp;
}

template <class AnyPool>
__device__ __forceinline__ int part_index(const RowOf<AnyPool>& row, int part) {
  const int column = looked_up();
  return column < row.part_columns
             ? load_index(row.indices, part * row.part_columns + column, row.topk)
             : -1;
}

template <int kHeads, class AnyPool>
__device__ __forceinline__ void load_q(bf16 (&q)[kHeads][kD], const RowOf<AnyPool>& row,
                                       int first_head, int h) {
  const int chunk = threadIdx.x % kRowChunks;
#pragma unroll
  for (int i = 0; i < kHeads * kRowChunks / kThreads; ++i) {
    const int head = threadIdx.x / kRowChunks + i * (kThreads / kRowChunks);
    const bool exists = first_head + head < h;
    const bf16* src = row.q + (exists ? first_head + head : 0) * row.q_head_stride_elems;
    cp_async_cg_shared_global_l2_128b_16(chunk_address(q, head, chunk), src + chunk * kChunk,
                                         exists ? kChunkBytes : 0);
  }
}

/// Where a column's row lies.
struct Source {
  unsigned long long address;  // of nothing listed nothing is read, but it is one that could be
  bool listed;
};

__device__ __forceinline__ Source source_of(const Row& row, int column, int index) {
  const bool in_window = column < row.n_window;
  const long long stride =
      in_window ? row.window.row_stride_elems : row.compressed.row_stride_elems;
  const bool listed =
      is_valid(index, in_window ? row.window.count : row.compressed.count) && column < row.live;
  const bf16* src = in_window ? row.window.rows : row.compressed.rows;
  return {reinterpret_cast<unsigned long long>(listed ? src + index * stride : row.q), listed};
}

/// Starts the copy of the row that lane `of` of the warp looked up, or of kChunks of it, zeros
/// where it is not listed.
template <int kChunks = kRowChunks, int kColumns>
__device__ __forceinline__ void copy_row(bf16 (&kv)[kColumns][kD], int to,
                                         unsigned long long address, unsigned listed, int of,
                                         int first_chunk = 0) {
  const auto from = reinterpret_cast<const bf16*>(__shfl_sync(0xffffffff, address, of));
  const unsigned bytes = listed >> of & 1 ? kChunkBytes : 0;
#pragma unroll
  for (int i = threadIdx.x % kWarp; i < kChunks; i += kWarp) {
    const int chunk = first_chunk + i;
    const bf16* piece = from + (bytes != 0 ? chunk * kChunk : 0);
    cp_async_cg_shared_global_l2_128b_16(chunk_address(kv, to, chunk), piece, bytes);
  }
}

/// Starts the copies of a part's rows, zeros where nothing is listed; whether this lane's is.
template <int kColumns>
__device__ __forceinline__ bool gather(bf16 (&kv)[kColumns][kD], unsigned char (&valid)[kColumns],
                                       const Row& row, int part, int index) {
  const Source own = source_of(row, part * row.part_columns + looked_up(), index);
  const unsigned listed = __ballot_sync(0xffffffff, own.listed);
  if (looked_up() < row.part_columns) valid[looked_up()] = own.listed;
#pragma unroll
  for (int i = 0; i < kColumns / kWarps; ++i) {
    if (i * kWarps >= row.part_columns) break;
    copy_row(kv, i * kWarps + threadIdx.x / kWarp, own.address, listed, i);
  }
  cp_async_commit_group();
  return own.listed;
}

}  // namespace sparsekit::sparse_attn_paged_decode
