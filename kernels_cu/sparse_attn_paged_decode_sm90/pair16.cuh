// A row of at most twice kShortColumns columns by a cluster of two blocks, four parts and 16 heads
// each, all parts at once.
//
// Two warps have a part as far as its weights: each gathers half of d of its rows, multiplies it
// with that half of Q, and weighs half of the heads when they have exchanged the sums. Then O, as
// in block16.cuh: the first block folds its parts and hands O to the second, which has kept O of
// each of its parts, folds them onto it and stores the result.
#pragma once

#include "block16.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cluster.cuh"

namespace sparsekit::sparse_attn_paged_decode {

enum : int {
  kPairBlocks = 2,
  kPairParts = kMostParts / kPairBlocks,      // of a block
  kPairColumns = kShortColumns / kPairParts,  // of a part, at most
  kPairSteps = kPairColumns / kMmaK,          // of a part, and groups of its copies
  kPairScoreTiles = kPairColumns / kMmaN,
  kHalfSteps = kSteps / kHalves,
  kHanded = kOutTiles * 4 / 4,  // float4 of O that a thread hands over
};

static_assert(kPairParts * kHalves == kWarps, "two warps have a part");
static_assert(kPairSteps == 3, "a wait for each group of copies");

struct SharedOfPair {
  union {
    alignas(kLineBytes) bf16 kv[kShortColumns][kD];
    float4 handed[kHanded][kThreads];  // O of the first block's parts, when its rows have been read
  };
  union {
    alignas(kLineBytes) bf16 q[kShortHeads][kD];
    float2 sums[kWarps][kPairScoreTiles]
               [kWarp];  // for the other warp of a part, when Q has been read
  };
  alignas(kChunkBytes) bf16 p[kPTerms][kShortHeads][kShortColumns + kPad];
  alignas(kChunkBytes) float4 fold[kMostParts][kShortHeads];  // a, b, l and the new M of a part
  float4 end[kPairParts][kShortHeads];  // m, l, whether anything is listed, of this block's parts
};

enum PairBarrier : unsigned {
  kSumsReady = 1,  // and the next three, of a part each; 2 x kWarp: both warps' sums stand
};

/// Half of d of Q and of the rows.
struct HalfQ {
  unsigned a[kHalfSteps][4];

  __device__ __forceinline__ void load(const bf16 (&q)[kShortHeads][kD], int half) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step) {
      ldmatrix_sync_aligned_m8n8_x4_shared_b16(
          a[step], chunk_address(q, lane % 16, half * kHalfChunks + 2 * step + lane / 16));
    }
  }

  /// Of 16 columns from `first` on, the even steps of the half and the odd ones.
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kShortColumns][kD], int first, int half,
                                           float (&low)[4], float (&high)[4]) const {
    const int lane = threadIdx.x % kWarp;
    float s[2][kParities][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kHalfChunks; chunk += 2 * kParities) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        unsigned b[2 * kParities];
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b, chunk_address(kv, first + tile * kMmaN + lane % 8,
                             half * kHalfChunks + chunk + lane / 8));
#pragma unroll
        for (int parity = 0; parity < kParities; ++parity) {
          mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
              s[tile][parity], a[chunk / 2 + parity], b[2 * parity], b[2 * parity + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = s[0][0][i] + s[0][1][i];
      high[i] = s[1][0][i] + s[1][1][i];
    }
  }
};

/// Starts the copies of half of a part's rows, a group for each 16; which columns are listed.
__device__ __forceinline__ unsigned long long gather_half(bf16 (&kv)[kShortColumns][kD],
                                                          const Row& row, int part, int to,
                                                          int half, const int (&index)[2]) {
  const int column = part * row.part_columns + threadIdx.x % kWarp;
  const Source own[2] = {source_of(row, column, index[0]),
                         source_of(row, column + kWarp, index[1])};
  const unsigned listed[2] = {__ballot_sync(0xffffffff, own[0].listed),
                              __ballot_sync(0xffffffff, own[1].listed)};
#pragma unroll
  for (int step = 0; step < kPairSteps; ++step) {
    if ((listed[0] | listed[1]) != 0 && step * kMmaK < row.part_columns) {
#pragma unroll
      for (int i = step * kMmaK; i < (step + 1) * kMmaK; ++i) {
        copy_row<kHalfChunks>(kv, to + i, own[i / kWarp].address, listed[i / kWarp], i % kWarp,
                              half * kHalfChunks);
      }
    }
    cp_async_commit_group();
  }
  return static_cast<unsigned long long>(listed[1]) << kWarp | listed[0];
}

/// Waits until the warp's rows of a step stand, and those of the steps before it.
__device__ __forceinline__ void wait_for_step(int step) {
  if (step == 0) {
    cp_async_wait_group<2>();
  } else if (step == 1) {
    cp_async_wait_group<1>();
  } else {
    cp_async_wait_group<0>();
  }
  __syncwarp();
}

/// m and l of a part, of whichever block has it.
__device__ __forceinline__ float4 end_of(const SharedOfPair& smem, int part, int head) {
  return ld_shared_cluster_v4_f32(mapa_shared_cluster_u32(
      shared_address(&smem.end[part % kPairParts][head]), part / kPairParts));
}

/// a and b of all parts of both blocks, a thread for each and a head.
__device__ __forceinline__ void find_pair_factors(SharedOfPair& smem, int parts) {
  const int part = threadIdx.x / kShortHeads, head = threadIdx.x % kShortHeads;
  if (part >= parts) return;
  Totals before;
#pragma unroll
  for (int i = 0; i < kMostParts - 1; ++i) {
    if (i < part) before.max = max_NaN_f32(before.max, end_of(smem, i, head).x);
  }
  const float4 end = end_of(smem, part, head);
  const float2 ab = before.fold(end.x, end.y);
  smem.fold[part][head] = make_float4(ab.x, ab.y, end.y, before.max);
}

/// Meets the other block; what either has written to shared memory stands.
__device__ __forceinline__ void meet_other_block() {
  barrier_cluster_arrive_release_aligned();
  barrier_cluster_wait_acquire_aligned();
}

/// The first block: folds its parts and hands O over. lists: its parts that list something.
__device__ __forceinline__ void hand_over(SharedOfPair& smem, const Row& row, unsigned lists) {
  FoldedParts all;
  all.left = lists;
  Operands operands = {};
  if (lists != 0) operands.load(smem, all.next_part() * row.part_columns);
  find_pair_factors(smem, row.parts);
  __syncthreads();
  all.add_all<kPairColumns>(smem, operands, row.part_columns);
  __syncthreads();  // O comes where the rows were
#pragma unroll
  for (int tile = 0; tile < kOutTiles; ++tile) {
    const float (&o)[4] = all.o.of[0][tile];
    smem.handed[tile][threadIdx.x] = make_float4(o[0], o[1], o[2], o[3]);
  }
  meet_other_block();
  barrier_cluster_arrive_release_aligned();
}

/// The second block: keeps O of each of its parts, takes the first block's and folds them onto it.
__device__ __forceinline__ FoldedParts take_over(SharedOfPair& smem, const Row& row,
                                                 unsigned of_first, unsigned own) {
  find_pair_factors(smem, row.parts);  // read when the other block has been met
  Out<kShortHeads> kept[kPairParts];
#pragma unroll
  for (int i = 0; i < kPairParts; ++i) {
    kept[i] = {};
    if (own >> i & 1) {
#pragma unroll 1
      for (int column = 0; column < row.part_columns; column += kMmaK) {
        Operands operands;
        operands.load(smem, i * row.part_columns + column);
        operands.multiply(kept[i]);
      }
    }
  }
  meet_other_block();
  FoldedParts all;
#pragma unroll
  for (int tile = 0; tile < kOutTiles; ++tile) {
    const float4 o = ld_shared_cluster_v4_f32(
        mapa_shared_cluster_u32(shared_address(&smem.handed[tile][threadIdx.x]), 0));
    all.o.of[0][tile][0] = o.x, all.o.of[0][tile][1] = o.y;
    all.o.of[0][tile][2] = o.z, all.o.of[0][tile][3] = o.w;
  }
  barrier_cluster_arrive_release_aligned();
  float4 fold[2];
#pragma unroll
  for (int i = 0; i < kPairParts; ++i) {
    if (of_first >> i & 1) all.fold_totals(smem, i, fold);
  }
#pragma unroll
  for (int i = 0; i < kPairParts; ++i) {
    if (!(own >> i & 1)) continue;
    all.fold_totals(smem, kPairParts + i, fold);
    all.fold_out(kept[i], fold);
  }
  return all;
}

/// 16 heads from first_head on of one row whose parts have at most kPairColumns columns.
__device__ __forceinline__ void attend_pair(const Row& row, float scale, int first_head, int h,
                                            const Results& results) {
  auto& smem = shared_memory<SharedOfPair>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, half = warp % kHalves;
  const int rank = cluster_ctarank(), own = warp / kHalves, part = rank * kPairParts + own;
  const int first = own * row.part_columns;  // of the part's rows and weights
  int index[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = i * kWarp + lane;
    index[i] = column < row.part_columns
                   ? load_index(row.indices, part * row.part_columns + column, row.topk)
                   : -1;
  }
  load_q(smem.q, row, first_head, h);
  cp_async_commit_group();
  const unsigned long long listed = gather_half(smem.kv, row, part, first, half, index);
  float sink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + lane / 4 + 8 * i;
    sink[i] = head < h ? __ldg(results.attn_sink + head) : 0.0f;
  }
  cp_async_wait_group<kPairSteps>();
  __syncthreads();
  HalfQ q;
  q.load(smem.q, half);
  __syncthreads();  // sums come where Q was

  // The warp's half of a part.
  const int head = lane / 4 + 8 * half;
  float4 end = make_float4(-infinity(), 0.0f, 0.0f, 0.0f);
  if (listed != 0) {
    float scores[kPairScoreTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kPairSteps; ++step) {
      if (step * kMmaK < row.part_columns) {
        wait_for_step(step);
        q.multiply(smem.kv, first + step * kMmaK, half, scores[2 * step], scores[2 * step + 1]);
      }
    }
    float of_head[kPairScoreTiles][2];
#pragma unroll
    for (int tile = 0; tile < kPairScoreTiles; ++tile) {
      const float4 both =
          make_float4(scores[tile][0], scores[tile][1], scores[tile][2], scores[tile][3]);
      smem.sums[warp][tile][lane] =
          half == 0 ? make_float2(both.z, both.w) : make_float2(both.x, both.y);
      of_head[tile][0] = half == 0 ? both.x : both.z;
      of_head[tile][1] = half == 0 ? both.y : both.w;
    }
    bar_sync(kSumsReady + own, 2 * kWarp);
#pragma unroll
    for (int tile = 0; tile < kPairScoreTiles; ++tile) {
      const float2 other = smem.sums[warp ^ 1][tile][lane];
      of_head[tile][0] += other.x, of_head[tile][1] += other.y;
    }
    const float2 found = weigh_head(smem.p, of_head, listed, scale, row.part_columns, first, head);
    end = make_float4(found.x, found.y, 1.0f, 0.0f);
  }
  if (lane % 4 == 0) smem.end[own][head] = end;
  meet_other_block();

  // Parts that list something: a bit each.
  const unsigned lists =
      __ballot_sync(0xffffffff, lane < kMostParts && end_of(smem, lane % kMostParts, 0).z != 0.0f);
  const unsigned of_first = lists & ((1u << kPairParts) - 1), of_second = lists >> kPairParts;
  if (rank == 0) {
    hand_over(smem, row, of_first);
  } else {
    const FoldedParts all = take_over(smem, row, of_first, of_second);
    store_folded(all, lists != 0, sink, first_head, h, results);
  }
  barrier_cluster_wait_acquire_aligned();  // the first block stays until its O has been read
}

}  // namespace sparsekit::sparse_attn_paged_decode
