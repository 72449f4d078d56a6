// A cluster of eight blocks for a row and some of its heads: a block has the part of its rank, or
// several, and then each block folds some heads of all.
#pragma once

#include "sparsekit/ptx/cluster.cuh"
#include "sparsekit/sparse_attn_paged_decode/block.cuh"

namespace sparsekit::sparse_attn_paged_decode {

// ---------------------------------------------------------------- pieces of the kernel

/// Leaves the part of this block for the cluster, then folds some heads of all its blocks.
template <int kHeads, class Shared>
__device__ __forceinline__ void fold_cluster(Shared& smem, const Part<kHeads>& own, int first_head,
                                             int h, const Results& results) {
  constexpr int kVec = 4, kVecs = kD / kVec, kHeadsOfBlock = kHeads / kMostParts;
  constexpr int kUnits = kHeadsOfBlock * kVecs / kThreads;  // of a thread
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rank = cluster_ctarank();
  float sink[kUnits];  // on its way while O is written
#pragma unroll
  for (int v = 0; v < kUnits; ++v) {
    const int head = first_head + rank * kHeadsOfBlock + (v * kThreads + threadIdx.x) / kVecs;
    sink[v] = head < h ? __ldg(results.attn_sink + head) : 0.0f;
  }
  __syncthreads();  // O comes where the rows were
#pragma unroll
  for (int m = 0; m < kHeads / kMmaM; ++m) {
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = m * kMmaM + lane / 4 + 8 * i;
        const float* from = own.o.of[m][tile] + 2 * i;
        *reinterpret_cast<float2*>(
            &smem.out[head][warp * kWarpColumns + tile * kMmaN + lane % 4 * 2]) =
            make_float2(from[0], from[1]);
      }
    }
  }
#pragma unroll
  for (int round = 0; round < kHeads / kHeadsAtOnce; ++round) {
    const Totals& totals = own.totals[round];
    if (threadIdx.x % kLanesOfHead == 0) {
      smem.end[head_of_lane(round)] =
          make_float4(totals.max, totals.sum, own.any ? 1.0f : 0.0f, 0.0f);
    }
  }
  barrier_cluster_arrive_release_aligned();
  barrier_cluster_wait_acquire_aligned();

#pragma unroll
  for (int v = 0; v < kUnits; ++v) {
    const int unit = v * kThreads + threadIdx.x;
    const int of_block = rank * kHeadsOfBlock + unit / kVecs, head = first_head + of_block;
    float4 o[kMostParts], end[kMostParts];
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      end[part] = ld_shared_cluster_v4_f32(
          mapa_shared_cluster_u32(shared_address(&smem.end[of_block]), part));
      o[part] = ld_shared_cluster_v4_f32(
          mapa_shared_cluster_u32(shared_address(&smem.out[of_block][unit % kVecs * kVec]), part));
    }
    // A block stays until all have read its O.
    if (v == kUnits - 1) barrier_cluster_arrive_release_aligned();
    if (head >= h) continue;
    Totals all;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bool listed = false;
#pragma unroll
    for (int part = 0; part < kMostParts; ++part) {
      const float2 ab = all.fold(end[part].x, end[part].y);
      const float4 next = o[part];
      sum.x = folded(sum.x, ab.x, next.x, ab.y), sum.y = folded(sum.y, ab.x, next.y, ab.y);
      sum.z = folded(sum.z, ab.x, next.z, ab.y), sum.w = folded(sum.w, ab.x, next.w, ab.y);
      listed |= end[part].z != 0.0f;
    }
    const float factor = factor_of(all, listed, sink[v]);
    *reinterpret_cast<uint2*>(results.out + head * results.out_head_stride_elems +
                              unit % kVecs * kVec) =
        make_uint2(out_pair(sum.x, sum.y, factor), out_pair(sum.z, sum.w, factor));
    if (unit % kVecs == 0 && results.lse != nullptr) results.lse[head] = lse_of(all, listed);
  }
  barrier_cluster_wait_acquire_aligned();
}

/// The heads from first_head on of one row, a block of the cluster for each part.
template <int kHeads, int kColumns, int kLeast, class AnyPool>
__device__ __forceinline__ void attend_one(const RowOf<AnyPool>& row, float scale, int first_head,
                                           int h, const Results& results) {
  auto& smem = shared_memory<SharedOfOne<kHeads, kColumns>>();
  const int part = cluster_ctarank();
  const int index = part_index(row, part);
  load_q(smem.q, row, first_head, h);
  const bool listed = gather(smem.kv[0], smem.valid[0], row, part, index);
  cp_async_wait_group<0>();
  Part<kHeads> own;
  own.any = bar_red_or_pred(kPartReady, kThreads, listed);
  if (own.any) {
    const SharedQ<kHeads> shared_q = {smem.q};
    multiply_part<kHeads, kLeast>(smem, shared_q, smem.kv[0], smem.valid[0], scale,
                                  row.part_columns, own.totals, own.o);
    fold_part<true>(own.o, own.o, smem.fold);
  }
  fold_cluster(smem, own, first_head, h, results);
}

/// The same, where a block of the cluster may have several parts, which it folds.
template <int kHeads, class AnyPool>
__device__ __forceinline__ void attend_some(const RowOf<AnyPool>& row, float scale, int first_head,
                                            int h, const Results& results) {
  auto& smem = shared_memory<SharedOfOne<kHeads, kMostColumns>>();
  const int parts_of_block = (row.parts + kMostParts - 1) / kMostParts;
  const int first = static_cast<int>(cluster_ctarank()) * parts_of_block;
  Part<kHeads> own;
  attend_parts<kMostColumns>(smem, row, scale, first_head, h, first,
                             min(first + parts_of_block, row.parts), own);
  fold_cluster(smem, own, first_head, h, results);
}

}  // namespace sparsekit::sparse_attn_paged_decode
