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
//
// All 8 warps gather. Q K^T: a warp has half of d and every fourth tile of 8 columns. Softmax: 16
// lanes have a head. P V: a warp has 64 of the 512 columns of O.

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cluster.cuh"
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

// ---------------------------------------------------------------- shared memory

// Chunk c of row r lies at chunk c ^ (r % 8) of its 128-byte line, so that the eight rows of one
// chunk column, which is what ldmatrix reads at once, meet all banks.
//
// kBuffers: parts whose rows are under way at once. kSums: sums over some of d that a score is the
// sum of.
template <int kHeads, int kColumns, int kBuffers, int kSums>
struct SharedMemory {
  union {
    alignas(kLineBytes) bf16 kv[kBuffers][kColumns][kD];
    alignas(kLineBytes) float out[kHeads][kOutRow];  // when all parts are done
  };
  union {
    alignas(kLineBytes) bf16 q[kHeads][kD];
    struct {  // when Q has been read
      alignas(kChunkBytes) float score[kSums][kHeads][kColumns + kPad];
      alignas(kChunkBytes) bf16 p[kPTerms][kHeads][kColumns + kPad];
    };
  };
  alignas(kChunkBytes) float4 end[kHeads];  // M, L, whether anything is listed
  float2 fold[kHeads];                      // a, b; in the end .x is the factor of O in out
  unsigned char valid[kBuffers][kColumns];
};

// ---------------------------------------------------------------- barriers

enum Barrier : unsigned {  // 0 is __syncthreads
  kPartReady = 1,          // kThreads: the rows of a part stand, the part before it is done
};

// ---------------------------------------------------------------- launch facts

template <int kHeads, int kColumns>
using SharedOfOne = SharedMemory<kHeads, kColumns, 1, kHalves>;
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

// ---------------------------------------------------------------- pieces of the kernel

struct Pool {
  const bf16* rows;
  long long row_stride_elems;
  int count;
};

/// One row of the batch.
struct Row {
  const bf16* q;
  long long q_head_stride_elems;
  Pool window, compressed;
  const int* indices;
  int topk, n_window, live;  // columns from `live` on are dead
  int part_columns;          // a multiple of 16
  int parts;                 // of all columns
};

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

__device__ __forceinline__ int part_index(const Row& row, int part) {
  const int column = looked_up();
  return column < row.part_columns
             ? load_index(row.indices, part * row.part_columns + column, row.topk)
             : -1;
}

template <int kHeads>
__device__ __forceinline__ void load_q(bf16 (&q)[kHeads][kD], const Row& row, int first_head,
                                       int h) {
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

/// Starts the copies of a part's rows, zeros where nothing is listed; whether this lane's is.
template <int kColumns>
__device__ __forceinline__ bool gather(bf16 (&kv)[kColumns][kD], unsigned char (&valid)[kColumns],
                                       const Row& row, int part, int index) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int column = part * row.part_columns + looked_up();
  const bool in_window = column < row.n_window;
  const long long stride =
      in_window ? row.window.row_stride_elems : row.compressed.row_stride_elems;
  const bool listed =
      is_valid(index, in_window ? row.window.count : row.compressed.count) && column < row.live;
  const bf16* src = in_window ? row.window.rows : row.compressed.rows;
  // Of nothing listed nothing is read, but the address is one that could be.
  const unsigned long long own =
      reinterpret_cast<unsigned long long>(listed ? src + index * stride : row.q);
  const unsigned all = __ballot_sync(0xffffffff, listed);
  if (looked_up() < row.part_columns) valid[looked_up()] = listed;
#pragma unroll
  for (int i = 0; i < kColumns / kWarps; ++i) {
    if (i * kWarps >= row.part_columns) break;
    const auto from = reinterpret_cast<const bf16*>(__shfl_sync(0xffffffff, own, i));
    const unsigned bytes = all >> i & 1 ? kChunkBytes : 0;
    const int to = i * kWarps + warp;
#pragma unroll
    for (int chunk = lane; chunk < kRowChunks; chunk += kWarp) {
      const bf16* piece = from + (bytes != 0 ? chunk * kChunk : 0);
      cp_async_cg_shared_global_l2_128b_16(chunk_address(kv, to, chunk), piece, bytes);
    }
  }
  cp_async_commit_group();
  return listed;
}

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

/// M and L of a head, the same in its 16 lanes.
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

/// Leaves the part of this block for the cluster, then folds some heads of all its blocks.
template <int kHeads, class Shared>
__device__ __forceinline__ void fold_cluster(Shared& smem, const Part<kHeads>& own, int first_head,
                                             int h, const Results& results) {
  constexpr int kVec = 4, kVecs = kD / kVec, kHeadsOfBlock = kHeads / kMostParts;
  constexpr int kUnits = kHeadsOfBlock * kVecs / kThreads;  // of a thread
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rank = cluster_ctarank();
  float sink[kUnits];  // on its way while O is written
#pragma unroll
  for (int v = 0; v < kUnits; ++v) {
    const int head = first_head + rank * kHeadsOfBlock + (v * kThreads + threadIdx.x) / kVecs;
    sink[v] = head < h ? __ldg(results.attn_sink + head) : 0.0f;
  }
  __syncthreads();  // O comes where the rows were
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = m * kMmaM + lane / 4 + 8 * i;
        const float* from = own.o.of[m][tile] + 2 * i;
        *reinterpret_cast<float2*>(
            &smem.out[head][warp * kWarpColumns + tile * kMmaN + lane % 4 * 2]) =
            make_float2(from[0], from[1]);
      }
    }
  }
#pragma unroll
  for (int round = 0; round < kHeads / kHeadsAtOnce; ++round) {
    const Totals& totals = own.totals[round];
    if (threadIdx.x % kLanesOfHead == 0) {
      smem.end[head_of_lane(round)] =
          make_float4(totals.max, totals.sum, own.any ? 1.0f : 0.0f, 0.0f);
    }
  }
  barrier_cluster_arrive_release_aligned();
  barrier_cluster_wait_acquire_aligned();

#pragma unroll
  for (int v = 0; v < kUnits; ++v) {
    const int unit = v * kThreads + threadIdx.x;
    const int of_block = rank * kHeadsOfBlock + unit / kVecs, head = first_head + of_block;
    float4 o[kMostParts], end[kMostParts];
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      end[part] = ld_shared_cluster_v4_f32(
          mapa_shared_cluster_u32(shared_address(&smem.end[of_block]), part));
      o[part] = ld_shared_cluster_v4_f32(
          mapa_shared_cluster_u32(shared_address(&smem.out[of_block][unit % kVecs * kVec]), part));
    }
    // A block stays until all have read its O.
    if (v == kUnits - 1) barrier_cluster_arrive_release_aligned();
    if (head >= h) continue;
    Totals all;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bool listed = false;
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      const float2 ab = all.fold(end[part].x, end[part].y);
      const float4 next = o[part];
      sum.x = folded(sum.x, ab.x, next.x, ab.y), sum.y = folded(sum.y, ab.x, next.y, ab.y);
      sum.z = folded(sum.z, ab.x, next.z, ab.y), sum.w = folded(sum.w, ab.x, next.w, ab.y);
      listed |= end[part].z != 0.0f;
    }
    const float factor = factor_of(all, listed, sink[v]);
    *reinterpret_cast<uint2*>(results.out + head * results.out_head_stride_elems +
                              unit % kVecs * kVec) =
        make_uint2(out_pair(sum.x, sum.y, factor), out_pair(sum.z, sum.w, factor));
    if (unit % kVecs == 0 && results.lse != nullptr) results.lse[head] = lse_of(all, listed);
  }
  barrier_cluster_wait_acquire_aligned();
}

/// Writes the heads of a block that had all parts.
template <int kHeads, class Shared>
__device__ __forceinline__ void store_block(Shared& smem, const Part<kHeads>& all, int first_head,
                                            int h, const Results& results) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  __syncthreads();  // a and b of the last part have been read
#pragma unroll
  for (int round = 0; round < kHeads / kHeadsAtOnce; ++round) {
    const int head = first_head + head_of_lane(round);
    if (threadIdx.x % kLanesOfHead == 0 && head < h) {
      smem.fold[head_of_lane(round)].x =
          factor_of(all.totals[round], all.any, __ldg(results.attn_sink + head));
      if (results.lse != nullptr) results.lse[head] = lse_of(all.totals[round], all.any);
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = m * kMmaM + lane / 4 + 8 * i;
      if (first_head + own >= h) continue;
      const float factor = smem.fold[own].x;
      bf16* out = results.out + (first_head + own) * results.out_head_stride_elems +
                  warp * kWarpColumns + lane % 4 * 2;
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
        *reinterpret_cast<unsigned*>(out + tile * kMmaN) =
            out_pair(all.o.of[m][tile][2 * i], all.o.of[m][tile][2 * i + 1], factor);
      }
    }
  }
}

/// Scores and weights of a part whose rows stand; then its O is part of P V. kLeast: no part has
/// fewer columns.
template <int kHeads, int kLeast, int kColumns, class Shared, class Q>
__device__ __forceinline__ void multiply_part(Shared& smem, const Q& q,
                                              const bf16 (&kv)[kColumns][kD],
                                              const unsigned char (&valid)[kColumns], float scale,
                                              int part_columns,
                                              Totals (&totals)[kHeads / kHeadsAtOnce],
                                              Out<kHeads>& part) {
  constexpr int kGroupColumns = Q::kGroups * kMmaN;
  constexpr int kMost = (kColumns + kGroupColumns - 1) / kGroupColumns, kSome = (kMost + 1) / 2;
  if (kLeast <= kGroupColumns && part_columns <= kGroupColumns) {
    q.template multiply<1>(kv, smem.score, part_columns);
  } else if (kLeast <= kSome * kGroupColumns && part_columns <= kSome * kGroupColumns) {
    q.template multiply<kSome>(kv, smem.score, part_columns);
  } else {
    q.template multiply<kMost>(kv, smem.score, part_columns);
  }
  __syncthreads();
  weigh<kHeads>(smem, valid, scale, part_columns, totals);
  __syncthreads();
  multiply_p(smem.p, kv, part_columns, part);
}

template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(kLineBytes) unsigned char dynamic_smem[];
  return *reinterpret_cast<Shared*>(dynamic_smem);
}

/// The heads from first_head on of one row, a block of the cluster for each part.
template <int kHeads, int kColumns, int kLeast>
__device__ __forceinline__ void attend_one(const Row& row, float scale, int first_head, int h,
                                           const Results& results) {
  auto& smem = shared_memory<SharedOfOne<kHeads, kColumns>>();
  const int part = cluster_ctarank();
  const int index = part_index(row, part);
  load_q(smem.q, row, first_head, h);
  const bool listed = gather(smem.kv[0], smem.valid[0], row, part, index);
  cp_async_wait_group<0>();
  Part<kHeads> own;
  own.any = bar_red_or_pred(kPartReady, kThreads, listed);
  if (own.any) {
    const SharedQ<kHeads> shared_q = {smem.q};
    multiply_part<kHeads, kLeast>(smem, shared_q, smem.kv[0], smem.valid[0], scale,
                                  row.part_columns, own.totals, own.o);
    fold_part<true>(own.o, own.o, smem.fold);
  }
  fold_cluster(smem, own, first_head, h, results);
}

/// The same, where a block of the cluster may have several parts, which it folds.
template <int kHeads>
__device__ __forceinline__ void attend_some(const Row& row, float scale, int first_head, int h,
                                            const Results& results) {
  auto& smem = shared_memory<SharedOfOne<kHeads, kMostColumns>>();
  const int parts_of_block = (row.parts + kMostParts - 1) / kMostParts;
  const int first = static_cast<int>(cluster_ctarank()) * parts_of_block;
  const int end = min(first + parts_of_block, row.parts);
  Part<kHeads> own;
#pragma unroll 1
  for (int part = first; part < end && part * row.part_columns < row.live; ++part) {
    const int index = part_index(row, part);
    __syncthreads();  // the part before has been read
    load_q(smem.q, row, first_head, h);
    const bool listed = gather(smem.kv[0], smem.valid[0], row, part, index);
    cp_async_wait_group<0>();
    if (!bar_red_or_pred(kPartReady, kThreads, listed)) continue;
    own.any = true;
    const SharedQ<kHeads> shared_q = {smem.q};
    Out<kHeads> of_part;
    multiply_part<kHeads, kMostColumns>(smem, shared_q, smem.kv[0], smem.valid[0], scale,
                                        row.part_columns, own.totals, of_part);
    fold_part<false>(own.o, of_part, smem.fold);
  }
  fold_cluster(smem, own, first_head, h, results);
}

/// The same, where a block has all parts, the next one under way.
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
// narrow: where they have not; long: parts of kMostColumns columns.
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

}  // namespace sparsekit::sparse_attn_paged_decode
