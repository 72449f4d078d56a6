// Sparse MLA prefill on Blackwell: tcgen05 with tensor memory, and TMA gather4 (sm_100a, sm_103a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// kCtas blocks walk items, each a token and 64 heads a block, and for each item the tiles of 64
// rows that list something.
//   softmax warps (4)  S to P, and O to out: thread t has lane t of tensor memory
//   tensor warp (1)    starts S = Q K^T and O += P V
//   gather warps (4)   each loads a quarter of the rows of every tile, and of Q
// A lane of tensor memory has half of a head: of S the sum over half of the columns of K, for all
// tokens; of O half of the columns. Lane t and lane t ^ 64 are of head t % 64. A pair of blocks
// (kCtas 2) shares out the columns of K and V in that very way, so that it gathers each row once.
// README.md draws the schedule.

#include "sparsekit/anew.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cluster.cuh"
#include "sparsekit/ptx/cp_async_bulk_tensor.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/ptx/tcgen05.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/wait.cuh"

namespace sparsekit::sparse_prefill_sm100 {

using namespace sparsekit::ptx;

// ---------------------------------------------------------------- constants

struct bf16 {
  unsigned short bits;
};

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : int {
  kDQk = SK_D_QK,   // columns of q and kv
  kSkip = SK_SKIP,  // skip tiles that list nothing; without topk_length find the row's end first
  kCtas = SK_CTAS,  // blocks that share an item
  kStages = SK_STAGES,  // slots of the ring

  kDV = 512,
  kHeads = 64,   // of an item and block
  kBlockK = 64,  // rows of one tile
  kWarp = 32,
  kSoftmaxWarps = 4,
  kTensorWarp = kSoftmaxWarps,
  kGatherWarps = 4,
  kLanes = kSoftmaxWarps * kWarp,  // of tensor memory
  kThreads = (kSoftmaxWarps + 1 + kGatherWarps) * kWarp,

  kMmaK = 16,  // contraction length of one product
  kMmaKBytes = 32,
  kMmaKWords = 8,  // columns of tensor memory that a row of A takes
  kChunk = 64,     // bf16 in 128 bytes: a line of the 128-byte swizzle
  kLineBytes = 128,
  kChunkBytes = kBlockK * kLineBytes,
  kChunks = kDV / kChunk,
  kSlotChunks = kChunks / kCtas,
  kSlotHalves = 2,  // of the rows: gathered anew as soon as P V is through with them
  kSlotBytes = kSlotChunks * kChunkBytes,
  kPairs = kChunks / 2,         // of chunks, one for the lower lanes and one for the upper
  kSlotPairs = kPairs / kCtas,  // of Q in one slot
  kHasRope = kDQk > kDV,        // 64 more columns that only Q K^T sees
  kRopeChunk = 32,              // half of them: a line of the 64-byte swizzle
  kRopeLineBytes = 64,
  kRopeHalves = 2,
  kRopeSlots = kHasRope ? kStages : 1,
  kTileBytes = kBlockK * kDQk * 2 / kCtas,       // that a block gathers
  kQBytes = kHeads * kDV * 2 / kCtas,            // of Q in one slot
  kQRopeBytes = kHasRope * kHeads * kLineBytes,  // in the first
  kRows = 4,                                     // of one gather
  kUnused = 16,                                  // leading bytes where k adjoins: encoded as 1
  kWarpRows = kBlockK / kGatherWarps,

  // Columns of tensor memory.
  kTensorO = 0,  // 2 x 128: the products with half of the chunks each
  kTensorOHalf = 128,
  kTensorQ = 256,  // 4 x 32, and 16 of rope
  kTensorS = 400,  // a token each
  kTensorP = 464,  // two tokens each
  kTensorColumns = 512,
  kLoad = 32,  // columns that a thread loads at once

  kScanLoads = 8,  // indices that a lane holds in one round of the scan
  kScanWidth = kScanLoads * kWarp,
};

static_assert(kDQk == 512 || kDQk == 576,
              "a row is 512 columns, with or without 64 more that only Q K^T sees");
static_assert(kCtas == 1 || kCtas == 2, "an item is of one block, or of a pair");
static_assert(kStages >= kCtas + 2, "the last tile of an item, Q and the first tile of the next");
static_assert(kHeads == kBlockK, "Q takes slots of the ring");

// ---------------------------------------------------------------- shared memory

// A chunk is 64 rows of 128 bytes with the 128-byte swizzle, a half of rope 64 rows of 64 bytes
// with the 64-byte swizzle, as TMA writes and tcgen05 reads them.
struct SharedMemory {
  alignas(1024) bf16 ring[kStages][kSlotChunks][kBlockK][kChunk];
  bf16 rope[kRopeSlots][kRopeHalves][kBlockK][kRopeChunk];
  uint4 exchange[4][kLanes];  // from thread t ^ 64 to thread t
  float maxima[kLanes];
  // Those that the tensor warp waits for count in the first block of a pair, the others in each.
  unsigned long long full[kStages];                // 4 gather warps and the bytes of kCtas blocks
  unsigned long long empty[kStages][kSlotHalves];  // 1 commit: half of the rows have been read
  unsigned long long s_full;                       // 1 commit, a tile: S stands
  unsigned long long s_free;                       // 4 warps a block, a tile: S has been read
  unsigned long long p_full;   // 4 warps a block, a tile: P stands, O is rescaled or read
  unsigned long long pv_done;  // 1 commit, a tile: P has been read, O stands
  unsigned tensor_memory;
};

enum Barrier : unsigned {  // 0 is __syncthreads
  kEvenWarps = 1,          // 2 kWarp: softmax warps 0 and 2, whose lanes are of the same heads
  kOddWarps = 2,           // 2 kWarp: 1 and 3
};

// ---------------------------------------------------------------- launch facts

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm100_fwd, sizeof(SharedMemory));

// ---------------------------------------------------------------- pieces of the kernel

/// This block's number in its pair.
__device__ __forceinline__ unsigned rank_in_pair() { return kCtas == 1 ? 0 : cluster_ctarank(); }

/// Waits at a barrier at which both blocks of a pair arrive.
__device__ __forceinline__ void wait_for_pair(const unsigned long long& barrier, int parity) {
  if (kCtas == 1) return wait(barrier, parity);
  while (
      !mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(shared_address(&barrier), parity)) {
  }
}

/// One arrival of the whole warp at the barrier of the first block.
__device__ __forceinline__ void arrive_for_pair(unsigned long long& barrier, int lane) {
  __syncwarp();
  if (lane != 0) return;
  if (kCtas == 1) {
    mbarrier_arrive_shared_cta_b64(shared_address(&barrier));
  } else {
    mbarrier_arrive_release_cluster_shared_cluster_b64(
        mapa_shared_cluster_u32(shared_address(&barrier), 0));
  }
}

/// All threads of the item's blocks meet; what they did to tensor memory is in order.
__device__ __forceinline__ void sync_all() {
  tcgen05_fence_before_thread_sync();
  if (kCtas == 1) {
    __syncthreads();
  } else {
    barrier_cluster_arrive_release_aligned();
    barrier_cluster_wait_acquire_aligned();
  }
  tcgen05_fence_after_thread_sync();
}

/// What the kernel was called with, but for the maps and the results.
struct Arguments {
  const int* indices;
  const int* topk_length;  // null: every column may count
  long long indices_row_stride_elems;
  int s_q, h_q, s_kv, topk;

  __device__ __forceinline__ int head_blocks() const {
    return (h_q + kHeads * kCtas - 1) / (kHeads * kCtas);
  }
  __device__ __forceinline__ int items() const { return s_q * head_blocks(); }
  __device__ __forceinline__ int first_item() const { return blockIdx.x / kCtas; }
  __device__ __forceinline__ int item_step() const { return gridDim.x / kCtas; }
  __device__ __forceinline__ int token(int item) const { return item / head_blocks(); }
  /// Of this block.
  __device__ __forceinline__ int first_head(int item) const {
    return (item % head_blocks() * kCtas + rank_in_pair()) * kHeads;
  }
  __device__ __forceinline__ const int* index_row(int item) const {
    return indices + token(item) * indices_row_stride_elems;
  }
};

/// A tile: lane l has the indices of its rows l and l + 32; which of them are listed.
struct Tile {
  int low = -1, high = -1;
  unsigned listed_low = 0, listed_high = 0;
};

/// The tiles of the items of this block, in order. Every warp walks by itself, over the same
/// indices, so that all count the same tiles. Loads run ahead: by an item for its end, by a tile
/// for indices.
struct Walk {
  const Arguments& a;
  int lane;
  int end[kScanLoads] = {};  // of the item that begins next: its length, or its last columns
  const int* row;
  int length, column;
  int low, high;

  __device__ __forceinline__ Walk(const Arguments& arguments, int lane_number)
      : a(arguments), lane(lane_number) {
    fetch_end(a.first_item());
  }

  __device__ __forceinline__ void load_round(const int* of, int first) {
#pragma unroll
    for (int j = 0; j < kScanLoads; ++j) {
      end[j] = load_index(of, first + j * kWarp + lane, a.topk);
    }
  }

  __device__ __forceinline__ void fetch_end(int item) {
    if (item >= a.items()) return;
    if (a.topk_length != nullptr) {
      end[0] = __ldg(a.topk_length + a.token(item));
    } else if (kSkip) {
      load_round(a.index_row(item), a.topk - kScanWidth);
    }
  }

  /// Last valid column + 1. Only rows padded further than kScanWidth load again.
  __device__ __forceinline__ int last_valid_column_end() {
#pragma unroll 1
    for (int first = a.topk - kScanWidth;; first -= kScanWidth) {
      int found = 0;
#pragma unroll
      for (int j = 0; j < kScanLoads; ++j) {
        if (is_valid(end[j], a.s_kv)) found = first + j * kWarp + lane + 1;
      }
      found = redux_sync_max_s32(found);
      if (found > 0 || first <= 0) return found;
      load_round(row, first - kScanWidth);
    }
  }

  __device__ __forceinline__ void fetch() {
    low = load_index(row, column + lane, length);
    high = load_index(row, column + kWarp + lane, length);
  }

  __device__ __forceinline__ void begin(int item) {
    row = a.index_row(item);
    int found = a.topk;
    if (a.topk_length != nullptr) {
      found = min(max(end[0], 0), a.topk);
    } else if (kSkip) {
      found = last_valid_column_end();
    }
    length = a.s_kv > 0 ? uniform(found) : 0;
    column = 0;
    fetch();
    fetch_end(item + a.item_step());
  }

  /// The next tile of the item; false when there is none.
  __device__ __forceinline__ bool next(Tile& tile) {
#pragma unroll 1
    while (column < length) {
      tile.low = low, tile.high = high;
      column += kBlockK;
      fetch();
      tile.listed_low = __ballot_sync(0xffffffff, is_valid(tile.low, a.s_kv));
      tile.listed_high = __ballot_sync(0xffffffff, is_valid(tile.high, a.s_kv));
      if (!kSkip || (tile.listed_low | tile.listed_high) != 0) return true;
    }
    return false;
  }
};

/// A position in the ring.
struct Slot {
  int index = 0;
  int parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
};

/// The columns, in chunks, that a block has in a chunk of its slots. Products j of P V take the
/// chunks 4 j on: the lower lanes two of them, and the upper the next two.
__device__ __forceinline__ int column_chunk(int slot_chunk, unsigned rank) {
  return kCtas == 1 ? slot_chunk : slot_chunk / 2 * 4 + 2 * rank + slot_chunk % 2;
}

/// The columns of Q, in chunks, that meet pair `pair` of K: half 0 in the lower lanes.
__device__ __forceinline__ int q_column_chunk(int pair, int half) {
  return kCtas == 1 ? 2 * pair + half : column_chunk(pair, half);
}

// ---------------------------------------------------------------- gather

struct Maps {
  const TensorMap& q;  // boxes of 16 heads and a chunk
  const TensorMap& q_rope;
  const TensorMap& kv;  // boxes of a row and a chunk
  const TensorMap& kv_rope;
};

/// Where this block's copies for a slot are counted: in the first block of a pair.
__device__ __forceinline__ unsigned full_barrier(SharedMemory& smem, int slot) {
  constexpr unsigned kFirstOfPair = 0xfeffffff;
  const unsigned own = shared_address(&smem.full[slot]);
  return kCtas == 1 ? own : own & kFirstOfPair;
}

/// A gather warp's arrival, with the bytes that it copies in each block of the pair.
__device__ __forceinline__ void expect(SharedMemory& smem, int slot, unsigned block_bytes) {
  if (rank_in_pair() == 0) {
    mbarrier_arrive_expect_tx_shared_cta_b64(shared_address(&smem.full[slot]),
                                             kCtas * block_bytes / kGatherWarps);
  }
}

/// A quarter of this block's heads of Q: the part that slot `part` of kCtas takes.
__device__ __forceinline__ void load_q(SharedMemory& smem, const Maps& maps, int slot, int part,
                                       int warp, int first_head, int token) {
  const unsigned full = full_barrier(smem, slot);
  const int head = warp * kWarpRows;
#pragma unroll
  for (int c = 0; c < kSlotChunks; ++c) {
    const int column = q_column_chunk(part * kSlotPairs + c / 2, c % 2) * kChunk;
    cp_async_bulk_tensor_3d_shared_cluster_global_tile<kCtas>(
        shared_address(&smem.ring[slot][c][head][0]), maps.q, column, first_head + head, token,
        full);
  }
  if (!kHasRope || part > 0) return;
#pragma unroll
  for (int half = 0; half < kRopeHalves; ++half) {
    cp_async_bulk_tensor_3d_shared_cluster_global_tile<kCtas>(
        shared_address(&smem.rope[slot % kRopeSlots][half][head][0]), maps.q_rope,
        kDV + half * kRopeChunk, first_head + head, token, full);
  }
}

/// Four rows of a tile: this block's columns of them.
__device__ __forceinline__ void gather(SharedMemory& smem, const Maps& maps, int slot, int line,
                                       const int (&rows)[kRows], unsigned rank) {
  const unsigned full = full_barrier(smem, slot);
#pragma unroll
  for (int c = 0; c < kSlotChunks; ++c) {
    cp_async_bulk_tensor_2d_shared_cluster_global_tile_gather4<kCtas>(
        shared_address(&smem.ring[slot][c][line][0]), maps.kv, column_chunk(c, rank) * kChunk, rows,
        full);
  }
  if (!kHasRope) return;
#pragma unroll
  for (int i = 0; i < kRopeHalves / kCtas; ++i) {
    const int half = kCtas == 1 ? i : rank;
    cp_async_bulk_tensor_2d_shared_cluster_global_tile_gather4<kCtas>(
        shared_address(&smem.rope[slot % kRopeSlots][i][line][0]), maps.kv_rope,
        kDV + half * kRopeChunk, rows, full);
  }
}

// ---------------------------------------------------------------- products

/// One product by kCtas blocks, `columns` of b, of which each block has its share.
template <int kColumns, bool kTransposed>
__device__ __forceinline__ void mma(unsigned d, unsigned a, unsigned long long b, bool accumulate) {
  if (kCtas == 1) {
    constexpr unsigned kInstruction =
        tcgen05_instruction_descriptor_bf16_f32(kHeads, kColumns, kTransposed);
    tcgen05_mma_ws_cta_group_1_kind_f16(d, a, b, kInstruction, accumulate);
  } else {
    constexpr unsigned kInstruction =
        tcgen05_instruction_descriptor_bf16_f32(2 * kHeads, kColumns, kTransposed);
    tcgen05_mma_cta_group_2_kind_f16(d, a, b, kInstruction, accumulate);
  }
}

/// Q from slot `part` of kCtas to tensor memory.
__device__ __forceinline__ void copy_q(SharedMemory& smem, unsigned tensor, int slot, int part) {
  const unsigned long long rows = tcgen05_matrix_descriptor_128b(
      shared_address(&smem.ring[slot][0][0][0]), kUnused, 8 * kLineBytes);
#pragma unroll
  for (int pair = 0; pair < kSlotPairs; ++pair) {
#pragma unroll
    for (int k = 0; k < kChunk / kMmaK; ++k) {
      const int column = (part * kSlotPairs + pair) * (kChunk / 2) + k * kMmaKWords;
      tcgen05_cp_128x256b<kCtas>(tensor + kTensorQ + column,
                                 rows + (pair * 2 * kChunkBytes + k * kMmaKBytes) / 16);
    }
  }
  if (!kHasRope || part > 0) return;
  const unsigned long long rope = tcgen05_matrix_descriptor_64b(
      shared_address(&smem.rope[slot % kRopeSlots][0][0][0]), 8 * kRopeLineBytes);
#pragma unroll
  for (int k = 0; k < kRopeChunk / kMmaK; ++k) {
    tcgen05_cp_128x256b<kCtas>(tensor + kTensorQ + kPairs * (kChunk / 2) + k * kMmaKWords,
                               rope + k * kMmaKBytes / 16);
  }
}

/// S = Q K^T. The 128 columns of the product are the 64 tokens twice: with the columns of K that
/// belong to the lower lanes, and with those of the upper.
__device__ __forceinline__ void start_qk(SharedMemory& smem, unsigned tensor, int slot) {
  constexpr int kPairBytes = 2 / kCtas * kChunkBytes;
  const unsigned long long k_chunks = tcgen05_matrix_descriptor_128b(
      shared_address(&smem.ring[slot][0][0][0]), kUnused, 8 * kLineBytes);
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
    for (int k = 0; k < kChunk / kMmaK; ++k) {
      mma<2 * kBlockK, false>(tensor + kTensorS,
                              tensor + kTensorQ + pair * (kChunk / 2) + k * kMmaKWords,
                              k_chunks + (pair * kPairBytes + k * kMmaKBytes) / 16, pair + k > 0);
    }
  }
  if (!kHasRope) return;
  const unsigned long long rope = tcgen05_matrix_descriptor_64b(
      shared_address(&smem.rope[slot % kRopeSlots][0][0][0]), 8 * kRopeLineBytes);
#pragma unroll
  for (int k = 0; k < kRopeChunk / kMmaK; ++k) {
    mma<2 * kBlockK, false>(tensor + kTensorS,
                            tensor + kTensorQ + kPairs * (kChunk / 2) + k * kMmaKWords,
                            rope + k * kMmaKBytes / 16, true);
  }
}

/// O += P V, or = for the first tile of an item: two products of 256 columns. Frees the slot.
__device__ __forceinline__ void start_pv(SharedMemory& smem, unsigned tensor, int slot,
                                         bool first) {
  constexpr int kHalfSteps = kBlockK / kMmaK / kSlotHalves;
  const unsigned long long v_chunks = tcgen05_matrix_descriptor_128b(
      shared_address(&smem.ring[slot][0][0][0]), kChunkBytes, 8 * kLineBytes);
#pragma unroll
  for (int k = 0; k < kBlockK / kMmaK; ++k) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      mma<256, true>(tensor + kTensorO + j * kTensorOHalf, tensor + kTensorP + k * kMmaKWords,
                     v_chunks + (j * (kSlotBytes / 2) + k * kMmaK * kLineBytes) / 16,
                     !first || k > 0);
    }
    // The gather warps of these rows need not wait for the others'.
    if ((k + 1) % kHalfSteps == 0) {
      tcgen05_commit_mbarrier_arrive_one_b64<kCtas>(
          shared_address(&smem.empty[slot][k / kHalfSteps]));
    }
  }
}

// ---------------------------------------------------------------- softmax

/// Online softmax of half of the tokens of a head; thread t ^ 64 has the other half, and the same
/// maximum and reference. Weights are exp(x - ref): the reference follows the maximum only when it
/// lags by more than kMaxLag, since every move costs a pass over O.
struct Softmax {
  float max = masked();  // masked() while no score above it was seen, and so is ref
  float ref = masked();
  float sum = 0.0f;     // of this thread's tokens
  float poison = 0.0f;  // NaN once a listed score of this thread was not finite
};

/// The softmax threads of one pair of warps meet.
__device__ __forceinline__ void sync_halves(int warp) {
  bar_sync(warp % 2 == 0 ? kEvenWarps : kOddWarps, 2 * kWarp);
}

/// x += what thread t ^ 64 has in its `theirs`, and the other way round.
__device__ __forceinline__ void add_halves(SharedMemory& smem, float (&x)[kLoad],
                                           const unsigned (&theirs)[kLoad], int thread, int warp) {
#pragma unroll
  for (int round = 0; round < 2; ++round) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int e = round * 16 + j * 4;
      smem.exchange[j][thread ^ 64] =
          make_uint4(theirs[e], theirs[e + 1], theirs[e + 2], theirs[e + 3]);
    }
    sync_halves(warp);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int e = round * 16 + j * 4;
      const uint4 got = smem.exchange[j][thread];
      x[e] += __uint_as_float(got.x), x[e + 1] += __uint_as_float(got.y);
      x[e + 2] += __uint_as_float(got.z), x[e + 3] += __uint_as_float(got.w);
    }
    if (round == 0) sync_halves(warp);
  }
}

/// Scores to weights, packed in pairs, and the factor of O.
__device__ __forceinline__ float softmax_tile(SharedMemory& smem, Softmax& head, float (&x)[kLoad],
                                              unsigned (&p)[kLoad / 2], unsigned listed,
                                              float sm_scale, int thread, int warp) {
  constexpr float kMaxLag = 5.5f;  // weights stay below e^5.5, far from any limit of bf16
  float top = head.max;
#pragma unroll
  for (int e = 0; e < kLoad; ++e) {
    x[e] = (listed >> e & 1) != 0 ? x[e] * sm_scale : masked();
    top = max_NaN_f32(top, x[e]);
    head.poison = __fmaf_rn(x[e], 0.0f, head.poison);
  }
  smem.maxima[thread] = top;
  sync_halves(warp);
  top = max_NaN_f32(top, smem.maxima[thread ^ 64]);

  // While nothing was seen 0 is subtracted, so that masked columns have the weight 0.
  const float ref = top - head.ref <= kMaxLag ? head.ref : top;
  const float less = ref == masked() ? 0.0f : ref;
  const float alpha = ref == head.ref ? 1.0f : natural_exp(head.ref - less);
  const float subtracted = -less * log2_e();
  float tile_sum = 0.0f;
#pragma unroll
  for (int e = 0; e < kLoad; e += 2) {
    const float p0 = ex2_approx_ftz_f32(__fmaf_rn(x[e], log2_e(), subtracted));
    const float p1 = ex2_approx_ftz_f32(__fmaf_rn(x[e + 1], log2_e(), subtracted));
    tile_sum += p0 + p1;
    p[e / 2] = cvt_rn_bf16x2_f32(p1, p0);
  }
  head.max = top, head.ref = ref, head.sum = head.sum * alpha + tile_sum;
  return alpha;
}

/// P of all tokens to both lanes of the head.
__device__ __forceinline__ void store_p(SharedMemory& smem, unsigned lanes,
                                        const unsigned (&p)[kLoad / 2], int thread, int warp) {
  const int half = warp / 2;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    smem.exchange[j][thread ^ 64] = make_uint4(p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]);
  }
  tcgen05_st_sync_aligned_32x32b_x16_b32(lanes + kTensorP + half * (kLoad / 2), p);
  sync_halves(warp);
  unsigned others[kLoad / 2];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 got = smem.exchange[j][thread];
    others[4 * j] = got.x, others[4 * j + 1] = got.y;
    others[4 * j + 2] = got.z, others[4 * j + 3] = got.w;
  }
  tcgen05_st_sync_aligned_32x32b_x16_b32(lanes + kTensorP + (1 - half) * (kLoad / 2), others);
}

/// O *= alpha.
__device__ __forceinline__ void rescale(unsigned lanes, float alpha) {
#pragma unroll 1
  for (int column = 0; column < 2 * kTensorOHalf; column += kLoad) {
    unsigned o[kLoad];
    tcgen05_ld_sync_aligned_32x32b_x32_b32(o, lanes + kTensorO + column);
    tcgen05_wait_ld_sync_aligned();
#pragma unroll
    for (int e = 0; e < kLoad; ++e) o[e] = __float_as_uint(__uint_as_float(o[e]) * alpha);
    tcgen05_st_sync_aligned_32x32b_x32_b32(lanes + kTensorO + column, o);
  }
}

// ---------------------------------------------------------------- results

struct Results {
  const float* attn_sink;  // null: no sink
  bf16* out;
  float* max_logits;
  float* lse;
};

/// The results of an item, O in tensor memory.
__device__ __forceinline__ void finish(SharedMemory& smem, const Arguments& a, const Results& to,
                                       Softmax head, int item, unsigned lanes, int thread,
                                       int warp) {
  // Sum and poison over both halves of the tokens; the exchange is at rest between two tiles.
  smem.exchange[0][thread ^ 64] =
      make_uint4(__float_as_uint(head.sum), __float_as_uint(head.poison), 0, 0);
  sync_halves(warp);
  const uint4 other = smem.exchange[0][thread];
  sync_halves(warp);
  head.sum += __uint_as_float(other.x), head.poison += __uint_as_float(other.y);

  const int row = a.first_head(item) + thread % kHeads, half = warp / 2;
  const bool exists = row < a.h_q, empty = head.sum == 0.0f && head.poison == 0.0f;
  const long long result = static_cast<long long>(a.token(item)) * a.h_q + row;
  if (exists && half == 0) {
    const float log_sum = head.max == infinity() ? infinity() : head.ref + logf(head.sum);
    to.max_logits[result] = head.max == masked() ? -infinity() : head.max;
    to.lse[result] = empty ? infinity() : log_sum;
  }
  const float sink = to.attn_sink != nullptr && exists ? __ldg(to.attn_sink + row) : -infinity();
  const float scale = empty ? 0.0f : output_scale(head.ref, head.sum, sink) + head.poison;

  // Columns 128 j on of this lane of O are the chunks 4 j + 2 half and the next of out.
#pragma unroll 1
  for (int column = 0; column < 2 * kTensorOHalf; column += kLoad) {
    unsigned o[kLoad];
    tcgen05_ld_sync_aligned_32x32b_x32_b32(o, lanes + kTensorO + column);
    tcgen05_wait_ld_sync_aligned();
    if (!exists) continue;
    uint4* out = reinterpret_cast<uint4*>(to.out + result * kDV +
                                          column / kTensorOHalf * (2 * kTensorOHalf) +
                                          half * kTensorOHalf + column % kTensorOHalf);
#pragma unroll
    for (int v = 0; v < kLoad / 8; ++v) {
      unsigned packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
        const int e = 8 * v + 2 * i;
        packed[i] = cvt_rn_bf16x2_f32(__fmaf_rn(__uint_as_float(o[e + 1]), scale, 0.0f),
                                      __fmaf_rn(__uint_as_float(o[e]), scale, 0.0f));
      }
      out[v] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

/// The results of an item without tiles.
__device__ __forceinline__ void finish_empty(const Arguments& a, const Results& to, int item,
                                             int thread) {
  const int row = a.first_head(item) + thread % kHeads, half = thread / kHeads;
  if (row >= a.h_q) return;
  const long long result = static_cast<long long>(a.token(item)) * a.h_q + row;
  if (half == 0) to.max_logits[result] = -infinity(), to.lse[result] = infinity();
  uint4* out = reinterpret_cast<uint4*>(to.out + result * kDV + half * (kDV / 2));
#pragma unroll 1
  for (int v = 0; v < kDV / 16; ++v) out[v] = make_uint4(0, 0, 0, 0);
}

// ---------------------------------------------------------------- kernel

// Grid: x = kCtas blocks for as many items as run at once; those of number n take the items n,
// n + grid / kCtas, ... Item i is token i / H and the (i % H)-th 64 kCtas heads, H such a token.
extern "C" __global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kThreads, 1)
    sparse_prefill_sm100_fwd(const __grid_constant__ TensorMap q_map,
                             const __grid_constant__ TensorMap q_rope_map,
                             const __grid_constant__ TensorMap kv_map,
                             const __grid_constant__ TensorMap kv_rope_map,
                             const int* __restrict__ indices, const float* __restrict__ attn_sink,
                             const int* __restrict__ topk_length, bf16* __restrict__ out,
                             float* __restrict__ max_logits, float* __restrict__ lse,
                             long long indices_row_stride_elems, int s_q, int h_q, int s_kv,
                             int topk, float sm_scale) {
  extern __shared__ __align__(1024) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const Arguments a = {indices, topk_length, indices_row_stride_elems, s_q, h_q, s_kv, topk};
  const int thread = threadIdx.x, lane = thread % kWarp, warp = uniform(thread / kWarp);
  const int items = a.items(), step = a.item_step();

  // The end of the first row flies while the rest of the prologue runs.
  Walk walk(a, lane);
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kGatherWarps);
      for (int h = 0; h < kSlotHalves; ++h) {
        mbarrier_init_shared_cta_b64(shared_address(&smem.empty[s][h]), 1);
      }
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.s_full), 1);
    mbarrier_init_shared_cta_b64(shared_address(&smem.s_free), kSoftmaxWarps * kCtas);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_full), kSoftmaxWarps * kCtas);
    mbarrier_init_shared_cta_b64(shared_address(&smem.pv_done), 1);
    fence_mbarrier_init_release_cluster();
  }
  if (thread == kWarp && s_kv > 0) {
    prefetch_tensormap(q_map);
    prefetch_tensormap(kv_map);
    if (kHasRope) prefetch_tensormap(q_rope_map), prefetch_tensormap(kv_rope_map);
  }
  if (warp == kTensorWarp) {
    tcgen05_alloc_sync_aligned_shared_cta_b32<kCtas>(shared_address(&smem.tensor_memory),
                                                     kTensorColumns);
    tcgen05_relinquish_alloc_permit_sync_aligned<kCtas>();
  }
  sync_all();
  const unsigned tensor = smem.tensor_memory;

  if (warp > kTensorWarp) {
    // -------------------------------------------------------------- gather warps
    const Maps maps = {q_map, q_rope_map, kv_map, kv_rope_map};
    const int quarter = warp - kTensorWarp - 1, half = quarter / (kGatherWarps / kSlotHalves);
    const unsigned rank = rank_in_pair();
    const bool elected = elect_sync();
    Slot slot;
#pragma unroll 1
    for (int item = a.first_item(); item < items; item += step) {
      walk.begin(item);
      Tile tile;
      bool first = true;
#pragma unroll 1
      while (walk.next(tile)) {
        if (first) {
#pragma unroll 1
          for (int part = 0; part < kCtas; ++part) {
            wait(smem.empty[slot.index][half], slot.parity ^ 1);
            if (elected) {
              expect(smem, slot.index, kQBytes + (part == 0 ? kQRopeBytes : 0));
              load_q(smem, maps, slot.index, part, quarter, a.first_head(item), a.token(item));
            }
            slot.advance();
          }
          first = false;
        }
        wait(smem.empty[slot.index][half], slot.parity ^ 1);
        const int mine = half == 0 ? tile.low : tile.high;
        // No row is -1 to -4: four zero lines, of rows that differ since equal ones are slow.
        const int safe = is_valid(mine, s_kv) ? mine : -1 - lane % kRows;
        if (elected) expect(smem, slot.index, kTileBytes);
#pragma unroll
        for (int r = 0; r < kWarpRows; r += kRows) {
          const int line = quarter * kWarpRows + r;
          int rows[kRows];
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            rows[i] = __shfl_sync(0xffffffff, safe, (line + i) % kWarp);
          }
          if (elected) gather(smem, maps, slot.index, line, rows, rank);
        }
        slot.advance();
      }
    }
  } else if (warp == kTensorWarp) {
    // -------------------------------------------------------------- tensor warp
    const bool elected = elect_sync();
    if (rank_in_pair() == 0) {
      Slot slot;
      int tile_parity = 0;  // of the tile whose Q K^T is started
      int pending = -1;     // slot of the tile before it, whose P V is not started yet
      bool pending_first = false;
      const auto finish_pending = [&] {
        wait_for_pair(smem.p_full, tile_parity ^ 1);
        tcgen05_fence_after_thread_sync();
        if (elected) {
          start_pv(smem, tensor, pending, pending_first);
          tcgen05_commit_mbarrier_arrive_one_b64<kCtas>(shared_address(&smem.pv_done));
        }
      };
#pragma unroll 1
      for (int item = a.first_item(); item < items; item += step) {
        walk.begin(item);
        Tile tile;
        bool first = true;
#pragma unroll 1
        while (walk.next(tile)) {
          // S has been read; with it every product with the Q before is done.
          wait_for_pair(smem.s_free, tile_parity ^ 1);
          tcgen05_fence_after_thread_sync();
          if (first) {
#pragma unroll 1
            for (int part = 0; part < kCtas; ++part) {
              wait(smem.full[slot.index], slot.parity);
              if (elected) {
                copy_q(smem, tensor, slot.index, part);
                for (int h = 0; h < kSlotHalves; ++h) {
                  tcgen05_commit_mbarrier_arrive_one_b64<kCtas>(
                      shared_address(&smem.empty[slot.index][h]));
                }
              }
              slot.advance();
            }
          }
          wait(smem.full[slot.index], slot.parity);
          if (elected) {
            start_qk(smem, tensor, slot.index);
            tcgen05_commit_mbarrier_arrive_one_b64<kCtas>(shared_address(&smem.s_full));
          }
          if (pending >= 0) finish_pending();
          pending = slot.index, pending_first = first;
          first = false;
          slot.advance();
          tile_parity ^= 1;
        }
      }
      if (pending >= 0) finish_pending();
    }
  } else {
    // -------------------------------------------------------------- softmax warps
    const Results to = {attn_sink, out, max_logits, lse};
    const unsigned lanes = tensor + (warp * kWarp << 16);
    const int half = warp / 2;
    int tile_parity = 0;
    Softmax head, done;
    int done_item = -1;  // whose O is in tensor memory, not read yet
#pragma unroll 1
    for (int item = a.first_item(); item < items; item += step) {
      walk.begin(item);
      head = Softmax();
      Tile tile;
      bool first = true;
#pragma unroll 1
      while (walk.next(tile)) {
        wait(smem.s_full, tile_parity);
        tcgen05_fence_after_thread_sync();
        unsigned own[kLoad], theirs[kLoad];
        tcgen05_ld_sync_aligned_32x32b_x32_b32(own, lanes + kTensorS + half * kLoad);
        tcgen05_ld_sync_aligned_32x32b_x32_b32(theirs, lanes + kTensorS + (1 - half) * kLoad);
        tcgen05_wait_ld_sync_aligned();
        tcgen05_fence_before_thread_sync();
        arrive_for_pair(smem.s_free, lane);

        float x[kLoad];
#pragma unroll
        for (int e = 0; e < kLoad; ++e) x[e] = __uint_as_float(own[e]);
        add_halves(smem, x, theirs, thread, warp);
        unsigned p[kLoad / 2];
        const float alpha =
            softmax_tile(smem, head, x, p, half == 0 ? tile.listed_low : tile.listed_high, sm_scale,
                         thread, warp);

        // P V of the tile before is done: O and P are this warp's to change.
        wait(smem.pv_done, tile_parity ^ 1);
        tcgen05_fence_after_thread_sync();
        if (first) {
          if (done_item >= 0) finish(smem, a, to, done, done_item, lanes, thread, warp);
        } else if (__any_sync(0xffffffff, alpha != 1.0f)) {  // a factor of 1 changes no bit
          rescale(lanes, alpha);
        }
        store_p(smem, lanes, p, thread, warp);
        tcgen05_wait_st_sync_aligned();
        tcgen05_fence_before_thread_sync();
        arrive_for_pair(smem.p_full, lane);
        sync_halves(warp);  // the exchange has been read
        first = false;
        tile_parity ^= 1;
      }
      if (first) {
        finish_empty(a, to, item, thread);
      } else {
        done = head, done_item = item;
      }
    }
    if (done_item >= 0) {
      wait(smem.pv_done, tile_parity ^ 1);
      tcgen05_fence_after_thread_sync();
      finish(smem, a, to, done, done_item, lanes, thread, warp);
    }
  }

  sync_all();
  if (warp == kTensorWarp) tcgen05_dealloc_sync_aligned_b32<kCtas>(tensor, kTensorColumns);
}

}  // namespace sparsekit::sparse_prefill_sm100
