// Sparse MLA prefill, portable: mma.sync, ldmatrix and cp.async only (sm_80 and later).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// Grid: a block for each token and kHeads of its heads; block.cuh says what it does. Rows come by
// cp.async, 16 bytes a thread.

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/shared_address.cuh"
#include "sparsekit/sparse_prefill/block.cuh"

namespace sparsekit::sparse_prefill {

/// Rows one below the other, each thread with pieces of 16 bytes of one.
struct CopiedRows {
  enum : int {
    kRowStrideBytes = kDQk * sizeof(bf16),
    kLineStrideBytes = kLineBytes,
    kNeedsRows = 0,
    kLaneAnew = 0,
    kGatherThreads = kBlockK * kLine / kChunk,      // one line of every row of a tile
    kGatherSplit = kValueThreads / kGatherThreads,  // lines of a row gathered at once
    kGatherLoads = (kLines + kGatherSplit - 1) / kGatherSplit,
  };

  using Tile = bf16[kBlockK][kDQk];

  const bf16* kv;
  long long kv_row_stride_elems;

  static __device__ __forceinline__ bf16* at(Tile& tile, int row, int line, int column) {
    return &tile[row][line * kLine + column];
  }

  /// Eight lanes take a line of a row.
  static __device__ __forceinline__ int row_of(int thread) { return thread / 8 % kBlockK; }

  __device__ __forceinline__ void gather(SharedMemory<CopiedRows>& smem, int stage_bytes,
                                         int thread, int index, int s_kv) const {
    const int row = row_of(thread), chunk = thread % 8;
    const int line = kGatherSplit > 1 ? thread / kGatherThreads : 0;
    const bool valid = is_valid(index, s_kv);
    const bf16* src =
        kv + (valid ? index : 0) * kv_row_stride_elems + line * kLine + chunk * kChunk;
    const unsigned dst = shared_address(at(smem.kv[0], row, 0, 0)) + stage_bytes +
                         line * kLineBytes + (chunk ^ row % 8) * kChunkBytes;
#pragma unroll
    for (int j = 0; j < kGatherLoads; ++j) {
      if (j * kGatherSplit + line < kLines) {
        cp_async_cg_shared_global_l2_128b_16(dst + j * kGatherSplit * kLineBytes,
                                             src + j * kGatherSplit * kLine,
                                             valid ? kChunkBytes : 0);
      }
    }
  }

  __device__ __forceinline__ void started() const { cp_async_commit_group(); }

  template <int kAfter>
  __device__ __forceinline__ void await(int, int) const {
    cp_async_wait_group<kAfter>();
  }
};

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_fwd, sizeof(SharedMemory<CopiedRows>));

// The head blocks of one token are adjacent and meet in L2.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_prefill_fwd(const bf16* __restrict__ q, const bf16* __restrict__ kv,
                       const int* __restrict__ indices, const float* __restrict__ attn_sink,
                       const int* __restrict__ topk_length, bf16* __restrict__ out,
                       float* __restrict__ max_logits, float* __restrict__ lse,
                       long long q_token_stride_elems, long long q_head_stride_elems,
                       long long kv_row_stride_elems, long long indices_row_stride_elems, int h_q,
                       int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kLineBytes) unsigned char dynamic_smem[];
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
  run_block(*reinterpret_cast<SharedMemory<CopiedRows>*>(dynamic_smem),
            CopiedRows{kv, kv_row_stride_elems}, a, threadIdx.x);
}

}  // namespace sparsekit::sparse_prefill
