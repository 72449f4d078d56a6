// Softmax-weighted mean over the rows of a group, each column by itself.
//
//   out[b, d] = sum_r kv[b, r, d] softmax_r(score[b, :, d])
//
// Rows are loaded side by side, all before the first is used; the sums go upwards from row 0:
//   top = max_r score_r                              exact, NaN if one is
//   w_r = ex2.approx((score_r - top) log2(e))        difference and product each rounded
//   den += w_r;  num = fma(w_r, kv_r, num)
//   out = div.full(num, den)                         then rounded once to the type of out
//
// Few rows: a thread has a column and all its rows. More: a block has kColumns columns, its threads
// have some rows of one column each; weights and values meet in shared memory, where one thread per
// column sums them.

#include "sparsekit/element.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/softmax.cuh"

namespace sparsekit::gated_pool {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

using Kv = SK_TYPE_KV;
using Score = SK_TYPE_SCORE;
using Out = SK_TYPE_OUT;

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kFewRows = SK_FEW_ROWS,        // the most rows that a thread has by itself
  kFewThreads = SK_FEW_THREADS,  // columns of such a block
  kColumns = SK_COLUMNS,         // of a block otherwise
  kThreads = SK_THREADS,
  kDepth = SK_DEPTH,  // rows of a thread that are under way at once

  kWarp = 32,
  kWarps = kThreads / kWarp,
  kRowStep = kThreads / kColumns,  // rows that the threads have side by side
  kChunk = kRowStep * kDepth,      // rows under way in a block
  kSumStep = 16,                   // rows whose weights are read together for the sums
};

static_assert(kColumns <= kWarp && kWarp % kColumns == 0, "one warp sums all columns");
static_assert(kChunk % kSumStep == 0, "the last rows of a sum are of the same chunk");

// ---------------------------------------------------------------- shared memory

struct SharedMemory {
  float2 weighted[2][kChunk][kColumns];  // weight and value
  float top[kWarps][kColumns];
};

// ---------------------------------------------------------------- launch facts

SPARSEKIT_DYNAMIC_SMEM_BYTES(gated_pool_staged, sizeof(SharedMemory));

// ---------------------------------------------------------------- pieces of the kernel

/// The value of a row past the last: with the weight 0 it changes no sum, not even one of -0.
__device__ __forceinline__ float no_value() { return -0.0f; }

__device__ __forceinline__ float weight_of(float score, float top) {
  return ex2_approx_f32(__fmul_rn(__fsub_rn(score, top), log2_e()));
}

/// A weight of 0 would keep a NaN in kv.
__device__ __forceinline__ float kept(float score, float value) {
  return score == -infinity() ? 0.0f : value;
}

struct Sums {
  float den = 0.0f, num = 0.0f;

  __device__ __forceinline__ void add(float weight, float value) {
    den = __fadd_rn(den, weight);
    num = __fmaf_rn(weight, value, num);
  }

  __device__ __forceinline__ float mean(float top) const {
    return top == -infinity() ? 0.0f : div_full_f32(num, den);
  }
};

/// A thread's rows of a chunk; past the last row -inf and no_value().
struct Rows {
  float score[kDepth], value[kDepth];

  /// `column` at row `first`, of `rows`.
  __device__ __forceinline__ void load_scores(const Score* column, long long stride, int first,
                                              int rows) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i, column += kRowStep * stride) {
      score[i] = first + i * kRowStep < rows ? load_element(column) : -infinity();
    }
  }

  __device__ __forceinline__ void load_values(const Kv* column, long long stride, int first,
                                              int rows) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i, column += kRowStep * stride) {
      value[i] = first + i * kRowStep < rows ? load_element(column) : no_value();
    }
  }

  __device__ __forceinline__ float top(float so_far) const {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) so_far = max_NaN_f32(so_far, score[i]);
    return so_far;
  }
};

/// The maximum over the threads of a column.
__device__ __forceinline__ float block_top(SharedMemory& smem, float top, int column) {
#pragma unroll
  for (int lanes = kColumns; lanes < kWarp; lanes *= 2) {
    top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, lanes));
  }
  smem.top[threadIdx.x / kWarp][column] = top;  // the same from every lane of the column
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) top = max_NaN_f32(top, smem.top[warp][column]);
  return top;
}

// ---------------------------------------------------------------- kernels

// Grid: x = groups, y = blocks of kFewThreads columns. 1 <= R <= kFewRows.
extern "C" __global__ void __launch_bounds__(kFewThreads)
    gated_pool_few(const Kv* __restrict__ kv, const Score* __restrict__ score,
                   Out* __restrict__ out, int R, int D, long long kv_b_stride,
                   long long kv_r_stride, long long score_b_stride, long long score_r_stride,
                   long long out_b_stride) {
  const long long group = blockIdx.x;
  const int column = blockIdx.y * kFewThreads + threadIdx.x;
  if (column >= D) return;
  const Score* score_column = score + group * score_b_stride + column;
  const Kv* kv_column = kv + group * kv_b_stride + column;

  // The last row again instead of rows that do not exist, so that no load waits for a condition.
  float scores[kFewRows], values[kFewRows];
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    scores[r] = load_element(score_column);
    values[r] = load_element(kv_column);
    if (r + 1 < R) score_column += score_r_stride, kv_column += kv_r_stride;
  }

  float top = scores[0];
#pragma unroll
  for (int r = 1; r < kFewRows; ++r) top = max_NaN_f32(top, scores[r]);
  Sums sums;
#pragma unroll
  for (int r = 0; r < kFewRows; ++r) {
    const bool exists = r < R;
    const float weight = weight_of(scores[r], top), value = kept(scores[r], values[r]);
    sums.add(exists ? weight : 0.0f, exists ? value : no_value());
  }
  store_element(out + group * out_b_stride + column, sums.mean(top));
}

// Grid: x = groups, y = blocks of kColumns columns. R >= 1.
extern "C" __global__ void __launch_bounds__(kThreads)
    gated_pool_staged(const Kv* __restrict__ kv, const Score* __restrict__ score,
                      Out* __restrict__ out, int R, int D, long long kv_b_stride,
                      long long kv_r_stride, long long score_b_stride, long long score_r_stride,
                      long long out_b_stride) {
  extern __shared__ __align__(sizeof(float2)) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const long long group = blockIdx.x;
  const int own_column = threadIdx.x % kColumns, own_row = threadIdx.x / kColumns;
  const int column = blockIdx.y * kColumns + own_column, real_column = min(column, D - 1);
  const Score* score_column = score + group * score_b_stride + real_column;
  const Kv* kv_column = kv + group * kv_b_stride + real_column;

  // The first chunk stays; scores of the others are loaded again with their values.
  Rows rows;
  score_column += own_row * score_r_stride, kv_column += own_row * kv_r_stride;
  rows.load_scores(score_column, score_r_stride, own_row, R);
  rows.load_values(kv_column, kv_r_stride, own_row, R);
  float top = rows.top(-infinity());
#pragma unroll 1
  for (int first = kChunk; first < R; first += kChunk) {
    Rows more;
    more.load_scores(score_column + first * score_r_stride, score_r_stride, first + own_row, R);
    top = more.top(top);
  }
  top = block_top(smem, top, own_column);

  Sums sums;
#pragma unroll 1
  for (int first = 0, buffer = 0; first < R; buffer ^= 1) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const bool exists = first + own_row + i * kRowStep < R;
      smem.weighted[buffer][own_row + i * kRowStep][own_column] = make_float2(
          weight_of(rows.score[i], top), exists ? kept(rows.score[i], rows.value[i]) : no_value());
    }
    __syncthreads();

    // The next chunk is under way while this one is summed.
    const int end = min(R - first, static_cast<int>(kChunk));
    first += kChunk;
    if (first < R) {
      rows.load_scores(score_column + first * score_r_stride, score_r_stride, first + own_row, R);
      rows.load_values(kv_column + first * kv_r_stride, kv_r_stride, first + own_row, R);
    }
    if (threadIdx.x >= kColumns) continue;
#pragma unroll 1
    for (int row = 0; row < end; row += kSumStep) {
      float2 step[kSumStep];
#pragma unroll
      for (int i = 0; i < kSumStep; ++i) step[i] = smem.weighted[buffer][row + i][own_column];
#pragma unroll
      for (int i = 0; i < kSumStep; ++i) sums.add(step[i].x, step[i].y);
    }
  }
  if (threadIdx.x < kColumns && column < D) {
    store_element(out + group * out_b_stride + column, sums.mean(top));
  }
}

}  // namespace sparsekit::gated_pool
