// Sizes of a part of a row, and who does what with one.
//
// All 8 warps gather. Q K^T: a warp has half of d and every fourth tile of 8 columns. Softmax: 16
// lanes have a head. P V: a warp has 64 of the 512 columns of O.
#pragma once

#include "sparsekit/shared_address.cuh"

namespace sparsekit::sparse_attn_paged_decode {

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

template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(kLineBytes) unsigned char dynamic_smem[];
  return *reinterpret_cast<Shared*>(dynamic_smem);
}

}  // namespace sparsekit::sparse_attn_paged_decode
