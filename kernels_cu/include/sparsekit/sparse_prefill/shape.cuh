// Sizes of the mma.sync sparse prefill block, and what its shared memory holds.
#pragma once

namespace sparsekit::sparse_prefill {

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
  kTileBytes = kBlockK * kDQk * sizeof(bf16),
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

// A tile is 128-byte lines, laid out by who brings them. Chunk c of row r lies at chunk c ^ (r % 8)
// of its line, so that the eight rows of one chunk column, which is what ldmatrix reads at once,
// meet all banks. Rows of P are shorter than a line: c ^ (line of the row).
template <class Rows>
struct SharedMemory {
  alignas(kLineBytes) typename Rows::Tile kv[kStages];
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

enum Barrier : unsigned {  // 0 is __syncthreads
  // kThreads: S of a tile stands, the next tile has landed, P V of the previous tile is done.
  kTileDone = 1,
  // kValueThreads: P and alpha stand.
  kPReady = 2,
  // kThreads: the ends of a round of the scan stand.
  kScanDone = 3,
};

}  // namespace sparsekit::sparse_prefill
