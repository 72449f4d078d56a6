// Sparse attention over two pools of fp8 rows with scales, one query a row, on Hopper (sm_90a).
//
// As sparse_attn_paged_decode_sm90, whose parts and clusters it shares, and with the same bits as
// that over the rows as bf16: what differs is how rows come to shared memory. Entries are
//   spread  a cluster has a row and some heads, each block the part of its rank
//   long    as spread, for more parts than blocks: each block folds its own first

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/sparse_attn_paged_decode/clusters.cuh"

#include "pages.cuh"

namespace sparsekit::sparse_attn_paged_decode {

// ---------------------------------------------------------------- launch facts

using Wide16 = SharedOfOne<16, kMostColumns>;
using Narrow16 = SharedOfOne<16, kNarrowColumns>;
using Wide32 = SharedOfOne<32, kMostColumns>;
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread16, sizeof(Wide16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread16_narrow, sizeof(Narrow16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread32, sizeof(Wide32));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_long16, sizeof(Wide16));

// ---------------------------------------------------------------- kernels

#define SPARSEKIT_ARGUMENTS                                                                       \
  const bf16 *__restrict__ q, const unsigned char *__restrict__ window_pool,                      \
      const unsigned char *__restrict__ cmp_pool, const float *__restrict__ attn_sink,            \
      const int *__restrict__ topk_idxs, const int *__restrict__ cmp_counts,                      \
      bf16 *__restrict__ out, float *__restrict__ lse, float softmax_scale, int h, int topk,      \
      int n_window, int part_columns, int parts, int window_pages, int cmp_pages,                 \
      int window_page_size, int cmp_page_size, long long q_b_stride, long long q_h_stride,        \
      long long window_pool_page_stride, long long cmp_pool_page_stride, long long idxs_b_stride, \
      long long cmp_counts_b_stride, long long out_b_stride, long long out_h_stride,              \
      long long lse_b_stride

// Row blockIdx.x / kMostParts, heads from blockIdx.y * HEADS.
#define SPARSEKIT_ATTEND(ATTEND, HEADS)                                                         \
  const long long b = blockIdx.x / kMostParts;                                                  \
  const int count = cmp_counts != nullptr ? __ldg(cmp_counts + b * cmp_counts_b_stride) : topk; \
  const int live = n_window + min(max(count, 0), topk - n_window);                              \
  const RowOf<PagedPool> row = {                                                                \
      q + b * q_b_stride,                                                                       \
      q_h_stride,                                                                               \
      {window_pool, window_pool_page_stride, window_pages, window_page_size},                   \
      {cmp_pool, cmp_pool_page_stride, cmp_pages, cmp_page_size},                               \
      topk_idxs + b * idxs_b_stride,                                                            \
      topk,                                                                                     \
      n_window,                                                                                 \
      live,                                                                                     \
      part_columns,                                                                             \
      parts};                                                                                   \
  const Results results = {out + b * out_b_stride, out_h_stride,                                \
                           lse != nullptr ? lse + b * lse_b_stride : nullptr, attn_sink};       \
  ATTEND(row, softmax_scale, blockIdx.y*(HEADS), h, results)

// Grid: x = rows, times the blocks of a cluster; y = blocks of heads.
// spread: at most kMostParts parts, of 16 heads where they have more than kNarrowColumns columns;
// narrow: where they have not; long: parts of kMostColumns columns.
extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_spread16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kMostColumns, kNarrowColumns + 1>), 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 3)
    sparse_attn_paged_fp8_decode_spread16_narrow(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kNarrowColumns, kMmaK>), 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_spread32(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<32, kMostColumns, kMmaK>), 32);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_long16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_some<16>), 16);
}

}  // namespace sparsekit::sparse_attn_paged_decode
