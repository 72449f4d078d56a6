// The value warpgroups: O^T += V^T P^T, and O.
#pragma once

#include "sparsekit/ptx/global_store.cuh"

#include "softmax.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

/// The unit of a chunk of a tile, the i-th of a value warpgroup: one of two, by constants.
__device__ __forceinline__ int unit_of(int i, int chunk) {
  const int first = (i * kValueGroups + kHasRope) / kUnitChunks;
  return first + (chunk >= (first + 1) * kUnitChunks);
}

/// O^T of two chunks, scaled, to out. An 8 x 8 matrix of 8 columns and 8 heads is transposed so
/// that a quad has a head's 16 bytes, and four of these over the quad, so that each lane stores
/// one.
__device__ __forceinline__ void store_out(const float (&o0)[kScores], const float (&o1)[kScores],
                                          const float (&factor)[kThreadHeads], bf16* out_head,
                                          int column0, int column1, int heads_left, int t) {
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
    unsigned v[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const float (&o)[kScores] = m < 2 ? o0 : o1;
      const int e = 4 * j + 2 * (m % 2);
      // + 0 turns a flushed -0 into the +0 that a tile of masked rows would make of it.
      v[m] = movmatrix_sync_aligned_m8n8_trans_b16(cvt_rn_bf16x2_f32(
          __fmaf_rn(o[e + 1], factor[2 * j + 1], 0.0f), __fmaf_rn(o[e], factor[2 * j], 0.0f)));
    }
    // Transposed over the quad: v[m] of lane t becomes v[t] of lane m.
#pragma unroll
    for (int m = 0; m < 4; m += 2) {
      const unsigned got = __shfl_xor_sync(0xffffffff, t & 1 ? v[m] : v[m + 1], 1);
      (t & 1 ? v[m] : v[m + 1]) = got;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const unsigned got = __shfl_xor_sync(0xffffffff, t & 2 ? v[m] : v[m + 2], 2);
      (t & 2 ? v[m] : v[m + 2]) = got;
    }
    if (j * 8 < heads_left) {
      st_global_v4_b32(out_head + j * 8 * kDV + (t & 2 ? column1 : column0) + t % 2 * kPiece, v);
    }
  }
}

/// This group's columns of O of all tokens of this block.
__device__ __forceinline__ void value_tokens(SharedMemory& smem, const Arguments& a,
                                             const Place& place, float scale) {
  const int warp = place.warp, lane = place.lane, g = place.g, t = place.t;
  const int group = place.warpgroup - kValueGroup;
  int tile = 0, end_parity = 0;  // a bit a score group
  Position<kSlots> at;           // of a tile's first unit
  Position<kPBuffers> p_at;
#pragma unroll 1
  for (int token = blockIdx.x; token < a.s_q; token += gridDim.x) {
    float o[kGroupChunks][kScores];
#pragma unroll
    for (int i = 0; i < kGroupChunks; ++i) {
#pragma unroll
      for (int e = 0; e < kScores; ++e) o[i][e] = 0.0f;
    }
    unsigned flags;
#pragma unroll 1
    do {
      wait(smem.p_full[p_at.slot], p_at.parity);
      flags = smem.flags[p_at.slot];
      if (flags & kMoved) {
#pragma unroll
        for (int j = 0; j < kHeads / 8; ++j) {
          const float2 alpha =
              *reinterpret_cast<const float2*>(&smem.alpha[p_at.slot][j * 8 + 2 * t]);
#pragma unroll
          for (int i = 0; i < kGroupChunks; ++i) {
#pragma unroll
            for (int e = 4 * j; e < 4 * j + 4; ++e) o[i][e] *= e % 2 ? alpha.y : alpha.x;
          }
        }
      }

      // O^T += V^T P^T. No proxy fence: the score warpgroup's, between the copies' end and
      // p_full, is one for P and V.
      const unsigned long long p_desc =
          matrix_descriptor_128b(shared_address(smem.p[p_at.slot]), 1, kAtomBytes);
      wgmma_fence_sync_aligned();
#pragma unroll
      for (int i = 0; i < kGroupChunks; ++i) {
        const int chunk = i * kValueGroups + group + kHasRope, unit = unit_of(i, chunk);
        const unsigned long long v_desc = matrix_descriptor_128b(
            shared_address(smem.ring[at.ahead(unit).slot][chunk - unit * kUnitChunks]), kChunkBytes,
            kAtomBytes);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          if (kMultiply) {
            multiply_transposed(o[i], v_desc + k * kMmaK * kLineBytes / 16,
                                p_desc + k * kMmaKBytes / 16);
          }
        }
        wgmma_commit_group_sync_aligned();
      }

      const auto release = [&] {
#pragma unroll
        for (int i = 0; i < kGroupChunks; ++i) {
          wait_groups(kGroupChunks - 1 - i);
          const int chunk = i * kValueGroups + group + kHasRope, unit = unit_of(i, chunk);
          if (i == kGroupChunks - 1 || unit_of(i + 1, chunk + kValueGroups) != unit) {
            arrive(smem.free[at.ahead(unit).slot]);
          }
        }
        at = at.ahead(kUnits);
        arrive(smem.p_free[p_at.slot]);
        p_at.advance();
        ++tile;
      };
      if (!(flags & kLast)) {
        release();
        continue;
      }

      // The end of a token; what goes with the last P is read while the products go on.
      const int other = 1 - tile % 2;  // group, which has not this tile
      wait(smem.end_full[other], end_parity >> other & 1);
      end_parity ^= 1 << other;
      const auto end_of = [&](int head) {
        End of_group[kScoreGroups];  // which of them has the first tile makes no difference
#pragma unroll
        for (int i = 0; i < kScoreGroups; ++i) {
          End& end = of_group[i];
          end = smem.end[p_at.slot][i * kGroupWarps][head];
#pragma unroll
          for (int w = 1; w < kGroupWarps; ++w) {
            const End next = smem.end[p_at.slot][i * kGroupWarps + w][head];
            end = {end.sum + next.sum, end.poison + next.poison, max_NaN_f32(end.max, next.max)};
          }
        }
        return End{of_group[0].sum + of_group[1].sum, of_group[0].poison + of_group[1].poison,
                   max_NaN_f32(of_group[0].max, of_group[1].max)};
      };
      float factor[kThreadHeads];
#pragma unroll
      for (int i = 0; i < kThreadHeads; ++i) {
        const int head = head_of(i, t);
        const End end = end_of(head);
        const float sink =
            a.attn_sink != nullptr && head < a.h_q ? __ldg(a.attn_sink + head) : -infinity();
        const float sum = end.sum + end.poison, ref = smem.end_ref[p_at.slot][head] * scale;
        factor[i] = sum == 0.0f ? 0.0f : output_scale(ref, sum, sink);
      }
      if (group == 0 && warp == 0 && lane < min(kHeads, a.h_q)) {
        const End end = end_of(lane);
        const long long row = static_cast<long long>(token) * a.h_q + lane;
        const float max = end.max * scale;
        float log_sum = smem.end_ref[p_at.slot][lane] * scale + logf(end.sum);
        if (max == infinity()) log_sum = max;
        a.max_logits[row] = end.max == masked() ? -infinity() : max;
        a.lse[row] = end.sum + end.poison == 0.0f ? infinity() : log_sum;
      }
      release();
      bf16* out_head = a.out + (static_cast<long long>(token) * a.h_q + g) * kDV + warp * kMmaK;
#pragma unroll
      for (int i = 0; i < kGroupChunks; i += 2) {
        const int column = (i * kValueGroups + group) * kChunk;
        store_out(o[i], o[i + 1], factor, out_head, column, column + kValueGroups * kChunk,
                  a.h_q - g, t);
      }
    } while (!(flags & kLast));
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
