// Sizes of the Hopper sparse prefill kernel, and what its shared memory holds.
#pragma once

namespace sparsekit::sparse_prefill_sm90 {

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kDQk = SK_D_QK,                      // columns of q and kv
  kDeriveLength = SK_SKIP,             // without topk_length, find the last valid index first
  kQRegChunks = SK_Q_REGISTER_CHUNKS,  // 64-wide chunks of Q in registers of the score warpgroup
  kPBuffers = SK_P_BUFFERS,            // 2: P of a tile is stored before the next Q K^T begins
  kStoreChunk = SK_STORE_CHUNK,        // 1: before this chunk of it
  kAnnounceChunk = SK_ANNOUNCE_CHUNK,  // P is announced before this chunk of the next Q K^T
  kArrivingLanes = SK_ARRIVING_LANES,  // of a warp that arrives, 1 or 32
  kPartColumns = SK_PART_COLUMNS,      // of a part of a row; 0: rows are whole
  kSwapSlots = SK_SWAP_SLOTS,          // the slots of Q and of the tile before it change places
  kPrefetchQ = SK_PREFETCH_Q,          // Q is fetched into L2 when it is planned
  kL2Prefetch = SK_L2_PREFETCH_BYTES,  // by one piece of a row: 128 or 256
  kScoreRegs = SK_SCORE_REGISTERS,
  kValueRegs = SK_VALUE_REGISTERS,
  // 0 to measure only. Without the fence nothing orders copies and wgmma; without softmax the
  // results are wrong.
  kProxyFence = SK_PROXY_FENCE,
  kSoftmax = SK_SOFTMAX,
  kEarly = SK_EARLY_WEIGHTS,  // of a lane's 32 weights, computed before the maximum is known

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

  kMmaK = 16,        // contraction length of one wgmma
  kChunk = 64,       // bf16 in 128 bytes: a line of the 128-byte swizzle
  kPieceBytes = 16,  // of one cp.async
  kPiece = 8,        // bf16 in a piece
  kLineBytes = 128,
  kAtomBytes = 8 * kLineBytes,
  kChunkBytes = kBlockK * kLineBytes,
  kMmaKBytes = kMmaK * 2,
  kSteps = kChunk / kMmaK,     // wgmmas over one chunk of d
  kTileChunks = kDV / kChunk,  // of a slot
  kGroupChunks = kTileChunks / kValueGroups,
  kHasRope = kDQk > kDV,  // a ninth chunk that only Q K^T sees
  kQkChunks = kTileChunks + kHasRope,
  kQSharedChunks = kQkChunks - kQRegChunks,
  kGatherRows = kGroup / kPiece,  // rows that a warpgroup loads a line of at once
  kRowSteps = kBlockK / kGatherRows,
  kHalf = kBlockK / kWarp,                   // rows of a tile by lanes
  kRopeRowSteps = kRowSteps / kValueGroups,  // of the rope chunk, that one warpgroup loads
  kQReads = 4,
  kPlans = 4,      // positions whose rows are known: up to four ahead
  kItemSlots = 8,  // items in flight, and planned
  kBatch = 32,     // items whose lengths are found at once, a batch ahead
  kLanesOfRow = kWarp * kValueWarps / kBatch,
  kLengths = 2 * kBatch,
  kScanLoads = 4,  // indices that a lane holds in one round of the scan
  kScanWidth = kScanLoads * kWarp,
};

static_assert(kDQk == 512 || kDQk == 576,
              "a row is 512 columns, with or without 64 more that only Q K^T sees");
static_assert(kQRegChunks >= 1 && kQRegChunks < kTileChunks,
              "the chunks of Q in registers come through a slot of the ring");
static_assert(kHeads == kBlockK, "Q takes a slot of the ring");
static_assert(kPartColumns % kBlockK == 0, "a part is whole tiles");
static_assert(kPBuffers == 1 || !kHasRope, "shared memory holds P again or a rope chunk");
static_assert(kAnnounceChunk <= kQkChunks, "P is announced in the midst of Q K^T, or behind it");
static_assert(kHalf == 2, "a word of mask for 32 rows");

enum Plan : int { kNone = -2, kTile = -1 };  // else Q, of the item of that number

// What is planned next: Q of the item of that number in this block when left is kAtQ, else the tile
// that begins at `column`, with that many columns to the end of the row.
struct Course {
  int number;
  int left;
  const int* column;
};
enum : int { kAtQ = -1 };

// A chunk is 64 rows of 128 bytes; piece c of row r lies at piece c ^ (r % 8), which is the
// 128-byte swizzle of wgmma, ldmatrix and stmatrix alike.
template <class Arguments>
struct SharedMemory {
  alignas(kAtomBytes) bf16 ring[kSlots][kTileChunks][kBlockK][kChunk];
  bf16 q[kQSharedChunks][kHeads][kChunk];              // the last chunks of Q
  bf16 single[kPBuffers + kHasRope][kBlockK][kChunk];  // P, and the rope chunk
  float alpha[kPBuffers][kHeads];                      // factor of O before this P
  float2 end_of_row[2][kHeads];  // item % 2: the reference of the weights, and their sum or NaN
  typename Arguments::Item item[kItemSlots];  // item % kItemSlots, from the plan of its Q on
  Course course;                              // of the plans
  // position % kPlans: what it is, and where the rows of a tile are.
  int plan[kPlans];
  typename Arguments::Row rows[kPlans][kBlockK];
  int length[kLengths];  // item % kLengths: the end of its row
  // Phases: of full, one a use of the slot; of the others as said.
  unsigned long long full[kSlots];  // 256 copies and a warp: a slot has landed, and rows stand
  unsigned long long rope_full;     // 256 copies, a tile: its rope chunk has landed
  unsigned long long q_full;        // 256 copies, an item: the shared chunks of Q have landed
  unsigned long long s_done;        // 4 warps, a tile that someone waits for: Q K^T is done
  unsigned long long p_full;        // 4 warps, a tile: P and alpha stand
  unsigned long long p_free;        // 8 warps, a tile: they have been read
  // 4 warps, one of the barriers an item, in turn: an item of one tile may be over before those who
  // wait have seen the end of those before.
  unsigned long long q_read[kQReads];  // the slot of Q may be loaded anew
  unsigned long long end_full[2];      // end_of_row stands
  int first_column;  // of the tile that course plans next, where columns are numbered

  __device__ __forceinline__ bf16 (&p(int buffer)) [kBlockK][kChunk] {
    return single[buffer];
  } __device__ __forceinline__ bf16 (&rope()) [kBlockK][kChunk] { return single[kPBuffers]; }
};

enum Barrier : unsigned {  // 0 is __syncthreads
  kValues = 1,             // kValueThreads: the value warpgroups
};

}  // namespace sparsekit::sparse_prefill_sm90
