// The mma.sync sparse prefill block: one token, kHeads heads, tiles of kBlockK rows in ascending
// order.
//   score warps (4)  S = Q K^T
//                    each takes half of the heads and every other 16-wide step of d
//   value warps (8)  gather of the rows, softmax, O += P V
//                    each takes 8 heads of the softmax; of O, all heads and 64 of the 512 columns
// The two work one tile apart and meet once a tile. V is the first 512 columns of the K tile, so
// that a row is gathered once.
#pragma once

#include "sparsekit/anew.cuh"
#include "sparsekit/listed_columns.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/cp_async.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/special_register.cuh"
#include "sparsekit/ptx/warp_collective.cuh"
#include "sparsekit/shared_address.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_prefill/score.cuh"
#include "sparsekit/sparse_prefill/shape.cuh"
#include "sparsekit/sparse_prefill/value.cuh"

namespace sparsekit::sparse_prefill {

using namespace sparsekit::ptx;

/// What a block works on. Computed where it is needed: kept over the loop, it would crowd out O.
struct Work {
  int token;
  int first_head;
  int heads;  // from first_head on, at most kHeads
};

__device__ __forceinline__ Work this_block(int h_q) {
  const int head_blocks = (h_q + kHeads - 1) / kHeads, block = ctaid_x();
  const int first_head = block % head_blocks * kHeads;
  return {block / head_blocks, first_head, min(h_q - first_head, kHeads)};
}

/// The index that this thread looks at in the round of the scan that begins at column `first`.
__device__ __forceinline__ int load_scanned(const int* row, int first, int topk) {
  return threadIdx.x < kScanWidth ? load_index(row, first + threadIdx.x, topk) : -1;
}

/// Last valid column + 1, the same in every thread of the block, all of which call it. `index` is
/// of the last kScanWidth columns; only rows padded further load again.
template <class Rows>
__device__ __forceinline__ int last_valid_column_end(SharedMemory<Rows>& smem, int warp, int index,
                                                     const int* row, int topk, int s_kv) {
#pragma unroll 1
  for (int first = topk - kScanWidth, turn = 0;; first -= kScanWidth, turn ^= 1) {
    const int column = first + static_cast<int>(threadIdx.x);
    const int warp_end = redux_sync_max_s32(is_valid(index, s_kv) ? column + 1 : 0);
    if (warp < kScanWarps && threadIdx.x % kWarp == 0) smem.scan_end[turn][warp] = warp_end;
    barrier_sync(kScanDone, kThreads);
    int end = 0;
#pragma unroll
    for (int w = 0; w < kScanWarps; ++w) end = max(end, smem.scan_end[turn][w]);
    if (end > 0 || first <= 0) return end;
    index = load_scanned(row, first - kScanWidth, topk);
  }
}

/// What a call brings, but for the rows.
struct Arguments {
  const bf16* q;
  const int* indices;
  const float* attn_sink;  // null: no sink
  const int* topk_length;  // null: every column may count
  bf16* out;
  float* max_logits;
  float* lse;
  long long q_token_stride_elems;
  long long q_head_stride_elems;
  long long indices_row_stride_elems;
  int h_q, s_kv, topk;
  float sm_scale;
};

/// What a block does. `Rows` brings the rows of kv, by the value warps, and says how they lie in
/// shared memory.
///   Tile, at(tile, row, line, column)  a tile, and where a column of a line of a row is
///   kRowStrideBytes, kLineStrideBytes  from there to the next row, and to the next line
///   kNeedsRows                         a pool without rows must not be asked
///   kLaneAnew                          the lane is read anew behind the tiles, not kept over them
///   row_of(thread)                     the row of a tile whose index the thread hands to gather()
///   gather(smem, stage_bytes, thread, index, s_kv)  starts a tile into the stage at stage_bytes
///   started()                          called after each gather(), or where one had no tile left
///   await<kAfter>(tile, tiles)         waits for that tile, if any, with kAfter started behind it
/// block_thread: threadIdx.x, read in the entry, where the compiler knows its bound.
template <class Rows>
__device__ __forceinline__ void run_block(SharedMemory<Rows>& smem, const Rows& rows_of_kv,
                                          const Arguments& a, unsigned block_thread) {
  const int warp = uniform(block_thread / kWarp), lane = block_thread % kWarp;
  const int g = lane / 4, t = lane % 4;  // of an mma fragment: row in its group of 8, column pair
  const Work work = this_block(a.h_q);
  const int* row = a.indices + work.token * a.indices_row_stride_elems;

  // The end of the row flies while the role's own prologue runs.
  const bool derive = kDeriveLength && a.topk_length == nullptr;
  const int scanned = load_scanned(row, a.topk - kScanWidth, derive ? a.topk : 0);
  const auto row_length = [&] {
    int length = a.topk;
    if (derive) {
      length = last_valid_column_end(smem, warp, scanned, row, a.topk, a.s_kv);
    } else if (a.topk_length != nullptr) {
      length = min(max(__ldg(a.topk_length + work.token), 0), a.topk);
    }
    if (Rows::kNeedsRows && a.s_kv == 0) length = 0;
    return uniform(length);
  };

  if (warp >= kValueWarps) {
    // -------------------------------------------------------------- score warps
    const int thread = block_thread - kValueThreads, score_warp = warp - kValueWarps;
    const int half = score_warp / 2, d_parity = score_warp % 2;

    // Q: the first steps as fragments in registers, the others swizzled in shared memory. Heads
    // that do not exist are 0.
    const bf16* q_block =
        a.q + work.token * a.q_token_stride_elems + work.first_head * a.q_head_stride_elems;
#pragma unroll
    for (int c = thread; c < kHeads * kQSharedChunks; c += kScoreThreads) {
      constexpr int kChunks = kQSharedChunks > 0 ? kQSharedChunks : 1;
      const int head = c / kChunks, chunk = c % kChunks;
      const bf16* src = q_block + (head < work.heads ? head : 0) * a.q_head_stride_elems;
      cp_async_cg_shared_global_l2_128b_16(
          shared_address(&smem.q[head][(chunk ^ head % 8) * kChunk]),
          src + kQRegSteps * 2 * kMmaK + chunk * kChunk, head < work.heads ? kChunkBytes : 0);
    }
    cp_async_commit_group();
    unsigned q_fragment[kQRegSteps > 0 ? kQRegSteps : 1][kScoreHeadTiles][4];
#pragma unroll
    for (int group = 0; group < kScoreGroups; ++group) {
      const int head = half * (kHeads / 2) + group * 8 + g;
      const bf16* src = q_block + head * a.q_head_stride_elems + d_parity * kMmaK + 2 * t;
#pragma unroll
      for (int step = 0; step < kQRegSteps; ++step) {
#pragma unroll
        for (int k_half = 0; k_half < 2; ++k_half) {
          const unsigned* pair =
              reinterpret_cast<const unsigned*>(src + step * 2 * kMmaK + k_half * 8);
          q_fragment[step][group / 2][group % 2 + 2 * k_half] = head < work.heads ? __ldg(pair) : 0;
        }
      }
    }

    // Indices of the first tiles; from then on those of the tile that the value warps gather next.
    const int length = row_length();
    const int tiles = (length + kBlockK - 1) / kBlockK;
    const bool loads_indices = thread < kBlockK;
    int column = loads_indices ? thread : length;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i, column += kBlockK) {
      const int index = load_index(row, column, length);
      if (loads_indices) smem.index[i][thread] = index;
    }
    int index = load_index(row, column, length);
    cp_async_wait_group<0>();

    // Where this lane's rows of the ldmatrix operands stand.
    const int matrix = lane / 8, matrix_row = lane % 8;
    const unsigned k_shared =
        shared_address(Rows::at(smem.kv[0], matrix / 2 * 8 + matrix_row, 0, 0)) +
        (2 * d_parity + matrix % 2 ^ matrix_row) * kChunkBytes;
    const unsigned q_shared =
        shared_address(&smem.q[half * (kHeads / 2) + matrix % 2 * 8 + matrix_row][0]) +
        (2 * d_parity + matrix / 2 ^ matrix_row) * kChunkBytes;
    int stage_bytes = 0;

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      barrier_sync(kTileDone, kThreads);
      if (loads_indices) smem.index[(tile + kStages - 1) % kIndexTiles][thread] = index;
      column += kBlockK;
      index = load_index(row, column, length);

      float s[kScoreHeadTiles][kScoreTokenTiles][4];
      score_mma<Rows>(s, q_fragment, q_shared, k_shared + stage_bytes);
#pragma unroll
      for (int group = 0; group < kScoreGroups; ++group) {
#pragma unroll
        for (int v = 0; v < kScoreVecs; ++v) {
          const float (&left)[4] = s[group / 2][2 * v], (&right)[4] = s[group / 2][2 * v + 1];
          const int e = group % 2 * 2;
          smem.s[tile % 2][score_warp][group][v][lane] =
              make_float4(left[e], left[e + 1], right[e], right[e + 1]);
        }
      }
      stage_bytes = stage_bytes + kTileBytes == kStages * kTileBytes ? 0 : stage_bytes + kTileBytes;
    }
    barrier_sync(kTileDone, kThreads);
  } else {
    // -------------------------------------------------------------- value warps
    // Fill the ring but for one stage.
    int first_index[kStages - 1];
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      first_index[i] = load_index(row, i * kBlockK + Rows::row_of(block_thread), a.topk);
    }
    const int length = row_length();
    const int tiles = (length + kBlockK - 1) / kBlockK;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      const int index = i * kBlockK + Rows::row_of(block_thread) < length ? first_index[i] : -1;
      if (i < tiles) rows_of_kv.gather(smem, i * kTileBytes, block_thread, index, a.s_kv);
      rows_of_kv.started();
    }

    const unsigned v_shared = shared_address(Rows::at(smem.kv[0], lane % 16, warp, 0)) +
                              (lane / 16 ^ lane % 8) * kChunkBytes;
    const unsigned p_shared =
        shared_address(&smem.p[lane % 16][0]) +
        (lane / 16 ^ lane % 16 / kPRowsPerLine % (kBlockK / kChunk)) * kChunkBytes;
    float o[kValueHeadTiles][kValueColTiles][4];
#pragma unroll
    for (int m = 0; m < kValueHeadTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kValueColTiles; ++n) {
        o[m][n][0] = o[m][n][1] = o[m][n][2] = o[m][n][3] = 0.0f;
      }
    }
    Softmax rows = {masked(), masked(), 0.0f, 0.0f};
    int stage_bytes = 0;

    rows_of_kv.template await<kStages - 2>(0, tiles);
    barrier_sync(kTileDone, kThreads);  // the first tile has landed
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      rows_of_kv.template await<kStages - 3>(tile + 1, tiles);
      barrier_sync(kTileDone, kThreads);
      // Read anew: kept in registers, what follows from it would crowd out O.
      const int thread = tid_x();

      // Every warp is past the previous tile: its stage takes the tile kStages - 1 ahead.
      const int next = tile + kStages - 1;
      if (next < tiles) {
        rows_of_kv.gather(smem,
                          (stage_bytes == 0 ? kStages * kTileBytes : stage_bytes) - kTileBytes,
                          thread, smem.index[next % kIndexTiles][Rows::row_of(thread)], a.s_kv);
      }
      rows_of_kv.started();

      if (warp < kHeadGroups) softmax(smem, rows, tile, warp, thread, a.s_kv, a.sm_scale);
      bar_sync(kPReady, kValueThreads);
      rescale(o, smem);
#pragma unroll
      for (int k = 0; k < kBlockK; k += kMmaK) {
        value_mma(o, p_shared ^ k / kChunk * kChunkBytes,
                  v_shared + stage_bytes + k * Rows::kRowStrideBytes);
      }
      stage_bytes = stage_bytes + kTileBytes == kStages * kTileBytes ? 0 : stage_bytes + kTileBytes;
    }

    const Work output = this_block(a.h_q);
    const int end_lane = Rows::kLaneAnew ? tid_x() % kWarp : lane;
    const long long first_out_row =
        static_cast<long long>(output.token) * a.h_q + output.first_head;
    if (warp < kHeadGroups) {
      rows.sum += __shfl_xor_sync(0xffffffff, rows.sum, 1);
      rows.sum += __shfl_xor_sync(0xffffffff, rows.sum, 2);
      rows.poison += __shfl_xor_sync(0xffffffff, rows.poison, 1);
      rows.poison += __shfl_xor_sync(0xffffffff, rows.poison, 2);
      const bool empty = rows.sum == 0.0f && rows.poison == 0.0f;
      const int head = tid_x() / 4;
      if (end_lane % 4 == 0) {
        const bool has_sink = a.attn_sink != nullptr && head < output.heads;
        const float sink = has_sink ? __ldg(a.attn_sink + output.first_head + head) : -infinity();
        smem.o_scale[head % 8][head / 8] =
            empty ? 0.0f : output_scale(rows.ref, rows.sum, sink) + rows.poison;
      }
      if (end_lane % 4 == 0 && head < output.heads) {
        const float log_sum = rows.max == infinity() ? infinity() : rows.ref + logf(rows.sum);
        a.max_logits[first_out_row + head] = rows.max == masked() ? -infinity() : rows.max;
        a.lse[first_out_row + head] = empty ? infinity() : log_sum;
      }
    }
    bar_sync(kPReady, kValueThreads);  // o_scale stands, and no warp reads the ring any more

    store_out<Rows>(smem, o, a.out + first_out_row * kDV, output.heads, warp, end_lane);
  }
}

}  // namespace sparsekit::sparse_prefill
