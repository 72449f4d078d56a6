// A short row, all parts at once: one block has its rows in shared memory, and 16 heads.
//
// A warp has a part to itself as far as its weights: it gathers the part's rows, has all of Q in
// registers, and weighs its scores where mma.sync leaves them. Then O: a warp has 64 of its 512
// columns and folds all parts, upwards, in registers. The block meets three times: Q stands; rows,
// weights and ends of all parts stand; a and b of all parts stand.
#pragma once

#include "sparsekit/sparse_attn_paged_decode/out.cuh"

namespace sparsekit::sparse_attn_paged_decode {

enum : int {
  kShortColumns = SK_SHORT_COLUMNS,  // of all parts of a row that fits a block whole
  kShortHeads = 16,
  kSteps = kD / kMmaK,                // of d, in Q K^T
  kMostTiles = kWarp / kMmaN,         // of a part's scores, as a lane looks up one column
  kPairTiles = kLanesOfHead / kMmaN,  // scores that a lane of the 16 of a head would have
};

static_assert(kWarps == kMostParts, "a warp has a part");
static_assert(kShortHeads == kMmaM, "the heads of a block are one tile");
static_assert(kMostTiles * kMmaN == 2 * kMmaK, "a part has 16 columns or 32");

struct SharedOfShort {
  alignas(kLineBytes) bf16 kv[kShortColumns][kD];
  alignas(kLineBytes) bf16 q[kShortHeads][kD];
  alignas(kChunkBytes) bf16 p[kPTerms][kShortHeads][kShortColumns + kPad];
  alignas(kChunkBytes) float4 fold[kMostParts][kShortHeads];  // a, b, l and the new M of a part
  float2 end[kMostParts][kShortHeads];                        // m, l
  bool lists[kMostParts];                                     // whether a part lists anything
};

/// Starts the copies of a warp's part, a group for each eight rows; which columns are listed, a bit
/// each. A part that lists nothing is left out.
__device__ __forceinline__ unsigned gather_part(bf16 (&kv)[kShortColumns][kD], const Row& row,
                                                int part, int index) {
  const int first = part * row.part_columns;
  const Source own = source_of(row, first + threadIdx.x % kWarp, index);
  const unsigned listed = __ballot_sync(0xffffffff, own.listed);
#pragma unroll
  for (int tile = 0; tile < kMostTiles; ++tile) {
    if (listed != 0 && tile * kMmaN < row.part_columns) {
#pragma unroll
      for (int i = tile * kMmaN; i < (tile + 1) * kMmaN; ++i) {
        copy_row(kv, first + i, own.address, listed, i);
      }
    }
    cp_async_commit_group();
  }
  return listed;
}

/// Waits until the warp's rows of a tile stand, and those of the tiles before it.
__device__ __forceinline__ void wait_for(int tile) {
  static_assert(kMostTiles == 4, "a case for each tile");
  switch (tile) {
    case 0:
      cp_async_wait_group<3>();
      break;
    case 1:
      cp_async_wait_group<2>();
      break;
    case 2:
      cp_async_wait_group<1>();
      break;
    default:
      cp_async_wait_group<0>();
  }
  __syncwarp();
}

/// Q of the block, for all of d.
struct WholeQ {
  unsigned a[kSteps][4];

  __device__ __forceinline__ void load(const bf16 (&q)[kShortHeads][kD]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ldmatrix_sync_aligned_m8n8_x4_shared_b16(a[step],
                                               chunk_address(q, lane % 16, 2 * step + lane / 16));
    }
  }

  /// Scores of the 8 columns from `first` on: the even and the odd steps of each half of d.
  __device__ __forceinline__ void multiply(const bf16 (&kv)[kShortColumns][kD], int first,
                                           float (&score)[4]) const {
    const int lane = threadIdx.x % kWarp;
    float s[kHalves][kParities][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kHalfChunks; chunk += 2 * kParities) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int first_chunk = half * kHalfChunks + chunk;
        unsigned b[2 * kParities];
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            b, chunk_address(kv, first + lane % 8, first_chunk + lane / 8));
#pragma unroll
        for (int parity = 0; parity < kParities; ++parity) {
          mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
              s[half][parity], a[first_chunk / 2 + parity], b[2 * parity], b[2 * parity + 1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = (s[0][0][i] + s[0][1][i]) + (s[1][0][i] + s[1][1][i]);
    }
  }
};

/// The column of the part that is at `i`, 0 or 1, of a lane's scores of a tile.
__device__ __forceinline__ int column_of(int tile, int i) {
  return tile * kMmaN + threadIdx.x % 4 * 2 + i;
}

/// Weights of a part, from its `first_column` of P on, and its m and l, of one head of a lane; sums
/// in the order of `weigh`: over a column and every 16th after it, then of the columns 8 apart, 4,
/// 2 and 1. listed: a bit for each column of the part.
template <int kTiles, int kPRow, class Bits>
__device__ __forceinline__ float2 weigh_head(bf16 (&p)[kPTerms][kShortHeads][kPRow],
                                             const float (&scores)[kTiles][2], Bits listed,
                                             float scale, int part_columns, int first_column,
                                             int head) {
  float x[kTiles][2], top = -infinity();
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool valid = listed >> column_of(tile, i) & 1;
      x[tile][i] = valid ? __fmul_rn(scores[tile][i], scale) : -infinity();
      top = max_NaN_f32(top, x[tile][i]);
    }
  }
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 2));
  top = max_NaN_f32(top, __shfl_xor_sync(0xffffffff, top, 1));
  float sums[kPairTiles][2] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float weight[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool valid = listed >> column_of(tile, i) & 1;
      const float e = weight_of(x[tile][i], top);
      sums[tile % kPairTiles][i] = __fadd_rn(sums[tile % kPairTiles][i], e);
      weight[i] = valid ? __fmaf_rn(x[tile][i], 0.0f, e) : 0.0f;  // as in weigh
    }
    if (tile * kMmaN >= part_columns) continue;
    const int column = first_column + column_of(tile, 0);
    const unsigned high = cvt_rn_bf16x2_f32(weight[1], weight[0]);
    *reinterpret_cast<unsigned*>(&p[0][head][column]) = high;
    if (kPTerms == 2) {
      *reinterpret_cast<unsigned*>(&p[kPTerms - 1][head][column]) = cvt_rn_bf16x2_f32(
          weight[1] - __uint_as_float(high & 0xffff0000), weight[0] - __uint_as_float(high << 16));
    }
  }
  float sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = __fadd_rn(sums[0][i], sums[1][i]);
    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffff, sum[i], 2));
    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffff, sum[i], 1));
  }
  return make_float2(top, __fadd_rn(sum[0], sum[1]));
}

/// a and b of all parts, a thread for each and a head.
__device__ __forceinline__ void find_factors(SharedOfShort& smem, int parts) {
  const int part = threadIdx.x / kShortHeads, head = threadIdx.x % kShortHeads;
  if (part >= parts) return;
  Totals before;
#pragma unroll
  for (int i = 0; i < kMostParts - 1; ++i) {
    if (i < part) before.max = max_NaN_f32(before.max, smem.end[i][head].x);
  }
  const float2 end = smem.end[part][head];
  const float2 ab = before.fold(end.x, end.y);
  smem.fold[part][head] = make_float4(ab.x, ab.y, end.y, before.max);
}

/// Weights and rows of 16 columns, for 64 columns of O.
struct Operands {
  unsigned p[kPTerms][4], v[kOutTiles / 2][4];

  template <class Shared>
  __device__ __forceinline__ void load(const Shared& smem, int first) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
    for (int term = 0; term < kPTerms; ++term) {
      ldmatrix_sync_aligned_m8n8_x4_shared_b16(
          p[term], shared_address(&smem.p[term][lane % 16][first + lane / 16 * kChunk]));
    }
#pragma unroll
    for (int pair = 0; pair < kOutTiles / 2; ++pair) {
      ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
          v[pair],
          chunk_address(smem.kv, first + lane % 16, warp * kOutTiles + 2 * pair + lane / 16));
    }
  }

  /// part += P V, in the order of multiply_p.
  __device__ __forceinline__ void multiply(Out<kShortHeads>& part) const {
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int term = kPTerms - 1; term >= 0; --term) {
        mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
            part.of[0][tile], p[term], v[tile / 2][tile % 2 * 2], v[tile / 2][tile % 2 * 2 + 1]);
      }
    }
  }
};

/// O and totals of the parts so far, for 64 columns of O and a lane's two heads.
struct FoldedParts {
  Out<kShortHeads> o = {}, of_part;
  Totals totals[2];
  unsigned left;  // parts that list something and are to come, a bit each

  __device__ __forceinline__ int next_part() const { return __ffs(left) - 1; }

  /// Folds a part, or no more than its m and l.
  template <class Shared>
  __device__ __forceinline__ void fold_totals(const Shared& smem, int part, float4 (&fold)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      fold[i] = smem.fold[part][threadIdx.x % kWarp / 4 + 8 * i];
      totals[i].sum = folded(totals[i].sum, fold[i].x, fold[i].z, fold[i].y);
      totals[i].max = fold[i].w;
    }
  }

  __device__ __forceinline__ void fold_out(const Out<kShortHeads>& part, const float4 (&fold)[2]) {
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        o.of[0][tile][i] =
            folded(o.of[0][tile][i], fold[i / 2].x, part.of[0][tile][i], fold[i / 2].y);
      }
    }
  }

  /// Adds the 16 columns of a part's step, and folds it with its last; asks for the operands after
  /// them.
  template <int kStep, bool kEnds, class Shared>
  __device__ __forceinline__ void add(const Shared& smem, const Operands& operands, Operands& next,
                                      int part_columns) {
    const int part = next_part();
    float4 fold[2];
    if (kEnds) {
      fold_totals(smem, part, fold);
      left &= left - 1;
      if (left != 0) next.load(smem, next_part() * part_columns);
    } else {
      next.load(smem, part * part_columns + (kStep + 1) * kMmaK);
    }
    if (kStep == 0) of_part = {};
    operands.multiply(of_part);
    if (kEnds) fold_out(of_part, fold);
  }

  /// Adds all parts, from the operands of the first 16 columns on. kMost: columns of a part.
  template <int kMost, class Shared>
  __device__ __forceinline__ void add_all(const Shared& smem, Operands& even, int part_columns) {
    static_assert(kMost <= 3 * kMmaK, "a part has at most three steps");
    Operands odd;
    if (part_columns == kMmaK) {
      odd = {};  // asked for under a condition, read under the same one
      while (left != 0) {
        add<0, true>(smem, even, odd, part_columns);
        if (left == 0) break;
        add<0, true>(smem, odd, even, part_columns);
      }
    } else if (kMost == 2 * kMmaK || part_columns == 2 * kMmaK) {
      while (left != 0) {
        add<0, false>(smem, even, odd, part_columns);
        add<1, true>(smem, odd, even, part_columns);
      }
    } else {
      while (left != 0) {
        add<0, false>(smem, even, odd, part_columns);
        add<1, false>(smem, odd, even, part_columns);
        add<2, true>(smem, even, odd, part_columns);
        if (left == 0) break;
        add<0, false>(smem, odd, even, part_columns);
        add<1, false>(smem, even, odd, part_columns);
        add<2, true>(smem, odd, even, part_columns);
      }
    }
  }
};

/// Writes a lane's two heads, and warp 0 their lse.
__device__ __forceinline__ void store_folded(const FoldedParts& all, bool any,
                                             const float (&sink)[2], int first_head, int h,
                                             const Results& results) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + lane / 4 + 8 * i;
    if (head >= h) continue;
    const float factor = factor_of(all.totals[i], any, sink[i]);
    bf16* out =
        results.out + head * results.out_head_stride_elems + warp * kWarpColumns + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kOutTiles; ++tile) {
      const float* from = all.o.of[0][tile] + 2 * i;
      *reinterpret_cast<unsigned*>(out + tile * kMmaN) = out_pair(from[0], from[1], factor);
    }
    if (warp == 0 && lane % 4 == 0 && results.lse != nullptr) {
      results.lse[head] = lse_of(all.totals[i], any);
    }
  }
}

/// 16 heads from first_head on of one row of at most kShortColumns columns.
__device__ __forceinline__ void attend_short(const Row& row, float scale, int first_head, int h,
                                             const Results& results) {
  auto& smem = shared_memory<SharedOfShort>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int index = warp < row.parts && lane < row.part_columns
                        ? load_index(row.indices, warp * row.part_columns + lane, row.topk)
                        : -1;
  load_q(smem.q, row, first_head, h);
  cp_async_commit_group();
  const unsigned listed = gather_part(smem.kv, row, warp, index);
  float sink[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = first_head + lane / 4 + 8 * i;
    sink[i] = head < h ? __ldg(results.attn_sink + head) : 0.0f;
  }
  cp_async_wait_group<kMostTiles>();
  __syncthreads();

  // The warp's own part.
  if (listed != 0) {
    WholeQ q;
    q.load(smem.q);
    float scores[kMostTiles][4] = {};
#pragma unroll
    for (int tile = 0; tile < kMostTiles; ++tile) {
      if (tile * kMmaN < row.part_columns) {
        wait_for(tile);
        q.multiply(smem.kv, warp * row.part_columns + tile * kMmaN, scores[tile]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float of_head[kMostTiles][2];
#pragma unroll
      for (int tile = 0; tile < kMostTiles; ++tile) {
        of_head[tile][0] = scores[tile][2 * i], of_head[tile][1] = scores[tile][2 * i + 1];
      }
      const int head = lane / 4 + 8 * i;
      const float2 end = weigh_head(smem.p, of_head, listed, scale, row.part_columns,
                                    warp * row.part_columns, head);
      if (lane % 4 == 0) smem.end[warp][head] = end;
    }
  } else if (lane < kShortHeads) {
    smem.end[warp][lane] = make_float2(-infinity(), 0.0f);
  }
  if (lane == 0) smem.lists[warp] = listed != 0;
  __syncthreads();

  // All parts that list something, the operands of the next 16 columns under way.
  FoldedParts all;
  all.left = __ballot_sync(0xffffffff, lane < kMostParts && smem.lists[lane % kMostParts]);
  const bool any = all.left != 0;
  Operands operands = {};
  if (any) operands.load(smem, all.next_part() * row.part_columns);
  find_factors(smem, row.parts);
  __syncthreads();
  all.add_all<2 * kMmaK>(smem, operands, row.part_columns);
  store_folded(all, any, sink, first_head, h, results);
}

}  // namespace sparsekit::sparse_attn_paged_decode
