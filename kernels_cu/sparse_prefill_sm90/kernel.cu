// Sparse MLA prefill on Hopper: wgmma and cp.async (sm_90a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// A block walks items, each a token and 64 of its heads, and for each item tiles of 64 rows.
//   score warpgroup      S = Q K^T, softmax, P and alpha to shared memory
//   value warpgroups (2) O += P V for 256 of the 512 columns each, and the gather of everything
// The ring of three slots holds, in order, Q and the tiles of an item, then those of the next: a
// value warpgroup loads its own half of the columns, so it waits for no one to reuse a slot. README.md
// draws the schedule.

#include "sparsekit/anew.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/global_store.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/special_register.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/ptx/wgmma.cuh"

namespace sparsekit::sparse_prefill_sm90 {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kDQk = SK_D_QK,                      // columns of q and kv
  kDeriveLength = SK_SKIP,             // without topk_length, find the last valid index first
  kQRegChunks = SK_Q_REGISTER_CHUNKS,  // 64-wide chunks of Q in registers of the score warpgroup
  kGate = SK_GATE,                     // P V of a tile waits for Q K^T of the next
  kStoreChunk = SK_STORE_CHUNK,        // P of a tile is stored before this chunk of the next Q K^T
  kArrivingLanes = SK_ARRIVING_LANES,  // of a warp that arrives, 1 or 32
  kSingleFence = SK_SINGLE_FENCE,      // Q K^T starts when all of its tile has landed
  kL2Prefetch = SK_L2_PREFETCH_BYTES,  // by one piece of a row: 128 or 256
  kScoreRegs = SK_SCORE_REGISTERS,
  kValueRegs = SK_VALUE_REGISTERS,
  // 0 to measure only. Without the fence nothing orders copies and wgmma; without softmax, or with
  // no one waiting for anything, the results are wrong.
  kProxyFence = SK_PROXY_FENCE,
  kSoftmax = SK_SOFTMAX,
  kSync = SK_SYNC,

  kDV = 512,
  kHeads = 64,   // of an item: the rows of one wgmma
  kBlockK = 64,  // rows of one tile
  kSlots = 3,    // of the ring
  kWarp = 32,
  kGroup = 128,  // threads of a warpgroup
  kGroupWarps = 4,
  kValueGroups = 2,
  kValueWarps = kValueGroups * kGroupWarps,
  kValueThreads = kValueGroups * kGroup,
  kThreads = kGroup + kValueThreads,

  kMmaK = 16,         // contraction length of one wgmma
  kChunk = 64,        // bf16 in 128 bytes: a line of the 128-byte swizzle
  kPieceBytes = 16,   // of one cp.async
  kPiece = 8,         // bf16 in a piece
  kLineBytes = 128,
  kAtomBytes = 8 * kLineBytes,
  kChunkBytes = kBlockK * kLineBytes,
  kMmaKBytes = kMmaK * 2,
  kSteps = kChunk / kMmaK,                 // wgmmas over one chunk of d
  kTileChunks = kDV / kChunk,              // of a slot
  kGroupChunks = kTileChunks / kValueGroups,
  kHasRope = kDQk > kDV,                   // a ninth chunk that only Q K^T sees
  kQSharedChunks = kTileChunks + kHasRope - kQRegChunks,
  kGatherRows = kGroup / kPiece,           // rows that a warpgroup loads a line of at once
  kRowSteps = kBlockK / kGatherRows,
  kHalf = kBlockK / kWarp,                 // rows of a tile by lanes
  kRopeRowSteps = kRowSteps / kValueGroups,  // of the rope chunk, that one warpgroup loads
  kQReads = 4,
  kPlans = 4,                              // positions whose rows are known: up to four ahead
  kAhead = 3,                              // items whose length is known ahead of time
  kLengthSlots = 8,                        // at least kAhead + 2
  kScanLoads = 4,                          // indices that a lane holds in one round of the scan
  kScanWidth = kScanLoads * kWarp,
};

static_assert(kDQk == 512 || kDQk == 576,
              "a row is 512 columns, with or without 64 more that only Q K^T sees");
static_assert(kQRegChunks >= 1 && kQRegChunks < kTileChunks,
              "the chunks of Q in registers come through a slot of the ring");
static_assert(kHeads == kBlockK, "Q takes a slot of the ring");
static_assert(kHalf == 2, "a word of mask for 32 rows");

// ---------------------------------------------------------------- shared memory

enum Plan : int { kNone = -2, kTile = -1 };  // else Q, of the item of that number
enum : unsigned { kUnlisted = 0xffffffff };  // a row of a tile that is not valid

// What is planned next: Q of the item of that number in this block when left is kAtQ, else the tile
// that begins at `column`, with that many columns to the end of the row.
struct Course {
  int number;
  int left;
  const int* column;
};
enum : int { kAtQ = -1 };

// A chunk is 64 rows of 128 bytes; piece c of row r lies at piece c ^ (r % 8), which is the 128-byte
// swizzle of wgmma, ldmatrix and stmatrix alike.
struct SharedMemory {
  alignas(kAtomBytes) bf16 ring[kSlots][kTileChunks][kBlockK][kChunk];
  bf16 q[kQSharedChunks][kHeads][kChunk];  // the last chunks of Q
  bf16 p[kHeads][kBlockK];
  bf16 rope[kHasRope ? kBlockK : 8][kChunk];
  float alpha[kHeads];       // factor of O before this P
  float2 end_of_row[2][kHeads];  // item % 2: the reference of the weights, and their sum or NaN
  // position % kPlans: what it is, and where the rows of a tile are, in pieces from the first of kv.
  Course course;  // of the plans
  int plan[kPlans];
  unsigned rows[kPlans][kBlockK];
  int4 end[kLengthSlots][kValueGroups];  // item % kLengthSlots: a word of each value warp; the largest
  // Phases: of full, one a use of the slot; of the others as said.
  unsigned long long full[kSlots];  // 256 copies and a warp: a slot has landed, and rows stand
  unsigned long long rope_full;     // 256 copies, a tile: its rope chunk has landed
  unsigned long long q_full;        // 256 copies, an item: the shared chunks of Q have landed
  unsigned long long s_done;        // 4 warps, a tile but an item's first if none waits: Q K^T is done
  unsigned long long p_full;        // 4 warps, a tile: P and alpha stand
  unsigned long long p_free;        // 8 warps, a tile: they have been read
  // 4 warps, one of the barriers an item, in turn: an item of one tile may be over before those who
  // wait have seen the end of those before.
  unsigned long long q_read[kQReads];  // the slot of Q may be loaded anew
  unsigned long long end_full[2];      // end_of_row stands
};

enum Barrier : unsigned {  // 0 is __syncthreads
  kValueGroup = 1,         // kValueThreads: the warps of the value warpgroups
};

// ---------------------------------------------------------------- launch facts

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_fwd, sizeof(SharedMemory));

// ---------------------------------------------------------------- pieces of the kernel

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

/// The score of a masked column, -FLT_MAX: its weight is 0, and unlike a listed -inf it poisons
/// nothing. No finite score is below it, and scaled by no less than least_scale() its weight is 0.
__device__ __forceinline__ float masked() { return __int_as_float(0xff7fffff); }

enum : unsigned { kLog2EBits = 0x3fb8aa3b, kLeastScaleBits = 0x21800000 };  // 2^-60
__device__ __forceinline__ float log2_e() { return __int_as_float(kLog2EBits); }

__device__ __forceinline__ float least_scale() { return __int_as_float(kLeastScaleBits); }

/// e^x; 0 for -inf.
__device__ __forceinline__ float natural_exp(float x) { return ex2_approx_ftz_f32(x * log2_e()); }

/// The same value, known to the compiler as equal in all lanes, so that one register may hold it.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

/// Waits for the end of the phase of that parity.
__device__ __forceinline__ void wait(const unsigned long long& barrier, int parity) {
  while (kSync && !mbarrier_try_wait_parity_shared_cta_b64(shared_address(&barrier), parity)) {
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

/// What one warp brings to a barrier: kArrivingLanes arrivals, for all that its lanes have done.
__device__ __forceinline__ void arrive(unsigned long long& barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp < kArrivingLanes) mbarrier_arrive_shared_cta_b64(shared_address(&barrier));
}

/// The index in `column`; -1, which is never valid, outside [0, columns).
__device__ __forceinline__ int load_index(const int* row, int column, int columns) {
  return static_cast<unsigned>(column) < static_cast<unsigned>(columns) ? __ldg(row + column) : -1;
}

__device__ __forceinline__ bool is_valid(int index, int s_kv) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(s_kv);
}

/// The item of that number of this block.
__device__ __forceinline__ int item_of(int number) { return blockIdx.x + number * gridDim.x; }

/// What the kernel was called with.
struct Arguments {
  const bf16* q;
  const bf16* kv;
  const int* indices;
  const int* topk_length;  // null: every column may count
  long long q_token_stride_elems, q_head_stride_elems;
  unsigned kv_row_stride_pieces;
  long long indices_row_stride_elems;
  int s_q, h_q, s_kv, topk;

  __device__ __forceinline__ int head_blocks() const { return anew((h_q + kHeads - 1) / kHeads); }
  __device__ __forceinline__ int items() const { return s_q * head_blocks(); }
  __device__ __forceinline__ int token(int item) const { return item / head_blocks(); }
  __device__ __forceinline__ int first_head(int item) const {
    return item % head_blocks() * kHeads;
  }
  __device__ __forceinline__ const int* index_row(int item) const {
    return indices + token(item) * indices_row_stride_elems;
  }
};

/// The end of this warp's share of the row: of every 1024 columns, counted from the end, warp w looks
/// at 128, and goes on until it finds a valid one. The largest of the eight ends is the row's.
__device__ __forceinline__ int scan_share(const Arguments& a, const int* row, int warp, int lane) {
#pragma unroll 1
  for (int first = a.topk - kScanWidth * (warp + 1);; first -= kValueWarps * kScanWidth) {
    int round[kScanLoads];
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      round[j] = load_index(row, first + j * kWarp + lane, a.topk);
    }
    int end = 0;
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      if (is_valid(round[j], a.s_kv)) end = first + j * kWarp + lane + 1;
    }
    end = redux_sync_max_s32(end);
    if (end > 0 || first <= 0) return end;
  }
}

/// A value warp's word of the length of item `number` of this block. warp: of the eight.
__device__ __forceinline__ void find_length(SharedMemory& smem, const Arguments& a, int number,
                                            int warp, int lane) {
  const int item = item_of(number);
  if (item >= a.items()) return;
  int end = a.topk;
  if (a.topk_length != nullptr) {
    end = min(max(__ldg(a.topk_length + a.token(item)), 0), a.topk);
  } else if (kDeriveLength) {
    end = scan_share(a, a.index_row(item), warp, lane);
  }
  if (lane == 0) reinterpret_cast<int*>(&smem.end[number % kLengthSlots])[warp] = end;
}

__device__ __forceinline__ int length_of(const SharedMemory& smem, int number) {
  const int4 x = smem.end[number % kLengthSlots][0], y = smem.end[number % kLengthSlots][1];
  return uniform(max(max(max(x.x, x.y), max(x.z, x.w)), max(max(y.x, y.y), max(y.z, y.w))));
}

/// An empty row has one tile, all masked.
__device__ __forceinline__ int tiles_of(int length) {
  return max((length + kBlockK - 1) / kBlockK, 1);
}

/// A position in the ring.
struct Position {
  int slot = 0;
  int parity = 0;  // of the phase of full that ends when it has landed
  int plan = 0;
  __device__ __forceinline__ void advance() {
    plan = (plan + 1) % kPlans;
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// ---------------------------------------------------------------- gather

/// What a position is and where its rows are, found by one warp, a position a call. Lane l sees to
/// the rows l and l + 32 of a tile, and holds their indices a position ahead: index.
__device__ __forceinline__ void plan_next(SharedMemory& smem, const Arguments& a, int plan,
                                          int lane, int (&index)[kHalf]) {
  Course course = smem.course;
  const int item = item_of(course.number);
  if (item >= a.items()) {
    if (lane == 0) smem.plan[plan] = kNone;
    return;
  }
  if (course.left == kAtQ) {
    if (lane == 0) smem.plan[plan] = course.number;
    course.left = length_of(smem, course.number);
    course.column = a.index_row(item);
  } else {
    if (lane == 0) smem.plan[plan] = kTile;
#pragma unroll
    for (int h = 0; h < kHalf; ++h) {
      smem.rows[plan][h * kWarp + lane] =
          is_valid(index[h], a.s_kv) ? index[h] * a.kv_row_stride_pieces : kUnlisted;
    }
    course.left -= kBlockK, course.column += kBlockK;
    if (course.left <= 0) course.left = kAtQ, ++course.number;
  }
#pragma unroll
  for (int h = 0; h < kHalf; ++h) {
    const int column = h * kWarp + lane;
    index[h] = column < course.left ? __ldg(course.column + column) : -1;
  }
  __syncwarp();
  if (lane == 0) smem.course = course;
  __syncwarp();
}

/// What a value warpgroup loads: its half of the columns of every position, its half of the rows of
/// the rope chunks and of the shared chunks of Q. Thread t copies piece t % 8 of the rows t / 8,
/// t / 8 + 16, ...
struct Gather {
  SharedMemory& smem;
  const Arguments& a;
  int group, line, piece;  // line: thread / 8, piece: thread % 8

  /// The same, of this thread read anew: what hangs on it is not kept, where it would crowd out O.
  __device__ __forceinline__ Gather here() const {
    const int thread = tid_x() % kGroup;
    return {smem, a, group, thread / kPiece, thread % kPiece};
  }

  /// kChunks chunks of row r * 16 + line, from src.
  template <int kChunks>
  __device__ __forceinline__ void copy_row(unsigned chunks, int r, const bf16* src,
                                           bool valid) const {
    const unsigned dst = chunks + line * kLineBytes + (piece ^ line % 8) * kPieceBytes +
                         r * kGatherRows * kLineBytes;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) copy_piece(dst + c * kChunkBytes, src + c * kChunk, valid);
  }

  /// Where the rows r * 16 + line of a planned tile are, from step r = first_step on.
  template <int kCount>
  __device__ __forceinline__ void read_rows(unsigned (&row)[kCount], int plan,
                                            int first_step) const {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      row[s] = smem.rows[plan][(first_step + s) * kGatherRows + line];
    }
  }

  /// Chunks of those rows, from `column` of kv.
  template <int kChunks, int kCount>
  __device__ __forceinline__ void copy_tile(unsigned chunks, int column,
                                            const unsigned (&row)[kCount], int first_step) const {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      const bool valid = row[s] != kUnlisted;
      const unsigned long long pieces = valid ? row[s] : 0;
      copy_row<kChunks>(chunks, first_step + s, a.kv + column + piece * kPiece + pieces * kPiece,
                        valid);
    }
  }

  /// Chunks of heads of an item, from `column` of Q.
  template <int kChunks>
  __device__ __forceinline__ void copy_q(unsigned chunks, int item, int column, int first_step,
                                         int steps) const {
    const int first = a.first_head(item);
    const bf16* src = a.q + a.token(item) * a.q_token_stride_elems +
                      first * a.q_head_stride_elems + column + piece * kPiece;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int r = first_step + s, head = r * kGatherRows + line;
      const bool valid = first + head < a.h_q;
      copy_row<kChunks>(chunks, r, src + (valid ? head : 0) * a.q_head_stride_elems, valid);
    }
  }

  /// A planned position, whose rows have been read, into that slot.
  __device__ __forceinline__ void load(int what, const unsigned (&row)[kRowSteps], int slot) {
    if (what == kNone) return;
    const unsigned chunks = shared_address(&smem.ring[slot][group * kGroupChunks]);
    const int column = group * kGroupChunks * kChunk;
    if (what == kTile) {
      copy_tile<kGroupChunks>(chunks, column, row, 0);
    } else {
      copy_q<kGroupChunks>(chunks, item_of(what), column, 0, kRowSteps);
    }
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.full[slot]));
    __syncwarp();
    if (threadIdx.x - kGroup < kArrivingLanes) {  // of the warp that plans
      mbarrier_arrive_shared_cta_b64(shared_address(&smem.full[slot]));
    }
  }

  __device__ __forceinline__ void load(int plan, int slot) {
    unsigned row[kRowSteps];
    read_rows(row, plan, 0);
    load(smem.plan[plan], row, slot);
  }

  /// The rope chunk of a planned position if it is a tile, once Q K^T of the tile before it is done.
  __device__ __forceinline__ void load_rope(int what, const unsigned (&row)[kRopeRowSteps]) {
    if (!kHasRope || what != kTile) return;
    here().copy_tile<1>(shared_address(&smem.rope), kDV, row, group * kRopeRowSteps);
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.rope_full));
  }

  __device__ __forceinline__ void load_rope(int plan) {
    unsigned row[kRopeRowSteps];
    read_rows(row, plan, group * kRopeRowSteps);
    load_rope(smem.plan[plan], row);
  }

  /// The chunks of Q that stay in shared memory, once Q K^T of all items before is done.
  __device__ __forceinline__ void load_q_chunks(int item) {
    here().copy_q<kQSharedChunks>(shared_address(&smem.q), item, kQRegChunks * kChunk,
                           group * kRopeRowSteps, kRopeRowSteps);
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.q_full));
  }
};

// ---------------------------------------------------------------- softmax

/// Online softmax of the two heads of a lane, kept by the four lanes of a quad, over scores s that
/// `scale`, which is at least least_scale(), is still to multiply. Weights are exp((s - ref) scale): the
/// reference follows the maximum only when it lags by more than kMaxLag, since every move costs a pass
/// over O.
struct Softmax {
  float max[2];     // masked() while no score above it was seen, and so is ref
  float ref[2];
  float sum[2];     // of this lane's columns; over the quad at least 1 once a score was finite
  float poison[2];  // 0, or NaN once a listed score of this lane was not finite

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = ref[r] = masked(), sum[r] = poison[r] = 0.0f;
  }

  /// S of one tile to P, packed in pairs, and the factors of O.
  __device__ __forceinline__ void tile(float (&s)[32], unsigned (&p)[16], float (&alpha)[2],
                                       unsigned listed_low, unsigned listed_high, int t,
                                       float scale) {
    constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
    float top[2] = {max[0], max[1]};
    if ((listed_low & listed_high) != 0xffffffff) {
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int column = e / 4 * 8 + e % 2;
        const unsigned listed = (column < 32 ? listed_low : listed_high) >> 2 * t;
        if ((listed >> column % 32 & 1) == 0) s[e] = masked();
      }
    }
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int r = e / 2 % 2;
      top[r] = max_NaN_f32(top[r], s[e]);
      poison[r] = __fmaf_rn(s[e], 0.0f, poison[r]);
    }
    const float exponent_scale = scale * log2_e();
    float subtracted[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = max_NaN_f32(top[r], __shfl_xor_sync(0xffffffff, top[r], 1));
      top[r] = max_NaN_f32(top[r], __shfl_xor_sync(0xffffffff, top[r], 2));
      // While nothing was seen 0 is subtracted, so that masked columns have the weight 0.
      const float new_ref = (top[r] - ref[r]) * scale <= kMaxLag ? ref[r] : top[r];
      const float less = new_ref == masked() ? 0.0f : new_ref;
      alpha[r] = new_ref == ref[r] ? 1.0f : natural_exp((ref[r] - less) * scale);
      subtracted[r] = -less * exponent_scale;
      poison[r] = __fmaf_rn(subtracted[r], 0.0f, poison[r]);  // a finite score may leave its type
      max[r] = top[r], ref[r] = new_ref, sum[r] *= alpha[r];
    }
    float tile_sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
      const int r = e / 2 % 2;
      const float p0 = ex2_approx_ftz_f32(__fmaf_rn(s[e], exponent_scale, subtracted[r]));
      const float p1 = ex2_approx_ftz_f32(__fmaf_rn(s[e + 1], exponent_scale, subtracted[r]));
      tile_sum[r] += p0 + p1;
      p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += tile_sum[r];
  }
};

/// The factor of O in out, for reference m and sum l of a head with at least one listed row. IEEE
/// arithmetic carries the non-finite cases: a NaN sink or score gives NaN, a sink of +inf gives 0,
/// one of -inf changes nothing.
__device__ __forceinline__ float output_scale(float m, float l, float sink) {
  const float top = max_NaN_f32(m, sink);
  const float weight = natural_exp(m - top);
  const float sink_weight = sink == infinity()    ? 1.0f
                            : sink == -infinity() ? 0.0f
                                                  : natural_exp(sink - top);
  return weight / (l * weight + sink_weight);
}

// ---------------------------------------------------------------- out

/// O, scaled, to out. A lane of a quad holds a quarter of 8 columns; over the quad four of these
/// pieces are transposed, so that each lane stores one.
__device__ __forceinline__ void store_out(const float (&o)[128], const float (&scale)[2],
                                          bf16* out_row, int heads_left, int t) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned v[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const int e = (4 * j + k) * 4 + 2 * r;
        v[k] = cvt_rn_bf16x2_f32(__fmaf_rn(o[e + 1], scale[r], 0.0f),
                                 __fmaf_rn(o[e], scale[r], 0.0f));
      }
      // Transposed over the quad: v[k] of lane t becomes v[t] of lane k.
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const unsigned got = __shfl_xor_sync(0xffffffff, t & 1 ? v[k] : v[k + 1], 1);
        (t & 1 ? v[k] : v[k + 1]) = got;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const unsigned got = __shfl_xor_sync(0xffffffff, t & 2 ? v[k] : v[k + 2], 2);
        (t & 2 ? v[k] : v[k + 2]) = got;
      }
      if (r * 8 < heads_left) {
        st_global_v4_b32(out_row + r * 8 * kDV + (4 * j + t) * kPiece, v);
      }
    }
  }
}

// ---------------------------------------------------------------- kernel

// Grid: x = as many blocks as run at once; block b takes the items b, b + grid, ... Item i is token
// i / ceil(h_q / 64) and its (i % ceil(h_q / 64))-th 64 heads.
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_prefill_sm90_fwd(
    const bf16* __restrict__ q, const bf16* __restrict__ kv, const int* __restrict__ indices,
    const float* __restrict__ attn_sink,  // null: no sink
    const int* __restrict__ topk_length, bf16* __restrict__ out, float* __restrict__ max_logits,
    float* __restrict__ lse, long long q_token_stride_elems, long long q_head_stride_elems,
    long long kv_row_stride_elems, long long indices_row_stride_elems, int s_q, int h_q, int s_kv,
    int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const Arguments a = {q,
                       kv,
                       indices,
                       topk_length,
                       q_token_stride_elems,
                       q_head_stride_elems,
                       static_cast<unsigned>(kv_row_stride_elems / kPiece),
                       indices_row_stride_elems,
                       s_q,
                       h_q,
                       s_kv,
                       topk};
  const int warpgroup = uniform(threadIdx.x / kGroup);
  const int thread = threadIdx.x % kGroup, warp = uniform(thread / kWarp);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int items = a.items();

  if (threadIdx.x == 0) {
    smem.course = {0, kAtQ, nullptr};
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kValueThreads + kArrivingLanes);
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.rope_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.s_done), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_full), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_free), kValueWarps * kArrivingLanes);
    for (int i = 0; i < kQReads; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.q_read[i]), kGroupWarps * kArrivingLanes);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.end_full[i]), kGroupWarps * kArrivingLanes);
    }
  }
  if (threadIdx.x < kPlans * kBlockK) smem.rows[0][threadIdx.x] = kUnlisted;
  __syncthreads();

  if (warpgroup == 0) {
    // -------------------------------------------------------------- score warpgroup
    setmaxnreg_inc_sync_aligned_u32<kScoreRegs>();
    const int matrix_row = warp * kMmaK + lane % 16;
    const unsigned matrix_offset = matrix_row * kLineBytes, matrix_piece = lane / 16;
    const unsigned row_swizzle = lane % 8;
    Position at;
    int tile_parity = 0, p_parity = 1;  // p_free: no phase has ended, so 1 does not wait

    const float scale = sm_scale >= least_scale() ? sm_scale : 1.0f;
    float s[32] = {}, alpha[2] = {};
    unsigned p[16] = {};
    Softmax rows;

    // P and alpha of a tile to the value warpgroups.
    const auto store_p = [&] {
      wait(smem.p_free, p_parity);
#pragma unroll
      for (int j = 0; j < kBlockK / kMmaK; ++j) {
        const unsigned part[4] = {p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]};
        stmatrix_sync_aligned_m8n8_x4_shared_b16(
            shared_address(&smem.p[0][0]) + matrix_offset +
                ((2 * j + matrix_piece) ^ row_swizzle) * kPieceBytes,
            part);
      }
      if (t < 2) smem.alpha[warp * kMmaK + t * 8 + g] = t == 0 ? alpha[0] : alpha[1];
      fence_proxy_async_shared_cta();
      arrive(smem.p_full);
      p_parity ^= 1;
    };

    // Waits for what Q K^T needs beside the ring.
    const auto late = [&](int tile, int number) {
      if (tile == 0) wait(smem.q_full, number & 1);
      if (kHasRope) wait(smem.rope_full, tile_parity);
      if (kHasRope || tile == 0) fence_copies();
      wgmma_fence_sync_aligned();
    };

    // Q from its slot to registers.
    unsigned q_reg[kQRegChunks][kSteps][4];
    const auto read_q = [&](int number) {
      wait(smem.full[at.slot], at.parity);
#pragma unroll
      for (int c = 0; c < kQRegChunks; ++c) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          ldmatrix_sync_aligned_m8n8_x4_shared_b16(
              q_reg[c][k], shared_address(&smem.ring[at.slot][c][0][0]) + matrix_offset +
                               ((2 * k + matrix_piece) ^ row_swizzle) * kPieceBytes);
        }
      }
      arrive(smem.q_read[number % kQReads]);
      at.advance();
    };

    read_q(0);
#pragma unroll 1
    for (int item = blockIdx.x, number = 0; item < items; item += gridDim.x, ++number) {
      rows.reset();
      const int tiles = tiles_of(length_of(smem, number));

#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        // S = Q K^T: what comes late last.
        const unsigned long long k_desc =
            matrix_descriptor_128b(shared_address(&smem.ring[at.slot][0][0][0]), 1, kAtomBytes);
        const unsigned long long q_desc =
            matrix_descriptor_128b(shared_address(&smem.q[0][0][0]), 1, kAtomBytes);
        wait(smem.full[at.slot], at.parity);
        if (!kSingleFence) fence_copies();
        if (!kSingleFence) wgmma_fence_sync_aligned();
        if (kSingleFence) late(tile, number);
#pragma unroll
        for (int c = 0; c < kTileChunks; ++c) {
          if (c == kStoreChunk) {
            if (tile > 0) store_p();
            wgmma_fence_sync_aligned();
          }
          if (c == kQRegChunks && !kSingleFence) late(tile, number);
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            const unsigned long long b = k_desc + (c * kChunkBytes + k * kMmaKBytes) / 16;
            const int accumulate = c + k > 0;
            if (c < kQRegChunks) {
              wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16_registers(
                  s, q_reg[c < kQRegChunks ? c : 0][k], b, accumulate);
            } else {
              wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
                  s, q_desc + ((c - kQRegChunks) * kChunkBytes + k * kMmaKBytes) / 16, b,
                  accumulate);
            }
          }
        }
        if (kHasRope) {
          const unsigned long long rope_desc =
              matrix_descriptor_128b(shared_address(&smem.rope[0][0]), 1, kAtomBytes);
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
                s, q_desc + ((kQSharedChunks - 1) * kChunkBytes + k * kMmaKBytes) / 16,
                rope_desc + k * kMmaKBytes / 16, 1);
          }
        }
        wgmma_commit_group_sync_aligned();

        if (kStoreChunk >= kTileChunks && tile > 0) store_p();
        const unsigned* listed = &smem.rows[at.plan][lane];
        const unsigned listed_low = __ballot_sync(0xffffffff, listed[0] != kUnlisted);
        const unsigned listed_high = __ballot_sync(0xffffffff, listed[kWarp] != kUnlisted);
        wgmma_wait_group_sync_aligned<0>();
        if (tile > 0 || (kHasRope && tiles > 1)) arrive(smem.s_done);
        at.advance();
        tile_parity ^= 1;

        if (kSoftmax) {
          if (scale != sm_scale) {  // it is tiny, not positive or not a number
#pragma unroll
            for (int e = 0; e < 32; ++e) s[e] *= sm_scale;
          }
          rows.tile(s, p, alpha, listed_low, listed_high, t, scale);
        } else {
#pragma unroll
          for (int e = 0; e < 32; e += 2) p[e / 2] = cvt_rn_bf16x2_f32(s[e + 1], s[e]);
          alpha[0] = alpha[1] = 1.0f;
        }
      }
      if (item + static_cast<int>(gridDim.x) < items) read_q(number + 1);
      store_p();

      // The end of the item.
      const int first_head = a.first_head(item);
      const long long first_row = static_cast<long long>(a.token(item)) * h_q + first_head;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = rows.sum[r], poison = rows.poison[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        poison += __shfl_xor_sync(0xffffffff, poison, 1);
        poison += __shfl_xor_sync(0xffffffff, poison, 2);
        const bool empty = sum == 0.0f && poison == 0.0f;
        const int head = warp * kMmaK + r * 8 + g;
        if (t == 0) {
          const float ref = rows.ref[r] * scale, max = rows.max[r] * scale;
          smem.end_of_row[number % 2][head] = make_float2(ref, sum + poison);
          if (first_head + head < h_q) {
            const float log_sum = max == infinity() ? max : ref + logf(sum);
            max_logits[first_row + head] = rows.max[r] == masked() ? -infinity() : max;
            lse[first_row + head] = empty ? infinity() : log_sum;
          }
        }
      }
      arrive(smem.end_full[number % 2]);
    }
  } else {
    // -------------------------------------------------------------- value warpgroups
    setmaxnreg_dec_sync_aligned_u32<kValueRegs>();
    const int group = warpgroup - 1, value_warp = group * kGroupWarps + warp;
    Gather gather = {smem, a, group, thread / kPiece, thread % kPiece};
    int index[kHalf] = {};  // of the warp that plans
    const bool plans = value_warp == 0;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
      find_length(smem, a, i, value_warp, lane);
    }
    bar_sync(kValueGroup, kValueThreads);
    if (plans) {
#pragma unroll 1
      for (int i = 0; i < kPlans; ++i) plan_next(smem, a, i, lane, index);
    }
    bar_sync(kValueGroup, kValueThreads);
    unsigned first[kRowSteps] = {};
    gather.load(0, first, 0);  // Q of item 0
    gather.read_rows(first, 1, 0);
    gather.load(kTile, first, 1);
    gather.load_q_chunks(blockIdx.x);
    gather.load_rope(1);
    gather.load(2, 2);
    bar_sync(kValueGroup, kValueThreads);  // all have read the first plan

    int slot = 0, plan = 0;  // of the position that is read; three on, one comes into its slot
    int p_parity = 0, s_parity = 0;
    const auto wait_s_done = [&] {
      wait(smem.s_done, s_parity);
      s_parity ^= 1;
    };
    const auto advance = [&] {
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      plan = (plan + 1) % kPlans;
    };
#pragma unroll 1
    for (int number = 0; item_of(number) < items; ++number) {
      int tiles = tiles_of(length_of(smem, number));  // to come
      // Once Q stands in registers its slot is free.
      if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
      bar_sync(kValueGroup, kValueThreads);
      if (kHasRope && tiles > 1) {
        wait_s_done();
        gather.load_rope((plan + 2) % kPlans);
      }
      wait(smem.q_read[number % kQReads], number / kQReads & 1);
      gather.load((plan + 3) % kPlans, slot);
      advance();
      float o[128];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e] = 0.0f;

#pragma unroll 1
      for (; tiles > 0; --tiles) {
        wait(smem.p_full, p_parity);
        p_parity ^= 1;
        // Read ahead of P V, under which shared memory is slow.
        const int rope_what = smem.plan[(plan + 2) % kPlans];
        unsigned rope_row[kRopeRowSteps];
        gather.read_rows(rope_row, (plan + 2) % kPlans, group * kRopeRowSteps);
        const float alpha[2] = {smem.alpha[warp * kMmaK + g], smem.alpha[warp * kMmaK + 8 + g]};
        // A factor of exactly 1 changes no bit.
        if (__any_sync(0xffffffff, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
          for (int e = 0; e < 128; ++e) o[e] *= alpha[e / 2 % 2];
        }
        if (kGate && tiles > 1) wait_s_done();
        // No proxy fence: the score warpgroup's, between the copies' end and p_full, is one for P and V.
        const unsigned long long p_desc =
            matrix_descriptor_128b(shared_address(&smem.p[0][0]), 1, kAtomBytes);
        const unsigned long long v_desc = matrix_descriptor_128b(
            shared_address(&smem.ring[slot][group * kGroupChunks][0][0]), kChunkBytes, kAtomBytes);
        wgmma_fence_sync_aligned();
#pragma unroll
        for (int k = 0; k < kBlockK / kMmaK; ++k) {
          wgmma_mma_async_sync_aligned_m64n256k16_f32_bf16_bf16_b_transposed(
              o, p_desc + k * kMmaKBytes / 16, v_desc + k * kMmaK * kLineBytes / 16, 1);
        }
        wgmma_commit_group_sync_aligned();
        if (!kGate && tiles > 1) wait_s_done();
        gather.load_rope(rope_what, rope_row);
        if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
        if (tiles == 1 && item_of(number + 1) < items) gather.load_q_chunks(item_of(number + 1));
        // Once an item, and not at its end if it can be helped.
        if (tiles == 2 || (tiles == 1 && tiles_of(length_of(smem, number)) == 1)) {
          find_length(smem, a, number + kAhead, value_warp, tid_x() % kWarp);
        }
        const int what = smem.plan[(plan + 3) % kPlans];
        unsigned row[kRowSteps];
        gather.read_rows(row, (plan + 3) % kPlans, 0);
        wgmma_wait_group_sync_aligned<0>();
        arrive(smem.p_free);
        gather.load(what, row, slot);
        advance();
      }

      const int item = item_of(number);
      const int end_lane = tid_x() % kWarp;  // read anew: kept over the loop, it would crowd out O
      const int head = warp * kMmaK + end_lane / 4, first_head = a.first_head(item);
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        factor[r] = attn_sink != nullptr && first_head + head + r * 8 < h_q
                        ? __ldg(attn_sink + first_head + head + r * 8)
                        : -infinity();
      }
      wait(smem.end_full[number % 2], number / 2 & 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 end = smem.end_of_row[number % 2][head + r * 8];
        factor[r] = end.y == 0.0f ? 0.0f : output_scale(end.x, end.y, factor[r]);
      }
      bf16* out_row =
          out + (static_cast<long long>(a.token(item)) * h_q + first_head + head) * kDV +
          group * (kDV / kValueGroups);
      store_out(o, factor, out_row, h_q - first_head - head, end_lane % 4);
    }
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
