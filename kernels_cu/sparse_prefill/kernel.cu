// Sparse MLA prefill, portable: mma.sync, ldmatrix and cp.async only (sm_80 and later).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// One block: one token, kHeads heads, tiles of kBlockK rows in ascending order.
//   score warps (4)  S = Q K^T
//                    each takes half of the heads and every other 16-wide step of d
//   value warps (8)  gather of the rows, softmax, O += P V
//                    each takes 8 heads of the softmax; of O, all heads and 64 of the 512 columns
// The two work one tile apart and meet once a tile. V is the first 512 columns of the K tile, so
// that a row is gathered once.

#include "sparsekit/anew.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/special_register.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/shared_address.cuh"
#include "sparsekit/softmax.cuh"

namespace sparsekit::sparse_prefill {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kDQk = SK_D_QK,                    // columns of q and kv
  kDeriveLength = SK_SKIP,           // without topk_length, find the last valid index first
  kHeads = SK_HEADS_PER_BLOCK,       // heads of one block
  kBlockK = SK_BLOCK_K,              // rows of one tile
  kStages = SK_STAGES,               // tiles in the ring
  kQRegSteps = SK_Q_REGISTER_STEPS,  // d steps whose Q fragments a score warp keeps in registers

  kDV = 512,
  kWarp = 32,
  kScoreWarps = 4,
  kValueWarps = 8,
  kScoreThreads = kScoreWarps * kWarp,
  kValueThreads = kValueWarps * kWarp,
  kThreads = kValueThreads + kScoreThreads,

  kMmaK = 16,  // contraction length of one mma
  kChunk = 8,  // bf16 in 16 bytes
  kLine = 64,  // bf16 in 128 bytes, all the banks once
  kChunkBytes = 16,
  kLineBytes = 128,
  kLines = kDQk / kLine,  // of a row
  kRowBytes = kDQk * sizeof(bf16),
  kTileBytes = kBlockK * kRowBytes,
  kPRowBytes = kBlockK * sizeof(bf16),
  kPRowsPerLine = kLine / kBlockK,

  kDSteps = kDQk / kMmaK / 2,  // 16-wide steps of d of one score warp
  kQSharedSteps = kDSteps - kQRegSteps,
  kQSharedChunks = kQSharedSteps * 2 * kMmaK / kChunk,  // of one head
  kQSharedRowBytes = kQSharedChunks * kChunkBytes,
  kScoreHeadTiles = kHeads / 32,      // 16-head mma tiles of a score warp
  kScoreTokenTiles = kBlockK / 8,     // 8-token mma tiles of a score warp
  kScoreGroups = kHeads / 16,         // 8-head groups of a score warp
  kScoreVecs = kScoreTokenTiles / 2,  // float4 of S that a lane holds for one group
  kValueHeadTiles = kHeads / 16,      // 16-head mma tiles of a value warp
  kValueColTiles = kLine / 8,         // 8-column mma tiles of a value warp
  kHeadGroups = kHeads / 8,

  kGatherThreads = kBlockK * kLine / kChunk,      // one 128-byte line of every row of a tile
  kGatherSplit = kValueThreads / kGatherThreads,  // lines of a row gathered at once
  kGatherLoads = (kLines + kGatherSplit - 1) / kGatherSplit,
  kIndexTiles = 8,  // tiles of indices kept in shared memory
  kScanWarps = 8,   // of a block, with an index a lane in one round of the trailing scan
  kScanWidth = kScanWarps * kWarp,
};

static_assert(kDQk == 512 || kDQk == 576,
              "a row is 512 columns, with or without 64 more that only Q K^T sees");
static_assert(kHeads == 32 || kHeads == 64,
              "a score warp takes half of the heads, in 16-head tiles");
static_assert(kBlockK == 16 || kBlockK == 32, "a tile is at most one ballot of indices");
static_assert(kStages >= 3, "one tile in P V, one in Q K^T, one in flight");
static_assert(kScanWarps <= kValueWarps, "a lane of the scan loads one index");
static_assert(kStages < kIndexTiles,
              "indices arrive with the gather of their tile and last until its softmax");
static_assert(kQRegSteps % 2 == 0 && kQRegSteps <= kDSteps,
              "the shared part of Q starts on a 128-byte line");
static_assert(kDV / kValueWarps == kLine, "the columns of a value warp are one 128-byte line");

// ---------------------------------------------------------------- shared memory

// Chunk c of row r lies at chunk c ^ (r % 8) of its 128-byte line, so that the eight rows of one
// chunk column, which is what ldmatrix reads at once, meet all banks. Rows of P are shorter than a
// line: c ^ (line of the row).
struct SharedMemory {
  alignas(kLineBytes) bf16 kv[kStages][kBlockK][kDQk];
  alignas(kLineBytes) bf16 q[kHeads][kQSharedChunks > 0 ? kQSharedChunks * kChunk : kChunk];
  alignas(kLineBytes) unsigned p[kHeads][kBlockK / 2];  // two bf16 each
  // S as mma fragments; score warps 2 h and 2 h + 1 hold the two halves of d of head half h.
  alignas(kChunkBytes) float4 s[2][kScoreWarps][kScoreGroups][kScoreVecs][kWarp];
  // [head % 8][head / 8], so that the heads of a lane adjoin.
  alignas(kChunkBytes) float alpha[8][kHeadGroups];
  alignas(kChunkBytes) unsigned moved[kHeadGroups];  // whether any alpha of the group is not 1
  float o_scale[8][kHeadGroups];                     // the factor of O in out
  int index[kIndexTiles][kBlockK];                   // -1 past the row's length
  alignas(kChunkBytes) int scan_end[2][kScanWarps];  // of two rounds in turn; 0: none is valid
};

// ---------------------------------------------------------------- barriers

enum Barrier : unsigned {  // 0 is __syncthreads
  // kThreads: S of a tile stands, the next tile has landed, P V of the previous tile is done.
  kTileDone = 1,
  // kValueThreads: P and alpha stand.
  kPReady = 2,
  // kThreads: the ends of a round of the scan stand.
  kScanDone = 3,
};

// ---------------------------------------------------------------- launch facts

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_fwd, sizeof(SharedMemory));

// ---------------------------------------------------------------- pieces of the kernel

/// What a block works on. Computed where it is needed: kept over the loop, it would crowd out O.
struct Work {
  int token;
  int first_head;
  int heads;  // from first_head on, at most kHeads
};

__device__ __forceinline__ Work this_block(int h_q) {
  const int head_blocks = (h_q + kHeads - 1) / kHeads, block = ctaid_x();
  const int first_head = block % head_blocks * kHeads;
  return {block / head_blocks, first_head, min(h_q - first_head, kHeads)};
}

/// The index that this thread looks at in the round of the scan that begins at column `first`.
__device__ __forceinline__ int load_scanned(const int* row, int first, int topk) {
  return threadIdx.x < kScanWidth ? load_index(row, first + threadIdx.x, topk) : -1;
}

/// Last valid column + 1, the same in every thread of the block, all of which call it. `index` is
/// of the last kScanWidth columns; only rows padded further load again.
__device__ __forceinline__ int last_valid_column_end(SharedMemory& smem, int warp, int index,
                                                     const int* row, int topk, int s_kv) {
#pragma unroll 1
  for (int first = topk - kScanWidth, turn = 0;; first -= kScanWidth, turn ^= 1) {
    const int column = first + static_cast<int>(threadIdx.x);
    const int warp_end = redux_sync_max_s32(is_valid(index, s_kv) ? column + 1 : 0);
    if (warp < kScanWarps && threadIdx.x % kWarp == 0) smem.scan_end[turn][warp] = warp_end;
    barrier_sync(kScanDone, kThreads);
    int end = 0;
#pragma unroll
    for (int w = 0; w < kScanWarps; ++w) end = max(end, smem.scan_end[turn][w]);
    if (end > 0 || first <= 0) return end;
    index = load_scanned(row, first - kScanWidth, topk);
  }
}

/// S = Q K^T over this warp's d steps. Operands are loaded a step ahead.
__device__ __forceinline__ void score_mma(
    float (&s)[kScoreHeadTiles][kScoreTokenTiles][4],
    const unsigned (&q)[kQRegSteps > 0 ? kQRegSteps : 1][kScoreHeadTiles][4], unsigned q_shared,
    unsigned k_shared) {
  unsigned a[2][kScoreHeadTiles][4], b[2][kScoreTokenTiles / 2][4];
  const auto load = [&](int step) {
#pragma unroll
    for (int m = 0; m < kScoreHeadTiles; ++m) {
      if (step < kQRegSteps) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[step % 2][m][e] = q[step][m][e];
      } else {
        const int i = step - kQRegSteps;
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            a[step % 2][m],
            (q_shared ^ i % 2 * (kLineBytes / 2)) + i / 2 * kLineBytes + m * 16 * kQSharedRowBytes);
      }
    }
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles / 2; ++n) {
      ldmatrix_sync_aligned_m8n8_x4_shared_b16(
          b[step % 2][n],
          (k_shared ^ step % 2 * (kLineBytes / 2)) + step / 2 * kLineBytes + n * 16 * kRowBytes);
    }
  };
#pragma unroll
  for (int m = 0; m < kScoreHeadTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles; ++n) {
      s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
    }
  }
  load(0);
#pragma unroll
  for (int step = 0; step < kDSteps; ++step) {
    if (step + 1 < kDSteps) load(step + 1);
#pragma unroll
    for (int n = 0; n < kScoreTokenTiles; ++n) {
#pragma unroll
      for (int m = 0; m < kScoreHeadTiles; ++m) {
        const unsigned (&pair)[4] = b[step % 2][n / 2];
        mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(s[m][n], a[step % 2][m],
                                                            pair[n % 2 * 2], pair[n % 2 * 2 + 1]);
      }
    }
  }
}

/// O += P V over one 16-row step of the tile.
__device__ __forceinline__ void value_mma(float (&o)[kValueHeadTiles][kValueColTiles][4],
                                          unsigned p_shared, unsigned v_shared) {
  unsigned a[kValueHeadTiles][4];
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
    ldmatrix_sync_aligned_m8n8_x4_shared_b16(a[m], p_shared + m * 16 * kPRowBytes);
  }
#pragma unroll
  for (int n = 0; n < kValueColTiles; n += 2) {
    unsigned b[4];
    ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(b, v_shared ^ n * kChunkBytes);
#pragma unroll
    for (int m = 0; m < kValueHeadTiles; ++m) {
      mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(o[m][n], a[m], b[0], b[1]);
      mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(o[m][n + 1], a[m], b[2], b[3]);
    }
  }
}

/// The row of a tile that a value thread gathers: eight lanes take a 128-byte line of a row.
__device__ __forceinline__ int gathered_row(int thread) { return thread / 8 % kBlockK; }

/// This thread's part of the gather of one tile into the stage at `stage_bytes`.
__device__ __forceinline__ void gather(SharedMemory& smem, int stage_bytes, int thread,
                                       const bf16* kv, long long kv_row_stride_elems, int index,
                                       int s_kv) {
  const int row = gathered_row(thread), chunk = thread % 8;
  const int line = kGatherSplit > 1 ? thread / kGatherThreads : 0;
  const bool valid = is_valid(index, s_kv);
  const bf16* src = kv + (valid ? index : 0) * kv_row_stride_elems + line * kLine + chunk * kChunk;
  const unsigned dst = shared_address(&smem.kv[0][row][0]) + stage_bytes + line * kLineBytes +
                       (chunk ^ row % 8) * kChunkBytes;
#pragma unroll
  for (int j = 0; j < kGatherLoads; ++j) {
    if (j * kGatherSplit + line < kLines) {
      cp_async_cg_shared_global_l2_128b_16(dst + j * kGatherSplit * kLineBytes,
                                           src + j * kGatherSplit * kLine,
                                           valid ? kChunkBytes : 0);
    }
  }
}

/// Online softmax of one head, kept by the four lanes of a quad. Weights are exp(x - ref): the
/// reference follows the maximum only when it lags by more than kMaxLag, since every move costs a
/// pass over O.
struct Softmax {
  float max;     // masked() while no score above it was seen, and so is ref
  float ref;
  float sum;     // of this lane's columns; over the quad at least 1 once a score was finite
  float poison;  // 0, or NaN once a listed score of this lane was not finite
};

/// Softmax of the 8 heads of group `warp` over one tile: S to P, alpha and moved.
__device__ __forceinline__ void softmax(SharedMemory& smem, Softmax& rows, int tile, int warp,
                                        int thread, int s_kv, float sm_scale) {
  constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
  const int head = thread / 4, pair = thread % 4, lane = thread % kWarp;
  const int index = smem.index[tile % kIndexTiles][lane % kBlockK];
  const unsigned listed = __ballot_sync(0xffffffff, is_valid(index, s_kv));

  float x[kScoreTokenTiles][2];
#pragma unroll
  for (int v = 0; v < kScoreVecs; ++v) {
    const auto& s = smem.s[tile % 2];
    const int score_warp = warp / kScoreGroups * 2, group = warp % kScoreGroups;
    const float4 even = s[score_warp][group][v][lane], odd = s[score_warp + 1][group][v][lane];
    x[2 * v][0] = even.x + odd.x, x[2 * v][1] = even.y + odd.y;
    x[2 * v + 1][0] = even.z + odd.z, x[2 * v + 1][1] = even.w + odd.w;
  }
  float top = rows.max;
#pragma unroll
  for (int n = 0; n < kScoreTokenTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      x[n][e] = listed >> (2 * pair) >> (n * 8 + e) & 1 ? x[n][e] * sm_scale : masked();
      top = max_NaN_f32(top, x[n][e]);
      rows.poison = __fmaf_rn(x[n][e], 0.0f, rows.poison);
    }
  }
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 1));
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 2));

  // While nothing was seen 0 is subtracted, so that masked columns have the weight 0.
  const float ref = top - rows.ref <= kMaxLag ? rows.ref : top;
  const float subtracted = ref == masked() ? 0.0f : ref;
  const float alpha = ref == rows.ref ? 1.0f : natural_exp(rows.ref - subtracted);
  float tile_sum = 0.0f;
#pragma unroll
  for (int n = 0; n < kScoreTokenTiles; ++n) {
    const float p0 = natural_exp(x[n][0] - subtracted), p1 = natural_exp(x[n][1] - subtracted);
    tile_sum += p0 + p1;
    smem.p[head][(n ^ head % 8 / kPRowsPerLine) * (kChunk / 2) + pair] = cvt_rn_bf16x2_f32(p1, p0);
  }
  rows.max = top, rows.ref = ref, rows.sum = rows.sum * alpha + tile_sum;

  const bool moved = __any_sync(0xffffffff, alpha != 1.0f);
  if (pair == 0) smem.alpha[head % 8][warp] = alpha;
  if (lane == 0) smem.moved[warp] = moved;
}

/// O *= alpha in the 16-head tiles where some alpha is not 1; a factor of exactly 1 changes no bit.
__device__ __forceinline__ void rescale(float (&o)[kValueHeadTiles][kValueColTiles][4],
                                        const SharedMemory& smem) {
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
    const uint2 moved = *reinterpret_cast<const uint2*>(&smem.moved[2 * m]);
    if ((moved.x | moved.y) == 0) continue;
    const int g = threadIdx.x % kWarp / 4;
    const float2 alpha = *reinterpret_cast<const float2*>(&smem.alpha[g][2 * m]);
#pragma unroll
    for (int n = 0; n < kValueColTiles; ++n) {
      o[m][n][0] *= alpha.x, o[m][n][1] *= alpha.x;
      o[m][n][2] *= alpha.y, o[m][n][3] *= alpha.y;
    }
  }
}

/// O, scaled, to the rows of out from out_rows on: kBlockK heads at a time through the first stage,
/// of which each warp uses its own columns.
__device__ __forceinline__ void store_out(SharedMemory& smem,
                                          const float (&o)[kValueHeadTiles][kValueColTiles][4],
                                          bf16* out_rows, int heads, int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int m = 0; m < kValueHeadTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float scale = smem.o_scale[g][2 * m + r];
      bf16* staged = &smem.kv[0][m * 16 % kBlockK + r * 8 + g][warp * kLine + t * 2];
#pragma unroll
      for (int n = 0; n < kValueColTiles; ++n) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const float left = __fmaf_rn(o[m][n][2 * r], scale, 0.0f);
        const float right = __fmaf_rn(o[m][n][2 * r + 1], scale, 0.0f);
        *reinterpret_cast<unsigned*>(staged + (n ^ g) * kChunk) = cvt_rn_bf16x2_f32(right, left);
      }
    }
    if ((m + 1) * 16 % kBlockK != 0) continue;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlockK; i += 4) {
      const int row = i + lane / 8, head = (m + 1) * 16 - kBlockK + row, chunk = lane % 8;
      if (head >= heads) continue;
      const bf16* staged = &smem.kv[0][row][warp * kLine + (chunk ^ row % 8) * kChunk];
      *reinterpret_cast<uint4*>(out_rows + head * kDV + warp * kLine + chunk * kChunk) =
          *reinterpret_cast<const uint4*>(staged);
    }
    __syncwarp();
  }
}

// ---------------------------------------------------------------- kernel

// Grid: x = s_q * ceil(h_q / kHeads); the head blocks of one token are adjacent and meet in L2.
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_prefill_fwd(
    const bf16* __restrict__ q, const bf16* __restrict__ kv, const int* __restrict__ indices,
    const float* __restrict__ attn_sink,  // null: no sink
    const int* __restrict__ topk_length,  // null: every column may count
    bf16* __restrict__ out, float* __restrict__ max_logits, float* __restrict__ lse,
    long long q_token_stride_elems, long long q_head_stride_elems, long long kv_row_stride_elems,
    long long indices_row_stride_elems, int h_q, int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kLineBytes) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);

  const int warp = uniform(threadIdx.x / kWarp), lane = threadIdx.x % kWarp;
  const int g = lane / 4, t = lane % 4;  // of an mma fragment: row in its group of 8, column pair
  const Work work = this_block(h_q);
  const int* row = indices + work.token * indices_row_stride_elems;

  // The end of the row flies while the role's own prologue runs.
  const bool derive = kDeriveLength && topk_length == nullptr;
  const int scanned = load_scanned(row, topk - kScanWidth, derive ? topk : 0);
  const auto row_length = [&] {
    int length = topk;
    if (derive) {
      length = last_valid_column_end(smem, warp, scanned, row, topk, s_kv);
    } else if (topk_length != nullptr) {
      length = min(max(__ldg(topk_length + work.token), 0), topk);
    }
    return uniform(length);
  };

  if (warp >= kValueWarps) {
    // -------------------------------------------------------------- score warps
    const int thread = threadIdx.x - kValueThreads, score_warp = warp - kValueWarps;
    const int half = score_warp / 2, d_parity = score_warp % 2;

    // Q: the first steps as fragments in registers, the others swizzled in shared memory. Heads
    // that do not exist are 0.
    const bf16* q_block =
        q + work.token * q_token_stride_elems + work.first_head * q_head_stride_elems;
#pragma unroll
    for (int c = thread; c < kHeads * kQSharedChunks; c += kScoreThreads) {
      constexpr int kChunks = kQSharedChunks > 0 ? kQSharedChunks : 1;
      const int head = c / kChunks, chunk = c % kChunks;
      const bf16* src = q_block + (head < work.heads ? head : 0) * q_head_stride_elems;
      cp_async_cg_shared_global_l2_128b_16(
          shared_address(&smem.q[head][(chunk ^ head % 8) * kChunk]),
          src + kQRegSteps * 2 * kMmaK + chunk * kChunk, head < work.heads ? kChunkBytes : 0);
    }
    cp_async_commit_group();
    unsigned q_fragment[kQRegSteps > 0 ? kQRegSteps : 1][kScoreHeadTiles][4];
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) {
      const int head = half * (kHeads / 2) + group * 8 + g;
      const bf16* src = q_block + head * q_head_stride_elems + d_parity * kMmaK + 2 * t;
#pragma unroll
      for (int step = 0; step < kQRegSteps; ++step) {
#pragma unroll
        for (int k_half = 0; k_half < 2; ++k_half) {
          const unsigned* pair =
              reinterpret_cast<const unsigned*>(src + step * 2 * kMmaK + k_half * 8);
          q_fragment[step][group / 2][group % 2 + 2 * k_half] = head < work.heads ? __ldg(pair) : 0;
        }
      }
    }

    // Indices of the first tiles; from then on those of the tile that the value warps gather next.
    const int length = row_length();
    const int tiles = (length + kBlockK - 1) / kBlockK;
    const bool loads_indices = thread < kBlockK;
    int column = loads_indices ? thread : length;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i, column += kBlockK) {
      const int index = load_index(row, column, length);
      if (loads_indices) smem.index[i][thread] = index;
    }
    int index = load_index(row, column, length);
    cp_async_wait_group<0>();

    // Where this lane's rows of the ldmatrix operands stand.
    const int matrix = lane / 8, matrix_row = lane % 8;
    const unsigned k_shared = shared_address(&smem.kv[0][matrix / 2 * 8 + matrix_row][0]) +
                              (2 * d_parity + matrix % 2 ^ matrix_row) * kChunkBytes;
    const unsigned q_shared =
        shared_address(&smem.q[half * (kHeads / 2) + matrix % 2 * 8 + matrix_row][0]) +
        (2 * d_parity + matrix / 2 ^ matrix_row) * kChunkBytes;
    int stage_bytes = 0;

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      barrier_sync(kTileDone, kThreads);
      if (loads_indices) smem.index[(tile + kStages - 1) % kIndexTiles][thread] = index;
      column += kBlockK;
      index = load_index(row, column, length);

      float s[kScoreHeadTiles][kScoreTokenTiles][4];
      score_mma(s, q_fragment, q_shared, k_shared + stage_bytes);
#pragma unroll
      for (int group = 0; group < kScoreGroups; ++group) {
#pragma unroll
        for (int v = 0; v < kScoreVecs; ++v) {
          const float (&left)[4] = s[group / 2][2 * v], (&right)[4] = s[group / 2][2 * v + 1];
          const int e = group % 2 * 2;
          smem.s[tile % 2][score_warp][group][v][lane] =
              make_float4(left[e], left[e + 1], right[e], right[e + 1]);
        }
      }
      stage_bytes = stage_bytes + kTileBytes == kStages * kTileBytes ? 0 : stage_bytes + kTileBytes;
    }
    barrier_sync(kTileDone, kThreads);
  } else {
    // -------------------------------------------------------------- value warps
    // Fill the ring but for one stage.
    int first_index[kStages - 1];
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      first_index[i] = load_index(row, i * kBlockK + gathered_row(threadIdx.x), topk);
    }
    const int length = row_length();
    const int tiles = (length + kBlockK - 1) / kBlockK;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int index = i * kBlockK + gathered_row(threadIdx.x) < length ? first_index[i] : -1;
      if (i < tiles)
        gather(smem, i * kTileBytes, threadIdx.x, kv, kv_row_stride_elems, index, s_kv);
      cp_async_commit_group();
    }

    const unsigned v_shared =
        shared_address(&smem.kv[0][lane % 16][warp * kLine]) + (lane / 16 ^ lane % 8) * kChunkBytes;
    const unsigned p_shared =
        shared_address(&smem.p[lane % 16][0]) +
        (lane / 16 ^ lane % 16 / kPRowsPerLine % (kBlockK / kChunk)) * kChunkBytes;
    float o[kValueHeadTiles][kValueColTiles][4];
#pragma unroll
    for (int m = 0; m < kValueHeadTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kValueColTiles; ++n) {
        o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
      }
    }
    Softmax rows = {masked(), masked(), 0.0f, 0.0f};
    int stage_bytes = 0;

    cp_async_wait_group<kStages - 2>();
    barrier_sync(kTileDone, kThreads);  // the first tile has landed
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      cp_async_wait_group<kStages - 3>();
      barrier_sync(kTileDone, kThreads);
      // Read anew: kept in registers, what follows from it would crowd out O.
      const int thread = tid_x();

      // Every warp is past the previous tile: its stage takes the tile kStages - 1 ahead.
      const int next = tile + kStages - 1;
      if (next < tiles) {
        gather(smem, (stage_bytes == 0 ? kStages * kTileBytes : stage_bytes) - kTileBytes, thread,
               kv, kv_row_stride_elems, smem.index[next % kIndexTiles][gathered_row(thread)], s_kv);
      }
      cp_async_commit_group();

      if (warp < kHeadGroups) softmax(smem, rows, tile, warp, thread, s_kv, sm_scale);
      bar_sync(kPReady, kValueThreads);
      rescale(o, smem);
#pragma unroll
      for (int k = 0; k < kBlockK; k += kMmaK) {
        value_mma(o, p_shared ^ k / kChunk * kChunkBytes, v_shared + stage_bytes + k * kRowBytes);
      }
      stage_bytes = stage_bytes + kTileBytes == kStages * kTileBytes ? 0 : stage_bytes + kTileBytes;
    }

    const Work output = this_block(h_q);
    const long long first_out_row = static_cast<long long>(output.token) * h_q + output.first_head;
    if (warp < kHeadGroups) {
      rows.sum += __shfl_xor_sync(0xffffffff, rows.sum, 1);
      rows.sum += __shfl_xor_sync(0xffffffff, rows.sum, 2);
      rows.poison += __shfl_xor_sync(0xffffffff, rows.poison, 1);
      rows.poison += __shfl_xor_sync(0xffffffff, rows.poison, 2);
      const bool empty = rows.sum == 0.0f && rows.poison == 0.0f;
      const int head = tid_x() / 4;
      if (t == 0) {
        const bool has_sink = attn_sink != nullptr && head < output.heads;
        const float sink = has_sink ? __ldg(attn_sink + output.first_head + head) : -infinity();
        smem.o_scale[head % 8][head / 8] =
            empty ? 0.0f : output_scale(rows.ref, rows.sum, sink) + rows.poison;
      }
      if (t == 0 && head < output.heads) {
        const float log_sum = rows.max == infinity() ? infinity() : rows.ref + logf(rows.sum);
        max_logits[first_out_row + head] = rows.max == masked() ? -infinity() : rows.max;
        lse[first_out_row + head] = empty ? infinity() : log_sum;
      }
    }
    bar_sync(kPReady, kValueThreads);  // o_scale stands, and no warp reads the ring any more

    store_out(smem, o, out + first_out_row * kDV, output.heads, warp, lane);
  }
}

}  // namespace sparsekit::sparse_prefill
