// What kernels over pages of fp8 rows are launched with.
#pragma once

#include "sparsekit/sparse_attn_paged_decode/out.cuh"
#include "sparsekit/sparse_attn_paged_decode/pages.cuh"

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

// Row blockIdx.x / BLOCKS, heads from blockIdx.y * HEADS.
#define SPARSEKIT_ATTEND(ATTEND, BLOCKS, HEADS)                                                 \
  const long long b = blockIdx.x / (BLOCKS);                                                    \
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
