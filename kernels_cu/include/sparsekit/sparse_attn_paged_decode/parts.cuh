// A part of a row's columns, and what every entry does with one: rows, scores, weights, O.
//
// All 8 warps gather. Q K^T: a warp has half of d and every fourth tile of 8 columns. Softmax: 16
// lanes have a head. P V: a warp has 64 of the 512 columns of O.
#pragma once

#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/shared_address.cuh"
#include "sparsekit/softmax.cuh"

namespace sparsekit::sparse_attn_paged_decode {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kPTerms = SK_P_TERMS,  // bf16 numbers that a weight is the sum of: 1, or 2 for 16 bits of it

  kD = 512,
  kMostParts = 8,  // of a cluster, unless its blocks fold some first
  kMostColumns = SK_PART_COLUMNS,
  kNarrowColumns = SK_NARROW_COLUMNS,  // of the parts that let more blocks fit an SM
  kWarp = 32,
  kWarps = 8,
  kThreads = kWarps * kWarp,

  kMmaM = 16,
  kMmaN = 8,
  kMmaK = 16,
  kChunk = 8,  // bf16 in 16 bytes
  kChunkBytes = 16,
  kLineBytes = 128,
  kRowBytes = kD * sizeof(bf16),
  kRowChunks = kD / kChunk,

  kHalves = 2,    // of d, in Q K^T
  kParities = 2,  // of the 16-wide steps of a half
  kHalfChunks = kRowChunks / kHalves,
  kStepsOfParity = kHalfChunks * kChunk / kMmaK / kParities,
  kLanesOfHead = 16,           // in the softmax
  kWarpColumns = kD / kWarps,  // of O
  kOutTiles = kWarpColumns / kMmaN,

  // Rows padded so that eight of them, or four for 8-byte accesses, meet all banks.
  kPad = 8,
  kOutRow = kD + 8,
};

static_assert(kPTerms == 1 || kPTerms == 2, "a weight is one bf16 or the sum of two");
// ---------------------------------------------------------------- rows

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

/// O of a block's heads, in the layout of the accumulators.
template <int kHeads>
struct Out {
  float of[kHeads / kMmaM][kOutTiles][4];
};

/// e^(x - of), or 0 where x is -inf and nothing is above it.
__device__ __forceinline__ float weight_of(float x, float of) {
  const float reference = of == -infinity() ? 0.0f : of;
  return ex2_approx_ftz_f32(__fmul_rn(__fsub_rn(x, reference), log2_e()));
}

__device__ __forceinline__ float folded(float so_far, float a, float part, float b) {
  return __fmaf_rn(part, b, __fmul_rn(so_far, a));
}

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

// ---------------------------------------------------------------- scores

/// The first columns of a warp's tiles: every kGroups-th, or the last of the part again.
template <int kTiles, int kGroups>
struct Tiles {
  int first[kTiles];
  bool own[kTiles];  // else another warp has it

  __device__ __forceinline__ Tiles(int group, int part_columns) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int column = (group + j * kGroups) * kMmaN;
      first[j] = min(column, part_columns - kMmaN);
      own[j] = column == first[j];
    }
  }
};

/// Q in shared memory: a warp has a half of d and every fourth tile. The scores come where Q was.
template <int kHeads>
struct SharedQ {
  enum : int { kSums = kHalves, kGroups = kWarps / kSums };
  const bf16 (&q)[kHeads][kD];

  template <int kTiles, int kColumns, int kScoreRow>
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kColumns][kD],
                                           float (&score)[kSums][kHeads][kScoreRow],
                                           int part_columns) const {
    constexpr int kHeadTiles = kHeads / kMmaM;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, half = warp % kHalves;
    const Tiles<kTiles, kGroups> tiles(warp / kSums, part_columns);
    float s[kTiles][kParities][kHeadTiles][4] = {};
#pragma unroll 2
    for (int chunk = 0; chunk < kHalfChunks; chunk += 4) {
      const int first_chunk = half * kHalfChunks + chunk;
      unsigned a[kParities][kHeadTiles][4], b[kTiles][4];
#pragma unroll
      for (int parity = 0; parity < kParities; ++parity) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
          ldmatrix_sync_aligned_m8n8_x4_shared_b16(
              a[parity][m],
              chunk_address(q, m * kMmaM + lane % 16, first_chunk + 2 * parity + lane / 16));
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b[j], chunk_address(kv, tiles.first[j] + lane % 8, first_chunk + lane / 8));
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
          for (int parity = 0; parity < kParities; ++parity) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
                s[j][parity][m], a[parity][m], b[j][2 * parity], b[j][2 * parity + 1]);
          }
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!tiles.own[j]) continue;
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<float2*>(
              &score[half][m * kMmaM + lane / 4 + 8 * i][tiles.first[j] + lane % 4 * 2]) =
              make_float2(s[j][0][m][2 * i] + s[j][1][m][2 * i],
                          s[j][0][m][2 * i + 1] + s[j][1][m][2 * i + 1]);
        }
      }
    }
  }
};

/// Q in registers for all parts: a warp has the even or the odd 16-wide steps of a half of d, and
/// every other tile.
template <int kHeads>
struct HeldQ {
  enum : int { kSums = kHalves * kParities, kGroups = kWarps / kSums };
  unsigned a[kStepsOfParity][kHeads / kMmaM][4];

  /// Where this warp's step begins; the next is kParities * 2 chunks on.
  __device__ __forceinline__ static int first_chunk() {
    const int sum = threadIdx.x / kWarp % kSums;
    return sum / kParities * kHalfChunks + sum % kParities * 2;
  }

  __device__ __forceinline__ void load(const bf16 (&q)[kHeads][kD]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kStepsOfParity; ++step) {
#pragma unroll
      for (int m = 0; m < kHeads / kMmaM; ++m) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[step][m], chunk_address(q, m * kMmaM + lane % 16,
                                      first_chunk() + step * kParities * 2 + lane / 16));
      }
    }
  }

  template <int kTiles, int kColumns, int kScoreRow>
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kColumns][kD],
                                           float (&score)[kSums][kHeads][kScoreRow],
                                           int part_columns) const {
    constexpr int kHeadTiles = kHeads / kMmaM;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const Tiles<kTiles, kGroups> tiles(warp / kSums, part_columns);
    float s[kTiles][kHeadTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kStepsOfParity; step += 2) {
      unsigned b[kTiles][4];  // of this step and the next
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const int chunk = first_chunk() + (step + lane / 16) * kParities * 2 + lane / 8 % 2;
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b[j], chunk_address(kv, tiles.first[j] + lane % 8, chunk));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
#pragma unroll
          for (int m = 0; m < kHeadTiles; ++m) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(s[j][m], a[step + i][m],
                                                                b[j][2 * i], b[j][2 * i + 1]);
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      if (!tiles.own[j]) continue;
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<float2*>(
              &score[warp % kSums][m * kMmaM + lane / 4 + 8 * i][tiles.first[j] + lane % 4 * 2]) =
              make_float2(s[j][m][2 * i], s[j][m][2 * i + 1]);
        }
      }
    }
  }
};

template <int kScoreRow, int kHeads>
__device__ __forceinline__ float score_of(const float (&sums)[kHalves][kHeads][kScoreRow], int head,
                                          int column) {
  return sums[0][head][column] + sums[1][head][column];
}

template <int kScoreRow, int kHeads>
__device__ __forceinline__ float score_of(
    const float (&sums)[kHalves * kParities][kHeads][kScoreRow], int head, int column) {
  return (sums[0][head][column] + sums[1][head][column]) +
         (sums[2][head][column] + sums[3][head][column]);
}

// ---------------------------------------------------------------- weights

/// M and L of a head.
struct Totals {
  float max = -infinity(), sum = 0.0f;

  /// Adds a part; gives a and b.
  __device__ __forceinline__ float2 fold(float part_max, float part_sum) {
    const float top = max_NaN_f32(max, part_max);
    const float a = weight_of(max, top), b = weight_of(part_max, top);
    sum = folded(sum, a, part_sum, b);
    max = top;
    return make_float2(a, b);
  }
};

/// The heads of a softmax lane are kHeadsAtOnce apart.
enum : int { kHeadsAtOnce = kThreads / kLanesOfHead };

/// The two heads of a warp are two apart: their scores then meet all banks.
__device__ __forceinline__ int head_of_lane(int round) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  return round * kHeadsAtOnce + warp / 2 * 4 + warp % 2 + lane / kLanesOfHead * 2;
}

/// The weights of a part and its place in the totals, of all heads side by side.
template <int kHeads, int kColumns, class Shared>
__device__ __forceinline__ void weigh(Shared& smem, const unsigned char (&valid)[kColumns],
                                      float scale, int part_columns,
                                      Totals (&totals)[kHeads / kHeadsAtOnce]) {
  constexpr int kRounds = kHeads / kHeadsAtOnce, kMostOfLane = kColumns / kLanesOfHead;
  const int lane = threadIdx.x % kLanesOfHead;
  bool listed[kMostOfLane];
  float x[kRounds][kMostOfLane], top[kRounds], sum[kRounds];
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int column = lane + i * kLanesOfHead;
    listed[i] = column < part_columns && valid[column];
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = head_of_lane(round);
    top[round] = -infinity();
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const int column = lane + i * kLanesOfHead;
      const float score = score_of(smem.score, head, column);
      x[round][i] = listed[i] ? __fmul_rn(score, scale) : -infinity();
      top[round] = max_NaN_f32(top[round], x[round][i]);
    }
  }
#pragma unroll
  for (int lanes = kLanesOfHead / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      top[round] = max_NaN_f32(top[round], __shfl_xor_sync(0xffffffff, top[round], lanes));
    }
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = head_of_lane(round);
    sum[round] = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) {
      const int column = lane + i * kLanesOfHead;
      const float e = weight_of(x[round][i], top[round]);
      sum[round] = __fadd_rn(sum[round], e);
      // 0 x is 0, but NaN for a score that is not finite: -inf would have the weight 0 unnoticed.
      const float weight = listed[i] ? __fmaf_rn(x[round][i], 0.0f, e) : 0.0f;
      const unsigned short high = cvt_rn_bf16_f32(weight);
      smem.p[0][head][column].bits = high;
      if (kPTerms == 2) {
        const float rest = weight - __int_as_float(high << 16);
        smem.p[kPTerms - 1][head][column].bits = cvt_rn_bf16_f32(rest);
      }
    }
  }
#pragma unroll
  for (int lanes = kLanesOfHead / 2; lanes > 0; lanes /= 2) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      sum[round] = __fadd_rn(sum[round], __shfl_xor_sync(0xffffffff, sum[round], lanes));
    }
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const float2 factors = totals[round].fold(top[round], sum[round]);
    if (lane == 0) smem.fold[head_of_lane(round)] = factors;
  }
}

// ---------------------------------------------------------------- O

/// part = P V, for 64 columns of O.
template <int kHeads, int kColumns, int kPRow>
__device__ __forceinline__ void multiply_p(const bf16 (&p)[kPTerms][kHeads][kPRow],
                                           const bf16 (&kv)[kColumns][kD], int part_columns,
                                           Out<kHeads>& part) {
  constexpr int kHeadTiles = kHeads / kMmaM;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  part = {};
#pragma unroll 1
  for (int first = 0; first < part_columns; first += kMmaK) {
    unsigned a[kPTerms][kHeadTiles][4];
#pragma unroll
    for (int term = 0; term < kPTerms; ++term) {
#pragma unroll
      for (int m = 0; m < kHeadTiles; ++m) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[term][m],
            shared_address(&p[term][m * kMmaM + lane % 16][first + lane / 16 * kChunk]));
      }
    }
#pragma unroll
    for (int tile = 0; tile < kOutTiles; tile += 2) {
      unsigned b[4];
      ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
          b, chunk_address(kv, first + lane % 16, warp * kOutTiles + tile + lane / 16));
#pragma unroll
      for (int term = kPTerms - 1; term >= 0; --term) {
#pragma unroll
        for (int m = 0; m < kHeadTiles; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(part.of[m][tile + i], a[term][m],
                                                                b[2 * i], b[2 * i + 1]);
          }
        }
      }
    }
  }
}

/// O' = O_part b + O a, without O, which is 0 then, for the first of a block.
template <bool kFirst, int kHeads>
__device__ __forceinline__ void fold_part(Out<kHeads>& o, const Out<kHeads>& part,
                                          const float2 (&fold)[kHeads]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
    const float2 low = fold[m * kMmaM + lane / 4], high = fold[m * kMmaM + lane / 4 + 8];
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 factors = i < 2 ? low : high;
        o.of[m][tile][i] =
            kFirst ? __fmaf_rn(part.of[m][tile][i], factors.y, 0.0f)
                   : folded(o.of[m][tile][i], factors.x, part.of[m][tile][i], factors.y);
      }
    }
  }
}

// ---------------------------------------------------------------- results

/// Where the results of a row go. lse: null where nobody asks for it.
struct Results {
  bf16* out;
  long long out_head_stride_elems;
  float* lse;
  const float* attn_sink;
};

/// The factor of O in out.
__device__ __forceinline__ float factor_of(const Totals& totals, bool any, float sink) {
  return any ? output_scale(totals.max, totals.sum, sink) : 0.0f;
}

__device__ __forceinline__ float lse_of(const Totals& totals, bool any) {
  return !any || totals.max == infinity() ? infinity() : totals.max + logf(totals.sum);
}

/// + 0 makes -0 to 0, as a part that lists nothing does to O: leaving it out then changes no bit.
__device__ __forceinline__ unsigned out_pair(float low, float high, float factor) {
  return cvt_rn_bf16x2_f32(__fmaf_rn(high, factor, 0.0f), __fmaf_rn(low, factor, 0.0f));
}

/// One part of a block, or some that are folded.
template <int kHeads>
struct Part {
  Out<kHeads> o = {};
  Totals totals[kHeads / kHeadsAtOnce];
  bool any = false;  // whether anything is listed
};

// ---------------------------------------------------------------- shared memory

template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(kLineBytes) unsigned char dynamic_smem[];
  return *reinterpret_cast<Shared*>(dynamic_smem);
}

}  // namespace sparsekit::sparse_attn_paged_decode
