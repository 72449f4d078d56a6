// The score warpgroups: S^T = K Q^T, softmax, P^T, of every other tile each.
#pragma once

#include "softmax.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

/// This group's tiles of all tokens of this block.
__device__ __forceinline__ void score_tokens(SharedMemory& smem, const Arguments& a,
                                             const Place& place, float scale) {
  const int thread = place.thread, warp = place.warp, lane = place.lane, g = place.g, t = place.t;
  const int group = place.warpgroup, vote = kVote + group;
  Position<kSlots> at;
  Position<kPlans> plan;
  int q_parity = 1;
  Position<kPBuffers> p_at;
  // For a slot known to be 0 ptxas takes this loop for divergent, and moves each descriptor from
  // vector registers: 450 instructions a tile more.
  if (kPBuffers == 1) p_at.slot = anew(p_at.slot);
  const float prescale = scale == a.sm_scale ? 1.0f : a.sm_scale;  // tiny, or not positive
  Softmax rows;
  rows.reset();
  float s[kScoreChains][kScores] = {};
  const auto await_decision = [&](int tile) { wait(smem.decided[tile % 2], tile / 2 % 2); };

  int token = blockIdx.x;
#pragma unroll 1
  for (int tile = 0; token < a.s_q; ++tile) {
    wait(smem.plan_full[plan.slot], plan.parity);
    const unsigned flags = smem.plan[plan.slot].flags;
    // Of the rows of this thread: the bits 0 and 8.
    const unsigned listed = smem.plan[plan.slot].listed[warp / 2] >> (warp % 2 * kMmaK + g);
    arrive(smem.plan_free[plan.slot]);
    plan.advance();
    if (flags & kFirst) {
      q_parity ^= 1;
      rows.reset();
    }
    if (tile % 2 == group) {
      // S^T = K Q^T.
      const unsigned long long q_desc =
          matrix_descriptor_128b(shared_address(smem.q), 1, kAtomBytes);
      wait(smem.q_full, q_parity);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const Position<kSlots> unit = at.ahead(u);
        wait(smem.full[unit.slot], unit.parity);
        fence_copies();
        const unsigned long long k_desc =
            matrix_descriptor_128b(shared_address(smem.ring[unit.slot]), 1, kAtomBytes);
        wgmma_fence_sync_aligned();  // of all units but the first only because ptxas wants it
#pragma unroll
        for (int c = 0; c < kUnitChunks; ++c) {
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            const int chunk = u * kUnitChunks + c, step = chunk * kSteps + k;
            if (kMultiply || step < kScoreChains) {
              multiply(s[step % kScoreChains], k_desc + (c * kChunkBytes + k * kMmaKBytes) / 16,
                       q_desc + (chunk * kHeads * kLineBytes + k * kMmaKBytes) / 16,
                       step >= kScoreChains);
            }
          }
        }
      }
      wgmma_commit_group_sync_aligned();
      wgmma_wait_group_sync_aligned<0>();
      if (flags & kLast) arrive(smem.q_free);
      float x[kScores];
#pragma unroll
      for (int e = 0; e < kScores; ++e) {
        x[e] = (kScoreChains == 2 ? s[0][e] + s[kScoreChains - 1][e] : s[0][e]) * prescale;
        if ((listed >> e / 2 % 2 * 8 & 1) == 0) x[e] = masked();
      }

      // The reference: one group after the other, in the order of the tiles.
      if (tile > 0) await_decision(tile - 1);
      if (!(flags & kFirst)) rows.follow(smem.ref, t, scale);
      const bool moved = bar_red_or_pred(vote, kGroup, rows.take(x, scale));
      if (moved) {
        wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
        rows.move(smem, smem.alpha[p_at.slot], vote, warp, g, t, scale);
      }
      if ((moved || flags & kFirst) && warp == 0 && g == 0) {
#pragma unroll
        for (int i = 0; i < kThreadHeads; ++i) smem.ref[head_of(i, t)] = rows.ref[i];
      }
      arrive(smem.decided[group]);

      // P^T, and what goes with it.
      unsigned p[kScores / 2];
      rows.weigh(x, p, scale);
      wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
      // Matrix m of four: heads m / 2 * 8, rows m % 2 * 8.
      const unsigned to = shared_address(smem.p[p_at.slot]) +
                          (lane / 16 * 8 + lane % 8) * kLineBytes +
                          ((2 * warp + lane / 8 % 2) ^ lane % 8) * kPieceBytes;
      store_matrices(to, p);
      if (flags & kLast) {
        rows.end(smem.end[p_at.slot][group * kGroupWarps + warp], g, t);
        if (warp == 0 && g == 0) {
#pragma unroll
          for (int i = 0; i < kThreadHeads; ++i) {
            smem.end_ref[p_at.slot][head_of(i, t)] = rows.ref[i];
          }
        }
      }
      if (thread == 0) smem.flags[p_at.slot] = (flags & kLast) | (moved ? kMoved : 0);
      fence_proxy_async_shared_cta();
      arrive(smem.p_full[p_at.slot]);
    } else if (flags & kLast) {
      // The end of a token in the other group's tile.
      arrive(smem.q_free);
      await_decision(tile);
      rows.follow(smem.ref, t, scale);
      wait(smem.p_free[p_at.slot], p_at.parity ^ 1);
      rows.end(smem.end[p_at.slot][group * kGroupWarps + warp], g, t);
      arrive(smem.end_full[group]);
    }
    at = at.ahead(kUnits);
    p_at.advance();
    if (flags & kLast) token += gridDim.x;
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
