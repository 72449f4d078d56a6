// Sparse MLA prefill with mma.sync and TMA gather4 (sm_120 and sm_121: 99 KB of shared memory).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// The block of the portable kernel, to which TMA brings the rows.

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/cp_async_bulk_tensor.cuh"
#include "sparsekit/ptx/fence.cuh"
#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/sparse_prefill/block.cuh"
#include "sparsekit/wait.cuh"

namespace sparsekit::sparse_prefill {

enum : int { kSwizzleBytes = 1024 };  // the pattern of the 128-byte swizzle: 8 lines

struct Barriers {
  unsigned long long full[kStages];  // kValueWarps arrivals and the bytes
};

/// A line of all rows, then the next line: four rows of a line a gather4, which swizzles them.
/// Each value warp loads every kParts-th line of four rows.
struct GatheredRows {
  enum : int {
    kRowStrideBytes = kLineBytes,
    kLineStrideBytes = kBlockK * kLineBytes,
    kNeedsRows = 1,
    kLaneAnew = 1,  // NVRTC 13.2 spills it else
    kRows = 4,  // of a gather4
    kGroups = kBlockK / kRows,
    kParts = kValueWarps / kGroups,
    kWarpLines = (kLines + kParts - 1) / kParts,
  };
  static_assert(kLineStrideBytes % kSwizzleBytes == 0, "row r is line r % 8 of the swizzle");

  using Tile = bf16[kLines][kBlockK][kLine];

  const TensorMap& kv_map;
  Barriers& barriers;

  static __device__ __forceinline__ bf16* at(Tile& tile, int row, int line, int column) {
    return &tile[line][row][column];
  }

  static __device__ __forceinline__ int row_of(int thread) {
    return thread / kWarp % kGroups * kRows + thread % kRows;
  }

  __device__ __forceinline__ void gather(SharedMemory<GatheredRows>& smem, int stage_bytes,
                                         int thread, int index, int s_kv) const {
    // No row is -1 to -4: four zero lines, of rows that differ since equal ones are slow.
    const int safe = is_valid(index, s_kv) ? index : -1 - thread % kRows;
    int rows[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = __shfl_sync(0xffffffff, safe, i);
    if (!elect_sync()) return;
    const int warp = thread / kWarp, part = warp / kGroups;
    const unsigned full = shared_address(&barriers.full[stage_bytes / kTileBytes]);
    const unsigned dst =
        shared_address(at(smem.kv[0], warp % kGroups * kRows, part, 0)) + stage_bytes;
    const int lines = (kLines - part + kParts - 1) / kParts;
    mbarrier_arrive_expect_tx_shared_cta_b64(full, lines * kRows * kLineBytes);
#pragma unroll
    for (int j = 0; j < kWarpLines; ++j) {
      if (j < lines) {
        cp_async_bulk_tensor_2d_shared_cta_global_tile_gather4(
            dst + j * kParts * kLineStrideBytes, kv_map, (part + j * kParts) * kLine, rows, full);
      }
    }
  }

  __device__ __forceinline__ void started() const {}

  template <int kAfter>
  __device__ __forceinline__ void await(int tile, int tiles) const {
    if (tile < tiles) wait(barriers.full[tile % kStages], tile / kStages % 2);
  }
};

struct BlockMemory {
  alignas(kSwizzleBytes) SharedMemory<GatheredRows> block;
  Barriers barriers;
};

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm120_fwd, sizeof(BlockMemory));

// Grid: x = s_q * ceil(h_q / kHeads); the head blocks of one token are adjacent and meet in L2.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_prefill_sm120_fwd(const __grid_constant__ TensorMap kv_map, const bf16* __restrict__ q,
                             const int* __restrict__ indices, const float* __restrict__ attn_sink,
                             const int* __restrict__ topk_length, bf16* __restrict__ out,
                             float* __restrict__ max_logits, float* __restrict__ lse,
                             long long q_token_stride_elems, long long q_head_stride_elems,
                             long long indices_row_stride_elems, int h_q, int s_kv, int topk,
                             float sm_scale) {
  extern __shared__ __align__(kSwizzleBytes) unsigned char dynamic_smem[];
  BlockMemory& smem = *reinterpret_cast<BlockMemory*>(dynamic_smem);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.barriers.full[s]), kValueWarps);
    }
    fence_mbarrier_init_release_cluster();
  }
  __syncthreads();
  const Arguments a = {q,
                       indices,
                       attn_sink,
                       topk_length,
                       out,
                       max_logits,
                       lse,
                       q_token_stride_elems,
                       q_head_stride_elems,
                       indices_row_stride_elems,
                       h_q,
                       s_kv,
                       topk,
                       sm_scale};
  run_block(smem.block, GatheredRows{kv_map, smem.barriers}, a, threadIdx.x);
}

}  // namespace sparsekit::sparse_prefill
