// What a block does with parts of a row whose rows come to its shared memory one part at a time.
#pragma once

#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/sparse_attn_paged_decode/out.cuh"

namespace sparsekit::sparse_attn_paged_decode {

// ---------------------------------------------------------------- shared memory

// kBuffers: parts whose rows are under way at once. kSums: sums over some of d that a score is the
// sum of.
template <int kHeads, int kColumns, int kBuffers, int kSums>
struct SharedMemory {
  union {
    alignas(kLineBytes) bf16 kv[kBuffers][kColumns][kD];
    alignas(kLineBytes) float out[kHeads][kOutRow];  // when all parts are done
  };
  union {
    alignas(kLineBytes) bf16 q[kHeads][kD];
    struct {  // when Q has been read
      alignas(kChunkBytes) float score[kSums][kHeads][kColumns + kPad];
      alignas(kChunkBytes) bf16 p[kPTerms][kHeads][kColumns + kPad];
    };
  };
  alignas(kChunkBytes) float4 end[kHeads];  // M, L, whether anything is listed
  float2 fold[kHeads];                      // a, b; in the end .x is the factor of O in out
  unsigned char valid[kBuffers][kColumns];
};

template <int kHeads, int kColumns>
using SharedOfOne = SharedMemory<kHeads, kColumns, 1, kHalves>;

// ---------------------------------------------------------------- barriers

enum Barrier : unsigned {  // 0 is __syncthreads
  kPartReady = 1,          // kThreads: the rows of a part stand, the part before it is done
};

/// Scores and weights of a part whose rows stand; then its O is part of P V. kLeast: no part has
/// fewer columns.
template <int kHeads, int kLeast, int kColumns, class Shared, class Q>
__device__ __forceinline__ void multiply_part(Shared& smem, const Q& q,
                                              const bf16 (&kv)[kColumns][kD],
                                              const unsigned char (&valid)[kColumns], float scale,
                                              int part_columns,
                                              Totals (&totals)[kHeads / kHeadsAtOnce],
                                              Out<kHeads>& part) {
  constexpr int kGroupColumns = Q::kGroups * kMmaN;
  constexpr int kMost = (kColumns + kGroupColumns - 1) / kGroupColumns, kSome = (kMost + 1) / 2;
  if (kLeast <= kGroupColumns && part_columns <= kGroupColumns) {
    q.template multiply<1>(kv, smem.score, part_columns);
  } else if (kLeast <= kSome * kGroupColumns && part_columns <= kSome * kGroupColumns) {
    q.template multiply<kSome>(kv, smem.score, part_columns);
  } else {
    q.template multiply<kMost>(kv, smem.score, part_columns);
  }
  __syncthreads();
  weigh<kHeads>(smem, valid, scale, part_columns, totals);
  __syncthreads();
  multiply_p(smem.p, kv, part_columns, part);
}

/// The parts [first, end) of a row, one after the other, folded. kLeast: no part has fewer columns.
template <int kLeast, int kHeads, int kColumns, class AnyPool>
__device__ __forceinline__ void attend_parts(SharedOfOne<kHeads, kColumns>& smem,
                                             const RowOf<AnyPool>& row, float scale, int first_head,
                                             int h, int first, int end, Part<kHeads>& own) {
#pragma unroll 1
  for (int part = first; part < end && part * row.part_columns < row.live; ++part) {
    const int index = part_index(row, part);
    __syncthreads();  // the part before has been read
    load_q(smem.q, row, first_head, h);
    const bool listed = gather(smem.kv[0], smem.valid[0], row, part, index);
    cp_async_wait_group<0>();
    if (!bar_red_or_pred(kPartReady, kThreads, listed)) continue;
    own.any = true;
    const SharedQ<kHeads> shared_q = {smem.q};
    Out<kHeads> of_part;
    multiply_part<kHeads, kLeast>(smem, shared_q, smem.kv[0], smem.valid[0], scale,
                                  row.part_columns, own.totals, of_part);
    fold_part<false>(own.o, of_part, smem.fold);
  }
}

}  // namespace sparsekit::sparse_attn_paged_decode
