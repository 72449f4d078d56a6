// Sparse MLA prefill on Hopper for few heads: wgmma with the heads as N, and cp.async (sm_90a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// A block walks tokens, and for each of them tiles of 64 rows.
//   score warpgroups (2)  S^T[row][head] = K Q^T, softmax over rows, P^T to shared memory: every
//                         other tile each
//   value warpgroups (2)  O^T[column][head] += V^T P^T, every other 64 of the 512 columns each
//   gather warps (2)      rows of kv, and Q, to shared memory
//   plan warp             where the rows of the coming tiles are
// A tile goes through a ring in units of a few 64-column chunks: both products read the rows as the
// gather leaves them, the first K-major, the second transposed. README.md draws the schedule.

#include "sparsekit/anew.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/global_store.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/ptx/wgmma.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/wait.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kDQk = SK_D_QK,                // columns of q and kv
  kDeriveLength = SK_SKIP,       // without topk_length, find the last valid index first
  kHeads = SK_HEADS,             // of a block: the columns of one wgmma
  kUnitChunks = SK_UNIT_CHUNKS,  // 64-wide chunks of a tile that land and are freed as one
  kSlots = SK_RING_UNITS,        // units in the ring
  kPBuffers = SK_P_BUFFERS,
  kValueGroups = SK_VALUE_GROUPS,      // warpgroups that share the columns of O
  kScoreChains = SK_SCORE_CHAINS,      // accumulators that take the steps of K Q^T in turn
  kArrivingLanes = SK_ARRIVING_LANES,  // of a warp that arrives, 1 or 32
  kL2Prefetch = SK_L2_PREFETCH_BYTES,  // by one piece of a row: 128 or 256
  kScoreRegs = SK_SCORE_REGISTERS,
  kValueRegs = SK_VALUE_REGISTERS,
  kLoadRegs = SK_LOAD_REGISTERS,
  // 0 to measure only. Without the fence nothing orders copies and wgmma; without products, or with
  // copies for a block's first token only, the results are wrong.
  kProxyFence = SK_PROXY_FENCE,
  kGather = SK_GATHER,
  kMultiply = SK_MULTIPLY,

  kDV = 512,
  kBlockK = 64,  // rows of one tile: the rows of one wgmma
  kWarp = 32,
  kGroup = 128,  // threads of a warpgroup
  kGroupWarps = 4,
  kValueWarps = kValueGroups * kGroupWarps,
  kScoreGroups = 2,  // that take the tiles in turn
  kScoreWarps = kScoreGroups * kGroupWarps,
  kValueGroup = kScoreGroups,  // the first
  kLoadGroup = kValueGroup + kValueGroups,
  kGatherWarps = 2,  // of the load group
  kPlanWarp = kGatherWarps,
  kGatherThreads = kGatherWarps * kWarp,
  kThreads = (kLoadGroup + 1) * kGroup,
  kLaunchRegs = 65536 / kThreads / 8 * 8,

  kMmaK = 16,        // contraction length of one wgmma
  kChunk = 64,       // bf16 in 128 bytes: a line of the 128-byte swizzle
  kPieceBytes = 16,  // of one cp.async
  kPiece = 8,        // bf16 in a piece
  kLinePieces = kChunk / kPiece,
  kLineBytes = 128,
  kAtomBytes = 8 * kLineBytes,
  kChunkBytes = kBlockK * kLineBytes,
  kUnitBytes = kUnitChunks * kChunkBytes,
  kMmaKBytes = kMmaK * 2,
  kSteps = kChunk / kMmaK,  // wgmmas over one chunk, of d or of rows
  kHasRope = kDQk > kDV,    // a chunk that only K Q^T sees, the first of a tile
  kValueChunks = kDV / kChunk,
  kChunks = kValueChunks + kHasRope,  // of a tile
  kUnits = kChunks / kUnitChunks,
  kGroupChunks = kValueChunks / kValueGroups,
  kLines = kGatherThreads / kLinePieces,  // rows that the gather loads a line of at once
  kRowSteps = kBlockK / kLines,
  kHalf = kBlockK / kWarp,          // rows of a tile by lanes
  kQPieces = kHeads * kLinePieces,  // of a chunk
  kQSteps = kChunks * kQPieces / kGatherThreads,
  kScores = kHeads / 2,  // of a thread: two rows, two heads of each eight
  kThreadHeads = kHeads / 4,
  kPlans = 6,      // tiles whose rows are known
  kBatch = 4,      // tiles whose indices are loaded at once
  kScanLoads = 8,  // indices that a lane holds in one round of the scan
  kScanWidth = kScanLoads * kWarp,
};

static_assert(kDQk == 512 || kDQk == 576,
              "a row is 512 columns, with or without 64 more that only K Q^T sees");
static_assert(kHeads == 8 || kHeads == 16 || kHeads == 32, "there is a wgmma for it");
static_assert(kChunks % kUnitChunks == 0 && kUnitChunks >= kValueGroups + kHasRope,
              "a unit is of one tile, and every value warpgroup reads in it");
static_assert(kSlots >= kUnits, "K Q^T needs a whole tile");
static_assert(kScoreChains == 1 || kScoreChains == 2, "the chains are added once");

// ---------------------------------------------------------------- shared memory

enum : unsigned { kUnlisted = 0xffffffff };  // a row of a tile that is not valid
enum Flags : unsigned { kFirst = 1, kLast = 2, kMoved = 4 };

// A planned tile: row r of it lies at rows[r % kLines][r / kLines], in pieces from the first of kv.
struct Plan {
  alignas(kPieceBytes) unsigned rows[kLines][kRowSteps];
  unsigned listed[kHalf];  // a bit a row
  unsigned flags;          // kFirst, kLast: of its token
};
static_assert(kRowSteps % 4 == 0, "a thread of the gather reads four rows at once");

// What a score warp leaves of a head at the end of a token: of its rows the sum of weights, 0 or
// NaN, and the maximum.
struct End {
  float sum, poison, max;
};

// A chunk is 64 rows of 128 bytes, of Q as many as heads; piece c of row r lies at piece
// c ^ (r % 8), which is the 128-byte swizzle of wgmma and stmatrix alike.
struct SharedMemory {
  alignas(kAtomBytes) bf16 ring[kSlots][kUnitChunks][kBlockK][kChunk];
  bf16 q[kChunks][kHeads][kChunk];
  bf16 p[kPBuffers][kHeads][kBlockK];       // tile % kPBuffers, and so what goes with it:
  End end[kPBuffers][kScoreWarps][kHeads];  // a last tile's
  float end_ref[kPBuffers][kHeads];         // and the reference
  float alpha[kPBuffers][kHeads];           // factor of O before this P
  float ref[kHeads];                        // as the last decided tile leaves it
  float top[kGroupWarps][kHeads];           // a group's maxima, when a reference moves
  Plan plan[kPlans];
  unsigned flags[kPBuffers];  // kLast; kMoved: alpha stands
  // Phases: of each element, one a use.
  unsigned long long full[kSlots];            // 64 copies: a unit has landed
  unsigned long long free[kSlots];            // the value warps: it has been read
  unsigned long long q_full;                  // 64 copies, a token
  unsigned long long q_free;                  // the score warps, a token: it has been read
  unsigned long long plan_full[kPlans];       // 1 warp: a tile's rows stand
  unsigned long long plan_free[kPlans];       // gather and score warps: they have been read
  unsigned long long decided[kScoreGroups];   // 4 warps: the reference for its tile stands
  unsigned long long end_full[kScoreGroups];  // 4 warps, of a token whose last tile it has not
  unsigned long long p_full[kPBuffers];       // 4 warps: P and what goes with it stand
  unsigned long long p_free[kPBuffers];       // the value warps: they have been read
};

enum Barrier : unsigned {  // 0 is __syncthreads
  kVote = 1,               // kGroup: the warps of score group 0, the next of group 1
};

// ---------------------------------------------------------------- launch facts

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_few_fwd, sizeof(SharedMemory));

// ---------------------------------------------------------------- pieces of the kernel

/// What one warp brings to a barrier: kArrivingLanes arrivals, for all that its lanes have done.
__device__ __forceinline__ void arrive(unsigned long long& barrier) {
  __syncwarp();
  mbarrier_arrive_shared_cta_b64(shared_address(&barrier), threadIdx.x % kWarp < kArrivingLanes);
}

/// This many registers for each thread of a warpgroup, more or fewer than it was launched with.
template <int kRegisters>
__device__ __forceinline__ void set_registers() {
  if (kRegisters > kLaunchRegs) {
    setmaxnreg_inc_sync_aligned_u32<kRegisters>();
  } else {
    setmaxnreg_dec_sync_aligned_u32<kRegisters>();
  }
}

/// What this thread has seen land is ready for wgmma.
__device__ __forceinline__ void fence_copies() {
  if (kProxyFence) fence_proxy_async_shared_cta();
}

/// 16 bytes of a row, zeros where it is not valid.
__device__ __forceinline__ void copy_piece(unsigned dst_shared, const bf16* src, bool valid) {
  if (kL2Prefetch == 256) {
    cp_async_cg_shared_global_l2_256b_16(dst_shared, src, valid ? kPieceBytes : 0);
  } else {
    cp_async_cg_shared_global_l2_128b_16(dst_shared, src, valid ? kPieceBytes : 0);
  }
}

/// The first column of kv and q that a chunk of a tile holds.
__device__ __forceinline__ constexpr int column_of(int chunk) {
  return kHasRope ? (chunk == 0 ? kDV : (chunk - 1) * kChunk) : chunk * kChunk;
}

/// A place in a ring of kCount, and the parity of its phase.
template <int kCount>
struct Position {
  int slot = 0;
  int parity = 0;
  __device__ __forceinline__ void advance() { *this = ahead(1); }
  /// At most kCount places on.
  __device__ __forceinline__ Position ahead(int places) const {
    const int to = slot + places;
    if (kCount == 1) return {slot, parity ^ (places & 1)};
    return to < kCount ? Position{to, parity} : Position{to - kCount, parity ^ 1};
  }
};

// wgmma of m64nNk16, by the size of d.
__device__ __forceinline__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n8k16_f32_bf16_bf16(d, a, b, accumulate);
}

__device__ __forceinline__ void multiply(float (&d)[8], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n16k16_f32_bf16_bf16(d, a, b, accumulate);
}

__device__ __forceinline__ void multiply(float (&d)[16], unsigned long long a, unsigned long long b,
                                         int accumulate) {
  wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16(d, a, b, accumulate);
}

// The same, A transposed.
__device__ __forceinline__ void multiply_transposed(float (&d)[4], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n8k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

__device__ __forceinline__ void multiply_transposed(float (&d)[8], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n16k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

__device__ __forceinline__ void multiply_transposed(float (&d)[16], unsigned long long a,
                                                    unsigned long long b) {
  wgmma_mma_async_sync_aligned_m64n32k16_f32_bf16_bf16_a_transposed(d, a, b, 1);
}

// P^T of a warp to rows of 8, 16 and 32 heads; a lane addresses its row of each 16.
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[2]) {
  stmatrix_sync_aligned_m8n8_x2_trans_shared_b16(to, p);
}

__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[4]) {
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to, p);
}

__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&p)[8]) {
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to, {p[0], p[1], p[2], p[3]});
  stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(to + 16 * kLineBytes, {p[4], p[5], p[6], p[7]});
}

/// wgmma.wait_group for a number that is a constant once loops are unrolled.
__device__ __forceinline__ void wait_groups(int pending) {
  static_assert(kGroupChunks <= 8, "as many cases");
  switch (pending) {
    case 0:
      return wgmma_wait_group_sync_aligned<0>();
    case 1:
      return wgmma_wait_group_sync_aligned<1>();
    case 2:
      return wgmma_wait_group_sync_aligned<2>();
    case 3:
      return wgmma_wait_group_sync_aligned<3>();
    case 4:
      return wgmma_wait_group_sync_aligned<4>();
    case 5:
      return wgmma_wait_group_sync_aligned<5>();
    case 6:
      return wgmma_wait_group_sync_aligned<6>();
    default:
      return wgmma_wait_group_sync_aligned<7>();
  }
}

// ---------------------------------------------------------------- plan

/// What the plan warp knows of a token before it plans its tiles: loaded under the token before.
struct Outlook {
  const int* row;
  int index[kBatch][kHalf];  // of the first tiles
  int scan[kScanLoads];      // the last indices
  int length;                // as given

  __device__ __forceinline__ void load(const int* indices, long long row_stride_elems,
                                       const int* topk_length, int token, int topk, int lane) {
    row = indices + token * row_stride_elems;
    load_batch(index, 0, topk, lane);
    length = topk_length != nullptr ? min(max(__ldg(topk_length + token), 0), topk) : topk;
    if (kDeriveLength) load_scan(topk - kScanWidth, topk_length != nullptr ? 0 : topk, lane);
  }

  __device__ __forceinline__ void load_batch(int (&to)[kBatch][kHalf], int column, int columns,
                                             int lane) const {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int h = 0; h < kHalf; ++h) {
        to[b][h] = load_index(row, column + b * kBlockK + h * kWarp + lane, columns);
      }
    }
  }

  __device__ __forceinline__ void load_scan(int first, int columns, int lane) {
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      scan[j] = load_index(row, first + j * kWarp + lane, columns);
    }
  }

  /// The end of the last valid index, looked for from the end of the row in rounds.
  __device__ __forceinline__ int find_length(int topk, int s_kv, int lane) {
#pragma unroll 1
    for (int first = topk - kScanWidth;; first -= kScanWidth) {
      int end = 0;
#pragma unroll
      for (int j = 0; j < kScanLoads; ++j) {
        if (is_valid(scan[j], s_kv)) end = first + j * kWarp + lane + 1;
      }
      end = redux_sync_max_s32(end);
      if (end > 0 || first <= 0) return end;
      load_scan(first - kScanWidth, topk, lane);
    }
  }
};

// ---------------------------------------------------------------- softmax

/// The i-th head of a thread of the score and value warpgroups.
__device__ __forceinline__ int head_of(int i, int t) { return i / 2 * 8 + 2 * t + i % 2; }

/// Online softmax over rows, of the heads of a thread of a score warpgroup: 2 t, 2 t + 1 of every
/// eight. `scale`, at least least_scale(), is still to multiply scores s. Weights are
/// exp((s - ref) scale): the reference, which is all threads', follows the maximum only when it
/// lags by more than kMaxLag, since every move costs a pass over O. The two groups decide on it in
/// the order of the tiles; each has the sum over its own.
struct Softmax {
  static constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
  float max[kThreadHeads];     // of this thread's rows; masked() while it saw no score above it
  float ref[kThreadHeads];     // masked() while no thread did
  float sum[kThreadHeads];     // of this thread's rows
  float poison[kThreadHeads];  // 0, or NaN once a listed score of this thread was not finite

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      max[i] = ref[i] = masked(), sum[i] = poison[i] = 0.0f;
    }
  }

  /// Takes in the scores of one tile; whether some reference of this thread must move.
  __device__ __forceinline__ bool take(const float (&s)[kScores], float scale) {
    bool moves = false;
#pragma unroll
    for (int e = 0; e < kScores; ++e) {
      const int i = e / 4 * 2 + e % 2;
      max[i] = max_NaN_f32(max[i], s[e]);
      poison[i] = __fmaf_rn(s[e], 0.0f, poison[i]);
    }
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) moves |= !((max[i] - ref[i]) * scale <= kMaxLag);
    return moves;
  }

  /// Takes over the references as the other group left them.
  __device__ __forceinline__ void follow(const float (&shared_ref)[kHeads], int t, float scale) {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      const float new_ref = shared_ref[head_of(i, t)];
      if (new_ref != ref[i]) sum[i] *= factor(ref[i], new_ref, scale);
      ref[i] = new_ref;
    }
  }

  /// Moves the references that must, by the maxima of all threads; to alpha the factors of O.
  __device__ __forceinline__ void move(SharedMemory& smem, float (&alpha)[kHeads], int barrier,
                                       int warp, int g, int t, float scale) {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      const float top = over_rows(max[i]);
      if (g == 0) smem.top[warp][head_of(i, t)] = top;
    }
    bar_sync(barrier, kGroup);
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      float top = masked();
#pragma unroll
      for (int w = 0; w < kGroupWarps; ++w) top = max_NaN_f32(top, smem.top[w][head_of(i, t)]);
      const float new_ref = (top - ref[i]) * scale <= kMaxLag ? ref[i] : top;
      const float by = new_ref == ref[i] ? 1.0f : factor(ref[i], new_ref, scale);
      if (warp == 0 && g == 0) alpha[head_of(i, t)] = by;
      ref[i] = new_ref, sum[i] *= by;
      // A finite score may leave its type.
      poison[i] = __fmaf_rn(subtracted(new_ref) * (scale * log2_e()), 0.0f, poison[i]);
    }
  }

  /// S^T to P^T, packed in pairs of heads.
  __device__ __forceinline__ void weigh(const float (&s)[kScores], unsigned (&p)[kScores / 2],
                                        float scale) {
    const float exponent_scale = scale * log2_e();
    float minus[kThreadHeads];
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) minus[i] = -subtracted(ref[i]) * exponent_scale;
#pragma unroll
    for (int e = 0; e < kScores; e += 2) {
      const int i = e / 4 * 2;
      const float p0 = ex2_approx_ftz_f32(__fmaf_rn(s[e], exponent_scale, minus[i]));
      const float p1 = ex2_approx_ftz_f32(__fmaf_rn(s[e + 1], exponent_scale, minus[i + 1]));
      sum[i] += p0, sum[i + 1] += p1;
      p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
    }
  }

  /// This warp's part of what the value warpgroups need at the end of a token.
  __device__ __forceinline__ void end(End (&to)[kHeads], int g, int t) const {
#pragma unroll
    for (int i = 0; i < kThreadHeads; ++i) {
      float total = sum[i];
#pragma unroll
      for (int x = 4; x < kWarp; x *= 2) total += __shfl_xor_sync(0xffffffff, total, x);
      const float top = over_rows(max[i]);
      const unsigned poisoned = __ballot_sync(0xffffffff, poison[i] != poison[i]);
      const float not_a_number = __int_as_float(0x7fc00000);
      if (g == 0) {
        to[head_of(i, t)] = {total, poisoned >> t & 0x11111111 ? not_a_number : 0.0f, top};
      }
    }
  }

  /// What weights by an old reference are multiplied by.
  static __device__ __forceinline__ float factor(float old, float now, float scale) {
    return natural_exp((old - subtracted(now)) * scale);
  }

  /// While nothing was seen 0 is subtracted, so that masked rows have the weight 0.
  static __device__ __forceinline__ float subtracted(float ref) {
    return ref == masked() ? 0.0f : ref;
  }

  /// The largest over the lanes that have the same heads.
  static __device__ __forceinline__ float over_rows(float x) {
#pragma unroll
    for (int y = 4; y < kWarp; y *= 2) x = max_NaN_f32(x, __shfl_xor_sync(0xffffffff, x, y));
    return x;
  }
};

/// The unit of a chunk of a tile, the i-th of a value warpgroup: one of two, by constants.
__device__ __forceinline__ int unit_of(int i, int chunk) {
  const int first = (i * kValueGroups + kHasRope) / kUnitChunks;
  return first + (chunk >= (first + 1) * kUnitChunks);
}

// ---------------------------------------------------------------- out

/// O^T of two chunks, scaled, to out. An 8 x 8 matrix of 8 columns and 8 heads is transposed so
/// that a quad has a head's 16 bytes, and four of these over the quad, so that each lane stores
/// one.
__device__ __forceinline__ void store_out(const float (&o0)[kScores], const float (&o1)[kScores],
                                          const float (&factor)[kThreadHeads], bf16* out_head,
                                          int column0, int column1, int heads_left, int t) {
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
    unsigned v[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float (&o)[kScores] = m < 2 ? o0 : o1;
      const int e = 4 * j + 2 * (m % 2);
      // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
      v[m] = movmatrix_sync_aligned_m8n8_trans_b16(cvt_rn_bf16x2_f32(
          __fmaf_rn(o[e + 1], factor[2 * j + 1], 0.0f), __fmaf_rn(o[e], factor[2 * j], 0.0f)));
    }
    // Transposed over the quad: v[m] of lane t becomes v[t] of lane m.
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
      const unsigned got = __shfl_xor_sync(0xffffffff, t & 1 ? v[m] : v[m + 1], 1);
      (t & 1 ? v[m] : v[m + 1]) = got;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const unsigned got = __shfl_xor_sync(0xffffffff, t & 2 ? v[m] : v[m + 2], 2);
      (t & 2 ? v[m] : v[m + 2]) = got;
    }
    if (j * 8 < heads_left) {
      st_global_v4_b32(out_head + j * 8 * kDV + (t & 2 ? column1 : column0) + t % 2 * kPiece, v);
    }
  }
}

// ---------------------------------------------------------------- kernel

// Grid: x = as many blocks as run at once; block b takes the tokens b, b + grid, ...
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_prefill_sm90_few_fwd(
    const bf16* __restrict__ q, const bf16* __restrict__ kv, const int* __restrict__ indices,
    const float* __restrict__ attn_sink,  // null: no sink
    const int* __restrict__ topk_length,  // null: every column may count
    bf16* __restrict__ out, float* __restrict__ max_logits, float* __restrict__ lse,
    long long q_token_stride_elems, long long q_head_stride_elems, long long kv_row_stride_elems,
    long long indices_row_stride_elems, int s_q, int h_q, int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const int warpgroup = uniform(threadIdx.x / kGroup);
  const int thread = threadIdx.x % kGroup, warp = uniform(thread / kWarp);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const float scale = sm_scale >= least_scale() ? sm_scale : 1.0f;

  if (threadIdx.x == 0) {
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kGatherThreads);
      mbarrier_init_shared_cta_b64(shared_address(&smem.free[s]), kValueWarps * kArrivingLanes);
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_full), kGatherThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_free), kScoreWarps * kArrivingLanes);
    for (int i = 0; i < kPlans; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.plan_full[i]), kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.plan_free[i]),
                                   (kGatherWarps + kScoreWarps) * kArrivingLanes);
    }
    for (int i = 0; i < kScoreGroups; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.decided[i]), kGroupWarps * kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.end_full[i]), kGroupWarps * kArrivingLanes);
    }
    for (int i = 0; i < kPBuffers; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.p_full[i]), kGroupWarps * kArrivingLanes);
      mbarrier_init_shared_cta_b64(shared_address(&smem.p_free[i]), kValueWarps * kArrivingLanes);
    }
  }
  __syncthreads();

  if (warpgroup == kLoadGroup) setmaxnreg_dec_sync_aligned_u32<kLoadRegs>();
  if (warpgroup == kLoadGroup && warp == kPlanWarp) {
    // -------------------------------------------------------------- plan warp
    const unsigned row_stride_pieces = static_cast<unsigned>(kv_row_stride_elems / kPiece);
    Position<kPlans> at;
    Outlook next;
    next.load(indices, indices_row_stride_elems, topk_length, blockIdx.x, topk, lane);
#pragma unroll 1
    for (int token = blockIdx.x; token < s_q; token += gridDim.x) {
      int length = next.length;
      if (kDeriveLength && topk_length == nullptr) length = next.find_length(topk, s_kv, lane);
      length = uniform(length);
      const Outlook current = next;
      int index[kBatch][kHalf];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
#pragma unroll
        for (int h = 0; h < kHalf; ++h) index[b][h] = current.index[b][h];
      }
      if (token + static_cast<int>(gridDim.x) < s_q) {
        next.load(indices, indices_row_stride_elems, topk_length, token + gridDim.x, topk, lane);
      }

      // An empty row has one tile, all masked.
      int column = 0;
#pragma unroll 1
      do {
        int ahead[kBatch][kHalf];
        current.load_batch(ahead, column + kBatch * kBlockK, length, lane);
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (column < max(length, 1)) {
            Plan& plan = smem.plan[at.slot];
            wait(smem.plan_free[at.slot], at.parity ^ 1);
            unsigned listed[kHalf];
#pragma unroll
            for (int h = 0; h < kHalf; ++h) {
              const int r = h * kWarp + lane;
              const bool valid = column + r < length && is_valid(index[b][h], s_kv);
              plan.rows[r % kLines][r / kLines] =
                  valid ? index[b][h] * row_stride_pieces : kUnlisted;
              listed[h] = __ballot_sync(0xffffffff, valid);
            }
            if (lane == 0) {
#pragma unroll
              for (int h = 0; h < kHalf; ++h) plan.listed[h] = listed[h];
              plan.flags = (column == 0 ? kFirst : 0) | (column + kBlockK >= length ? kLast : 0);
            }
            arrive(smem.plan_full[at.slot]);
            at.advance();
          }
          column += kBlockK;
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
#pragma unroll
          for (int h = 0; h < kHalf; ++h) index[b][h] = ahead[b][h];
        }
      } while (column < length);
    }
  } else if (warpgroup == kLoadGroup) {
    // -------------------------------------------------------------- gather warps
    if (warp >= kGatherWarps) return;
    // Thread t copies piece t % 8 of the rows t / 8, t / 8 + 8, ...
    const int line = thread / kLinePieces, piece = thread % kLinePieces;
    const unsigned ring =
        shared_address(smem.ring) + line * kLineBytes + (piece ^ line % 8) * kPieceBytes;
    const bf16* column = kv + piece * kPiece;
    Position<kSlots> at;
    Position<kPlans> plan;
    int q_parity = 1;
#pragma unroll 1
    for (int token = blockIdx.x; token < s_q; token += gridDim.x) {
      unsigned flags;
#pragma unroll 1
      do {
        wait(smem.plan_full[plan.slot], plan.parity);
        unsigned row[kRowSteps];
#pragma unroll
        for (int r = 0; r < kRowSteps; r += 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(&smem.plan[plan.slot].rows[line][r]);
          row[r] = four.x, row[r + 1] = four.y, row[r + 2] = four.z, row[r + 3] = four.w;
        }
        flags = smem.plan[plan.slot].flags;
        arrive(smem.plan_free[plan.slot]);
        plan.advance();
        const bf16* src[kRowSteps];
#pragma unroll
        for (int r = 0; r < kRowSteps; ++r) {
          const unsigned long long pieces = row[r] != kUnlisted ? row[r] : 0;
          src[r] = column + pieces * kPiece;
        }
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          wait(smem.free[at.slot], at.parity ^ 1);
          const unsigned unit = ring + at.slot * kUnitBytes;
#pragma unroll
          for (int r = 0; r < kRowSteps; ++r) {
#pragma unroll
            for (int c = 0; c < kUnitChunks; ++c) {
              if (kGather || token == static_cast<int>(blockIdx.x)) {
                copy_piece(unit + c * kChunkBytes + r * kLines * kLineBytes,
                           src[r] + column_of(u * kUnitChunks + c), row[r] != kUnlisted);
              }
            }
          }
          cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.full[at.slot]));
          at.advance();
        }
        if (flags & kFirst) {  // Q, behind what does not wait for the token before
          wait(smem.q_free, q_parity);
          q_parity ^= 1;
#pragma unroll 6
          for (int i = 0; i < kQSteps; ++i) {
            const int x = thread + i * kGatherThreads, chunk = x / kQPieces;
            const int head = x / kLinePieces % kHeads;
            const bool valid = head < h_q;
            copy_piece(shared_address(smem.q[chunk][head]) + (piece ^ head % 8) * kPieceBytes,
                       q + token * q_token_stride_elems + (valid ? head : 0) * q_head_stride_elems +
                           column_of(chunk) + piece * kPiece,
                       valid);
          }
          cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.q_full));
        }
      } while (!(flags & kLast));
    }
  } else if (warpgroup < kScoreGroups) {
    // -------------------------------------------------------------- score warpgroups
    set_registers<kScoreRegs>();
    const int group = warpgroup, vote = kVote + group;
    Position<kSlots> at;
    Position<kPlans> plan;
    int q_parity = 1;
    Position<kPBuffers> p_at;
    // For a slot known to be 0 ptxas takes this loop for divergent, and moves each descriptor from
    // vector registers: 450 instructions a tile more.
    if (kPBuffers == 1) p_at.slot = anew(p_at.slot);
    const float prescale = scale == sm_scale ? 1.0f : sm_scale;  // tiny, or not positive
    Softmax rows;
    rows.reset();
    float s[kScoreChains][kScores] = {};
    const auto await_decision = [&](int tile) { wait(smem.decided[tile % 2], tile / 2 % 2); };

    int token = blockIdx.x;
#pragma unroll 1
    for (int tile = 0; token < s_q; ++tile) {
      wait(smem.plan_full[plan.slot], plan.parity);
      const unsigned flags = smem.plan[plan.slot].flags;
      // Of the rows of this thread: the bits 0 and 8.
      const unsigned listed = smem.plan[plan.slot].listed[warp / 2] >> (warp % 2 * kMmaK + g);
      arrive(smem.plan_free[plan.slot]);
      plan.advance();
      if (flags & kFirst) {
        q_parity ^= 1;
        rows.reset();
      }
      if (tile % 2 == group) {
        // S^T = K Q^T.
        const unsigned long long q_desc =
            matrix_descriptor_128b(shared_address(smem.q), 1, kAtomBytes);
        wait(smem.q_full, q_parity);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const Position<kSlots> unit = at.ahead(u);
          wait(smem.full[unit.slot], unit.parity);
          fence_copies();
          const unsigned long long k_desc =
              matrix_descriptor_128b(shared_address(smem.ring[unit.slot]), 1, kAtomBytes);
          wgmma_fence_sync_aligned();  // of all units but the first only because ptxas wants it
#pragma unroll
          for (int c = 0; c < kUnitChunks; ++c) {
#pragma unroll
            for (int k = 0; k < kSteps; ++k) {
              const int chunk = u * kUnitChunks + c, step = chunk * kSteps + k;
              if (kMultiply || step < kScoreChains) {
                multiply(s[step % kScoreChains], k_desc + (c * kChunkBytes + k * kMmaKBytes) / 16,
                         q_desc + (chunk * kHeads * kLineBytes + k * kMmaKBytes) / 16,
                         step >= kScoreChains);
              }
            }
          }
        }
        wgmma_commit_group_sync_aligned();
        wgmma_wait_group_sync_aligned<0>();
        if (flags & kLast) arrive(smem.q_free);
        float x[kScores];
#pragma unroll
        for (int e = 0; e < kScores; ++e) {
          x[e] = (kScoreChains == 2 ? s[0][e] + s[kScoreChains - 1][e] : s[0][e]) * prescale;
          if ((listed >> e / 2 % 2 * 8 & 1) == 0) x[e] = masked();
        }

        // The reference: one group after the other, in the order of the tiles.
        if (tile > 0) await_decision(tile - 1);
        if (!(flags & kFirst)) rows.follow(smem.ref, t, scale);
        const bool moved = bar_red_or_pred(vote, kGroup, rows.take(x, scale));
        if (moved) {
          wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
          rows.move(smem, smem.alpha[p_at.slot], vote, warp, g, t, scale);
        }
        if ((moved || flags & kFirst) && warp == 0 && g == 0) {
#pragma unroll
          for (int i = 0; i < kThreadHeads; ++i) smem.ref[head_of(i, t)] = rows.ref[i];
        }
        arrive(smem.decided[group]);

        // P^T, and what goes with it.
        unsigned p[kScores / 2];
        rows.weigh(x, p, scale);
        wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
        // Matrix m of four: heads m / 2 * 8, rows m % 2 * 8.
        const unsigned to = shared_address(smem.p[p_at.slot]) +
                            (lane / 16 * 8 + lane % 8) * kLineBytes +
                            ((2 * warp + lane / 8 % 2) ^ lane % 8) * kPieceBytes;
        store_matrices(to, p);
        if (flags & kLast) {
          rows.end(smem.end[p_at.slot][group * kGroupWarps + warp], g, t);
          if (warp == 0 && g == 0) {
#pragma unroll
            for (int i = 0; i < kThreadHeads; ++i) {
              smem.end_ref[p_at.slot][head_of(i, t)] = rows.ref[i];
            }
          }
        }
        if (thread == 0) smem.flags[p_at.slot] = (flags & kLast) | (moved ? kMoved : 0);
        fence_proxy_async_shared_cta();
        arrive(smem.p_full[p_at.slot]);
      } else if (flags & kLast) {
        // The end of a token in the other group's tile.
        arrive(smem.q_free);
        await_decision(tile);
        rows.follow(smem.ref, t, scale);
        wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
        rows.end(smem.end[p_at.slot][group * kGroupWarps + warp], g, t);
        arrive(smem.end_full[group]);
      }
      at = at.ahead(kUnits);
      p_at.advance();
      if (flags & kLast) token += gridDim.x;
    }
  } else {
    // -------------------------------------------------------------- value warpgroups
    set_registers<kValueRegs>();
    const int group = warpgroup - kValueGroup;
    int tile = 0, end_parity = 0;  // a bit a score group
    Position<kSlots> at;           // of a tile's first unit
    Position<kPBuffers> p_at;
#pragma unroll 1
    for (int token = blockIdx.x; token < s_q; token += gridDim.x) {
      float o[kGroupChunks][kScores];
#pragma unroll
      for (int i = 0; i < kGroupChunks; ++i) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) o[i][e] = 0.0f;
      }
      unsigned flags;
#pragma unroll 1
      do {
        wait(smem.p_full[p_at.slot], p_at.parity);
        flags = smem.flags[p_at.slot];
        if (flags & kMoved) {
#pragma unroll
          for (int j = 0; j < kHeads / 8; ++j) {
            const float2 alpha =
                *reinterpret_cast<const float2*>(&smem.alpha[p_at.slot][j * 8 + 2 * t]);
#pragma unroll
            for (int i = 0; i < kGroupChunks; ++i) {
#pragma unroll
              for (int e = 4 * j; e < 4 * j + 4; ++e) o[i][e] *= e % 2 ? alpha.y : alpha.x;
            }
          }
        }

        // O^T += V^T P^T. No proxy fence: the score warpgroup's, between the copies' end and
        // p_full, is one for P and V.
        const unsigned long long p_desc =
            matrix_descriptor_128b(shared_address(smem.p[p_at.slot]), 1, kAtomBytes);
        wgmma_fence_sync_aligned();
#pragma unroll
        for (int i = 0; i < kGroupChunks; ++i) {
          const int chunk = i * kValueGroups + group + kHasRope, unit = unit_of(i, chunk);
          const unsigned long long v_desc = matrix_descriptor_128b(
              shared_address(smem.ring[at.ahead(unit).slot][chunk - unit * kUnitChunks]),
              kChunkBytes, kAtomBytes);
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            if (kMultiply) {
              multiply_transposed(o[i], v_desc + k * kMmaK * kLineBytes / 16,
                                  p_desc + k * kMmaKBytes / 16);
            }
          }
          wgmma_commit_group_sync_aligned();
        }

        const auto release = [&] {
#pragma unroll
          for (int i = 0; i < kGroupChunks; ++i) {
            wait_groups(kGroupChunks - 1 - i);
            const int chunk = i * kValueGroups + group + kHasRope, unit = unit_of(i, chunk);
            if (i == kGroupChunks - 1 || unit_of(i + 1, chunk + kValueGroups) != unit) {
              arrive(smem.free[at.ahead(unit).slot]);
            }
          }
          at = at.ahead(kUnits);
          arrive(smem.p_free[p_at.slot]);
          p_at.advance();
          ++tile;
        };
        if (!(flags & kLast)) {
          release();
          continue;
        }

        // The end of a token; what goes with the last P is read while the products go on.
        const int other = 1 - tile % 2;  // group, which has not this tile
        wait(smem.end_full[other], end_parity >> other & 1);
        end_parity ^= 1 << other;
        const auto end_of = [&](int head) {
          End of_group[kScoreGroups];  // which of them has the first tile makes no difference
#pragma unroll
          for (int i = 0; i < kScoreGroups; ++i) {
            End& end = of_group[i];
            end = smem.end[p_at.slot][i * kGroupWarps][head];
#pragma unroll
            for (int w = 1; w < kGroupWarps; ++w) {
              const End next = smem.end[p_at.slot][i * kGroupWarps + w][head];
              end = {end.sum + next.sum, end.poison + next.poison, max_NaN_f32(end.max, next.max)};
            }
          }
          return End{of_group[0].sum + of_group[1].sum, of_group[0].poison + of_group[1].poison,
                     max_NaN_f32(of_group[0].max, of_group[1].max)};
        };
        float factor[kThreadHeads];
#pragma unroll
        for (int i = 0; i < kThreadHeads; ++i) {
          const int head = head_of(i, t);
          const End end = end_of(head);
          const float sink =
              attn_sink != nullptr && head < h_q ? __ldg(attn_sink + head) : -infinity();
          const float sum = end.sum + end.poison, ref = smem.end_ref[p_at.slot][head] * scale;
          factor[i] = sum == 0.0f ? 0.0f : output_scale(ref, sum, sink);
        }
        if (group == 0 && warp == 0 && lane < min(kHeads, h_q)) {
          const End end = end_of(lane);
          const long long row = static_cast<long long>(token) * h_q + lane;
          const float max = end.max * scale;
          float log_sum = smem.end_ref[p_at.slot][lane] * scale + logf(end.sum);
          if (max == infinity()) log_sum = max;
          max_logits[row] = end.max == masked() ? -infinity() : max;
          lse[row] = end.sum + end.poison == 0.0f ? infinity() : log_sum;
        }
        release();
        bf16* out_head = out + (static_cast<long long>(token) * h_q + g) * kDV + warp * kMmaK;
#pragma unroll
        for (int i = 0; i < kGroupChunks; i += 2) {
          const int column = (i * kValueGroups + group) * kChunk;
          store_out(o[i], o[i + 1], factor, out_head, column, column + kValueGroups * kChunk,
                    h_q - g, t);
        }
      } while (!(flags & kLast));
    }
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
