// Sparse attention over two pools of fp8 rows with scales, one query a row, on Hopper (sm_90a).
//
// As sparse_attn_paged_decode_sm90, whose parts and clusters it shares, and with the same bits as
// that over the rows as bf16: what differs is how rows come to shared memory. Entries are
//   spread  a cluster has a row and some heads, each block the part of its rank
//   long    as spread, for more parts than blocks: each block folds its own first

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/sparse_attn_paged_decode/clusters.cuh"
#include "sparsekit/sparse_attn_paged_decode/paged_launch.cuh"

namespace sparsekit::sparse_attn_paged_decode {

// ---------------------------------------------------------------- launch facts

using Wide16 = SharedOfOne<16, kMostColumns>;
using Narrow16 = SharedOfOne<16, kNarrowColumns>;
using Wide32 = SharedOfOne<32, kMostColumns>;
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread16, sizeof(Wide16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread16_narrow, sizeof(Narrow16));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_spread32, sizeof(Wide32));
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_decode_long16, sizeof(Wide16));

// ---------------------------------------------------------------- kernels

// Grid: x = rows, times the blocks of a cluster; y = blocks of heads.
// spread: at most kMostParts parts, of 16 heads where they have more than kNarrowColumns columns;
// narrow: where they have not; long: parts of kMostColumns columns.
extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_spread16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kMostColumns, kNarrowColumns + 1>), kMostParts, 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 3)
    sparse_attn_paged_fp8_decode_spread16_narrow(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<16, kNarrowColumns, kMmaK>), kMostParts, 16);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_spread32(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_one<32, kMostColumns, kMmaK>), kMostParts, 32);
}

extern "C" __global__ void __cluster_dims__(kMostParts, 1, 1) __launch_bounds__(kThreads, 2)
    sparse_attn_paged_fp8_decode_long16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_some<16>), kMostParts, 16);
}

}  // namespace sparsekit::sparse_attn_paged_decode
