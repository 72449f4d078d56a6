// The score warpgroup: S = Q K^T, softmax, P.
#pragma once

#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/ptx/wgmma.cuh"
#include "sparsekit/sparse_prefill_sm90/gather.cuh"
#include "sparsekit/sparse_prefill_sm90/softmax.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// All tiles of all items of this block: P and alpha of each tile, and what the softmax ends in.
template <class Arguments>
__device__ __forceinline__ void score_warpgroup(SharedMemory<Arguments>& smem, const Arguments& a,
                                                const Results& results, const Place& place,
                                                float sm_scale) {
  const int warp = place.warp, lane = place.lane, g = place.g, t = place.t, items = place.items;
  setmaxnreg_inc_sync_aligned_u32<kScoreRegs>();
  Position at;
  int tile_parity = 0;
  int p_buffer = 0, p_parity = 1;  // p_free: no phase has ended, so 1 does not wait

  const float scale = sm_scale >= least_scale() ? sm_scale : 1.0f;
  float s[32] = {}, alpha[2] = {};
  unsigned p[16] = {};
  Softmax rows;

  // P and alpha of a tile to the value warpgroups: written, and when that is done, announced.
  const int p_address = shared_address(&smem.p(0)[warp * kMmaK + lane % 16][0]) +
                        (lane / 16 ^ lane % 8) * kPieceBytes;
  const auto await_p_free = [&] {
    wait(smem.p_free, p_parity);
    p_parity ^= 1;
  };
  const auto write_p = [&] {
    if (kPBuffers == 1) await_p_free();
    if (t < 2) smem.alpha[p_buffer][warp * kMmaK + t * 8 + g] = t == 0 ? alpha[0] : alpha[1];
    // All addresses first: computed where a store has just read, each would wait for it.
    const unsigned first = anew(p_address) + p_buffer * kChunkBytes;
    unsigned address[kBlockK / kMmaK];
#pragma unroll
    for (int j = 0; j < kBlockK / kMmaK; ++j) address[j] = first ^ 2 * j * kPieceBytes;
#pragma unroll
    for (int j = 0; j < kBlockK / kMmaK; ++j) {
      const unsigned part[4] = {p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]};
      stmatrix_sync_aligned_m8n8_x4_shared_b16(address[j], part);
    }
  };
  const auto announce_p = [&] {
    if (kPBuffers == 1) {
      fence_proxy_async_shared_cta();
    } else {
      await_p_free();  // of the buffer that the next P takes
      p_buffer ^= 1;
    }
    arrive(smem.p_full);
  };

  // P of the tile before, in the midst of Q K^T.
  const auto before_chunk = [&](int chunk, int tile) {
    const bool stores = kPBuffers == 1 && chunk == kStoreChunk;
    const bool announces = chunk == kAnnounceChunk;
    if (stores && tile > 0) write_p();
    if (announces && tile > 0) announce_p();
    if (stores || announces) wgmma_fence_sync_aligned();
  };

  // Waits for what Q K^T needs beside the ring.
  const auto late = [&](int tile, int number) {
    if (tile == 0) wait(smem.q_full, number & 1);
    if (kHasRope) wait(smem.rope_full, tile_parity);
    if (kHasRope || tile == 0) fence_copies();
    wgmma_fence_sync_aligned();
  };

  // Q from its slot to registers.
  unsigned q_reg[kQRegChunks][kSteps][4];
  const auto read_q = [&](int number) {
    // Read anew: kept over the loop, what hangs on it would crowd out Q.
    const unsigned lane_now = tid_x() % static_cast<unsigned>(kWarp);
    const unsigned first = (warp * kMmaK + lane_now % 16) * kLineBytes;
    wait(smem.full[at.slot], at.phase());
#pragma unroll
    for (int c = 0; c < kQRegChunks; ++c) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        ldmatrix_sync_aligned_m8n8_x4_shared_b16(
            q_reg[c][k], shared_address(&smem.ring[at.slot][c][0][0]) + first +
                             ((2 * k + lane_now / 16) ^ lane_now % 8) * kPieceBytes);
      }
    }
    arrive(smem.q_read[number % kQReads]);
    at.advance();
  };

  read_q(0);
#pragma unroll 1
  for (int item = blockIdx.x, number = 0; item < items; item += gridDim.x, ++number) {
    rows.reset();
    const int tiles = tiles_of(length_of(smem, a, number));

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      // S = Q K^T: what comes late last.
      const unsigned long long k_desc =
          matrix_descriptor_128b(shared_address(&smem.ring[at.slot][0][0][0]), 1, kAtomBytes);
      const unsigned long long q_desc =
          matrix_descriptor_128b(shared_address(&smem.q[0][0][0]), 1, kAtomBytes);
      if (kSwapSlots && tile == 0 && number > 0) at.turn();
      wait(smem.full[at.slot], at.phase());
      fence_copies();
      wgmma_fence_sync_aligned();
#pragma unroll
      for (int c = 0; c < kTileChunks; ++c) {
        before_chunk(c, tile);
        if (c == kQRegChunks) late(tile, number);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const unsigned long long b = k_desc + (c * kChunkBytes + k * kMmaKBytes) / 16;
          const int accumulate = c + k > 0;
          if (c < kQRegChunks) {
            wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16_registers(
                s, q_reg[c < kQRegChunks ? c : 0][k], b, accumulate);
          } else {
            wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
                s, q_desc + ((c - kQRegChunks) * kChunkBytes + k * kMmaKBytes) / 16, b, accumulate);
          }
        }
      }
      if (kHasRope) {
        before_chunk(kTileChunks, tile);
        const unsigned long long rope_desc =
            matrix_descriptor_128b(shared_address(&smem.rope()[0][0]), 1, kAtomBytes);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
              s, q_desc + ((kQSharedChunks - 1) * kChunkBytes + k * kMmaKBytes) / 16,
              rope_desc + k * kMmaKBytes / 16, 1);
        }
      }
      wgmma_commit_group_sync_aligned();
      if (kAnnounceChunk == kQkChunks && tile > 0) announce_p();

      const typename Arguments::Row* listed = &smem.rows[at.plan][tid_x() % kWarp];
      const unsigned listed_low = __ballot_sync(0xffffffff, listed[0] != Arguments::kUnlisted);
      const unsigned listed_high = __ballot_sync(0xffffffff, listed[kWarp] != Arguments::kUnlisted);
      wgmma_wait_group_sync_aligned<0>();
      if (kHasRope && tiles > 1) arrive(smem.s_done);
      at.advance();
      tile_parity ^= 1;

      if (kSoftmax) {
        if (scale != sm_scale) {  // it is tiny, not positive or not a number
#pragma unroll
          for (int e = 0; e < 32; ++e) s[e] *= sm_scale;
        }
        rows.tile(s, p, alpha, listed_low, listed_high, scale);
      } else {
#pragma unroll
        for (int e = 0; e < 32; e += 2) p[e / 2] = cvt_rn_bf16x2_f32(s[e + 1], s[e]);
        alpha[0] = alpha[1] = 1.0f;
      }
      if (kPBuffers == 2) write_p();
    }
    const bool more = item + static_cast<int>(gridDim.x) < items;
    if (kPBuffers == 1) {
      if (more) read_q(number + 1);
      write_p();
      announce_p();
    } else {
      fence_proxy_async_shared_cta();
      announce_p();
      if (more) read_q(number + 1);
    }

    // The end of the item.
    const typename Arguments::Item where = smem.item[number % kItemSlots];
    const int first_head = where.first_head;
    const long long first_row = static_cast<long long>(where.token) * a.h_q + first_head;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows.sum[r], poison = rows.poison[r];
      sum += __shfl_xor_sync(0xffffffff, sum, 1);
      sum += __shfl_xor_sync(0xffffffff, sum, 2);
      poison += __shfl_xor_sync(0xffffffff, poison, 1);
      poison += __shfl_xor_sync(0xffffffff, poison, 2);
      const bool empty = sum == 0.0f && poison == 0.0f;
      const int head = warp * kMmaK + r * 8 + g;
      if (t == 0) {
        const float ref = rows.ref[r] * scale, max = rows.max[r] * scale;
        if (kPartColumns) {
          const float max_logit = rows.max[r] == masked() ? -infinity() : max;
          if (first_head + head < a.h_q) {
            results.part_end[results.part_row(a, item, first_head + head)] =
                make_float4(max_logit, ref, sum, poison);
          }
          continue;
        }
        smem.end_of_row[number % 2][head] = make_float2(ref, sum + poison);
        if (first_head + head < a.h_q) {
          const float log_sum = max == infinity() ? max : ref + logf(sum);
          if (Arguments::kHasMaxLogits) {
            results.max_logits[first_row + head] = rows.max[r] == masked() ? -infinity() : max;
          }
          if (Arguments::kHasMaxLogits || results.lse != nullptr) {
            results.lse[first_row + head] = empty ? infinity() : log_sum;
          }
        }
      }
    }
    if (!kPartColumns) arrive(smem.end_full[number % 2]);
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
