// Sparse attention over two pools, one query a row, on Hopper (sm_90a): one launch, no scratch.
//
// For row b and head h, over its listed columns k: 0 <= idx_k < rows of the pool, k < live.
//   x_k = softmax_scale <q, v_k>      lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k   lse' = ln(exp lse + exp sink)
// v_k is row idx_k of the window pool where k < n_window, else of the compressed pool.
//
// Columns are cut into parts of the same width, a function of topk alone. A part ends in its
// largest score m, the sum l of exp(x - m) and O = sum exp(x - m) v; parts are folded upwards:
//   M' = max(M, m)   a = exp(M - M')   b = exp(m - M')   L' = l b + L a   O' = O_part b + O a
// The same arithmetic in the same order, whoever folds:
//   spread  a cluster has a row and some heads, each block the part of its rank; then each block
//           folds some heads, read from the shared memory of all
//   long    as spread, for more parts than blocks: each block folds its own first
//   serial  a block has a row and some heads and all parts, the next one under way; for many rows
//   block   the same of a short row, all parts at once
//   pair    as block, half of the parts in each of two blocks

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/sparse_attn_paged_decode/clusters.cuh"
#include "sparsekit/sparse_attn_paged_decode/store.cuh"

#include "block16.cuh"
#include "pair16.cuh"

namespace sparsekit::sparse_attn_paged_decode {

// ---------------------------------------------------------------- launch facts

template <int kHeads>
using SharedOfAll = SharedMemory<kHeads, kMostColumns, 2, kHalves * kParities>;
using Wide16 = SharedOfOne<16, kMostColumns>;
using Narrow16 = SharedOfOne<16, kNarrowColumns>;
using Wide32 = SharedOfOne<32, kMostColumns>;
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_spread16, sizeof(Wide16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_spread16_narrow, sizeof(Narrow16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_spread32, sizeof(Wide32));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_long16, sizeof(Wide16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_serial32, sizeof(SharedOfAll<32>));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_block16, sizeof(SharedOfShort));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_decode_pair16, sizeof(SharedOfPair));

// ---------------------------------------------------------------- pieces of the kernel

/// The heads from first_head on of one row in one block, the next part under way.
template <int kHeads>
__device__ __forceinline__ void attend_all(const Row& row, float scale, int first_head, int h,
                                           const Results& results) {
  auto& smem = shared_memory<SharedOfAll<kHeads>>();
  const int index = part_index(row, 0);
  int next_index = part_index(row, 1);  // looked up long before its rows are asked for
  load_q(smem.q, row, first_head, h);
  cp_async_commit_group();
  bool listed = gather(smem.kv[0], smem.valid[0], row, 0, index);
  cp_async_wait_group<1>();
  __syncthreads();
  HeldQ<kHeads> held_q;
  held_q.load(smem.q);

  Part<kHeads> all;
  bool more = row.parts > 0;
#pragma unroll 1
  for (int part = 0; more; ++part) {
    const int buffer = part % 2;
    more = part + 1 < row.parts && (part + 1) * row.part_columns < row.live;
    cp_async_wait_group<0>();
    const bool lists = bar_red_or_pred(kPartReady, kThreads, listed);
    if (more) {
      listed = gather(smem.kv[buffer ^ 1], smem.valid[buffer ^ 1], row, part + 1, next_index);
      next_index = part_index(row, part + 2);
    }
    if (!lists) continue;
    all.any = true;
    Out<kHeads> of_part;
    multiply_part<kHeads, kMmaK>(smem, held_q, smem.kv[buffer], smem.valid[buffer], scale,
                                 row.part_columns, all.totals, of_part);
    fold_part<false>(all.o, of_part, smem.fold);
  }
  store_block<kHeads>(smem, all, first_head, h, results);
}

// ---------------------------------------------------------------- kernels

#define SPARSEKIT_ARGUMENTS                                                                  \
  const bf16 *__restrict__ q, const bf16 *__restrict__ window_pool,                          \
      const bf16 *__restrict__ cmp_pool, const float *__restrict__ attn_sink,                \
      const int *__restrict__ topk_idxs, const int *__restrict__ cmp_counts,                 \
      bf16 *__restrict__ out, float *__restrict__ lse, float softmax_scale, int h, int topk, \
      int n_window, int part_columns, int parts, int window_rows, int cmp_rows,              \
      long long q_b_stride, long long q_h_stride, long long window_pool_row_stride,          \
      long long cmp_pool_row_stride, long long idxs_b_stride, long long cmp_counts_b_stride, \
      long long out_b_stride, long long out_h_stride, long long lse_b_stride

// Row blockIdx.x / BLOCKS, heads from blockIdx.y * HEADS.
#define SPARSEKIT_ATTEND(ATTEND, BLOCKS, HEADS)                                                 \
  const long long b = blockIdx.x / (BLOCKS);                                                    \
  const int count = cmp_counts != nullptr ? __ldg(cmp_counts + b * cmp_counts_b_stride) : topk; \
  const int live = n_window + min(max(count, 0), topk - n_window);                              \
  const Row row = {q + b * q_b_stride,                                                          \
                   q_h_stride,                                                                  \
                   {window_pool, window_pool_row_stride, window_rows},                          \
                   {cmp_pool, cmp_pool_row_stride, cmp_rows},                                   \
                   topk_idxs + b * idxs_b_stride,                                               \
                   topk,                                                                        \
                   n_window,                                                                    \
                   live,                                                                        \
                   part_columns,                                                                \
                   parts};                                                                      \
  const Results results = {out + b * out_b_stride, out_h_stride,                                \
                           lse != nullptr ? lse + b * lse_b_stride : nullptr, attn_sink};       \
  ATTEND(row, softmax_scale, blockIdx.y*(HEADS), h, results)

// Grid: x = rows, times the blocks of a cluster where spread; y = blocks of heads.
// spread: at most kMostParts parts, of 16 heads where they have more than kNarrowColumns columns;
// narrow: where they have not; long: parts of kMostColumns columns; block: rows of at most
// kShortColumns columns, the last part counted whole; pair: at most kMostParts parts of at most
// kPairColumns columns.
extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_decode_spread16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kMostColumns, kNarrowColumns + 1>), kMostParts, 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 3)
    sparse_attn_paged_decode_spread16_narrow(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kNarrowColumns, kMmaK>), kMostParts, 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_decode_spread32(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<32, kMostColumns, kMmaK>), kMostParts, 32);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_decode_long16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_some<16>), kMostParts, 16);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_attn_paged_decode_serial32(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_all<32>), 1, 32);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_attn_paged_decode_block16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND(attend_short, 1, kShortHeads);
}

extern "C" __global__ void __cluster_dims__(kPairBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    sparse_attn_paged_decode_pair16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND(attend_pair, kPairBlocks, kShortHeads);
}

}  // namespace sparsekit::sparse_attn_paged_decode
