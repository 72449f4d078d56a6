// Sparse attention over two pools of fp8 rows with scales, one query a row (sm_80 and later).
//
// The parts of a row of sparse_attn_paged_decode_sm90, all in one block and one after the other, with
// their arithmetic; rows come from pages as in sparse_attn_paged_fp8_decode_sm90.

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/sparse_attn_paged_decode/block.cuh"
#include "sparsekit/sparse_attn_paged_decode/paged_launch.cuh"
#include "sparsekit/sparse_attn_paged_decode/store.cuh"

namespace sparsekit::sparse_attn_paged_decode {

enum : int { kBlockHeads = 16 };
using Shared = SharedOfOne<kBlockHeads, kMostColumns>;
SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_attn_paged_fp8_serial16, sizeof(Shared));

template <int kHeads>
__device__ __forceinline__ void attend_row(const RowOf<PagedPool>& row, float scale, int first_head,
                                           int h, const Results& results) {
  auto& smem = shared_memory<Shared>();
  Part<kHeads> all;
  attend_parts<kMmaK>(smem, row, scale, first_head, h, 0, row.parts, all);
  store_block<kHeads>(smem, all, first_head, h, results);
}

// Grid: x = rows; y = blocks of heads.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_attn_paged_fp8_serial16(SPARSEKIT_ARGUMENTS) {
  SPARSEKIT_ATTEND((attend_row<kBlockHeads>), 1, kBlockHeads);
}

}  // namespace sparsekit::sparse_attn_paged_decode
