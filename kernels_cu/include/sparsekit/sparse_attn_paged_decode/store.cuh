// O of a block that had all parts of a row, to memory.
#pragma once

#include "sparsekit/sparse_attn_paged_decode/out.cuh"

namespace sparsekit::sparse_attn_paged_decode {

/// Writes the heads of a block that had all parts.
template <int kHeads, class Shared>
__device__ __forceinline__ void store_block(Shared& smem, const Part<kHeads>& all, int first_head,
                                            int h, const Results& results) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  __syncthreads();  // a and b of the last part have been read
#pragma unroll
  for (int round = 0; round < kHeads / kHeadsAtOnce; ++round) {
    const int head = first_head + head_of_lane(round);
    if (threadIdx.x % kLanesOfHead == 0 && head < h) {
      smem.fold[head_of_lane(round)].x =
          factor_of(all.totals[round], all.any, __ldg(results.attn_sink + head));
      if (results.lse != nullptr) results.lse[head] = lse_of(all.totals[round], all.any);
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int own = m * kMmaM + lane / 4 + 8 * i;
      if (first_head + own >= h) continue;
      const float factor = smem.fold[own].x;
      bf16* out = results.out + (first_head + own) * results.out_head_stride_elems +
                  warp * kWarpColumns + lane % 4 * 2;
#pragma unroll
      for (int tile = 0; tile < kOutTiles; ++tile) {
        *reinterpret_cast<unsigned*>(out + tile * kMmaN) =
            out_pair(all.o.of[m][tile][2 * i], all.o.of[m][tile][2 * i + 1], factor);
      }
    }
  }
}

}  // namespace sparsekit::sparse_attn_paged_decode
