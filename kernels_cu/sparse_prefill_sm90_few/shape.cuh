// Sizes of the few-heads kernel, its arguments, and what its shared memory holds.
#pragma once

namespace sparsekit::sparse_prefill_sm90_few {

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

enum : unsigned { kUnlisted = 0xffffffff };  // a row of a tile that is not valid
enum Flags : unsigned { kFirst = 1, kLast = 2, kMoved = 4 };

/// What the kernel is called with.
struct Arguments {
  const bf16* q;
  const bf16* kv;
  const int* indices;
  const float* attn_sink;  // null: no sink
  const int* topk_length;  // null: every column may count
  bf16* out;
  float* max_logits;
  float* lse;
  long long q_token_stride_elems, q_head_stride_elems, kv_row_stride_elems;
  long long indices_row_stride_elems;
  int s_q, h_q, s_kv, topk;
  float sm_scale;
};

/// Where a thread stands.
struct Place {
  int warpgroup, thread, warp, lane;  // thread and warp: of the warpgroup
  int g, t;                           // quad of the lane, and lane of the quad
};

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

}  // namespace sparsekit::sparse_prefill_sm90_few
