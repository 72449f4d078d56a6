// Sparse MLA prefill on Hopper: wgmma and cp.async (sm_90a).
//
// For one token and one head, over its listed rows k: 0 <= idx_k < s_kv and k < topk_length.
//   x_k = sm_scale <q, kv[idx_k]>        max_logits = max x_k        lse = ln sum_k exp x_k
//   out = sum_k exp(x_k - lse') v_k      v_k = kv[idx_k][0:512]      lse' = ln(exp lse + exp sink)
// No listed row: out 0, max_logits -inf, lse +inf. Products accumulate in fp32; l = sum exp is
// summed from unrounded fp32 weights, the weights that meet V are rounded to bf16.
//
// A block walks items, each a token and 64 of its heads, and for each item tiles of 64 rows.
//   score warpgroup      S = Q K^T, softmax, P and alpha to shared memory
//   value warpgroups (2) O += P V for 256 of the 512 columns each, and the gather of everything
// The ring of three slots holds, in order, Q and the tiles of an item, then those of the next: a
// value warpgroup loads its own half of the columns, so it waits for no one to reuse a slot.
// README.md draws the schedule.

#include "gather.cuh"
#include "out.cuh"
#include "softmax.cuh"
#include "sparsekit/launch_facts.cuh"
#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/warp_matrix.cuh"
#include "sparsekit/ptx/wgmma.cuh"

namespace sparsekit::sparse_prefill_sm90 {

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_fwd, sizeof(SharedMemory));

// Grid: x = as many blocks as run at once; block b takes the items b, b + grid, ... Item i is token
// i / ceil(h_q / 64) and its (i % ceil(h_q / 64))-th 64 heads.
extern "C" __global__ void __launch_bounds__(kThreads, 1) sparse_prefill_sm90_fwd(
    const bf16* __restrict__ q, const bf16* __restrict__ kv, const int* __restrict__ indices,
    const float* __restrict__ attn_sink,  // null: no sink
    const int* __restrict__ topk_length, bf16* __restrict__ out, float* __restrict__ max_logits,
    float* __restrict__ lse, long long q_token_stride_elems, long long q_head_stride_elems,
    long long kv_row_stride_elems, long long indices_row_stride_elems, int s_q, int h_q, int s_kv,
    int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  SharedMemory& smem = *reinterpret_cast<SharedMemory*>(dynamic_smem);
  const Arguments a = {q,
                       kv,
                       indices,
                       topk_length,
                       q_token_stride_elems,
                       q_head_stride_elems,
                       static_cast<unsigned>(kv_row_stride_elems / kPiece),
                       indices_row_stride_elems,
                       s_q,
                       h_q,
                       s_kv,
                       topk};
  const int warpgroup = uniform(threadIdx.x / kGroup);
  const int thread = threadIdx.x % kGroup, warp = uniform(thread / kWarp);
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int items = a.items();

  if (threadIdx.x == 0) {
    smem.course = {0, kAtQ, nullptr};
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.full[s]), kValueThreads + kArrivingLanes);
    }
    mbarrier_init_shared_cta_b64(shared_address(&smem.rope_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.q_full), kValueThreads);
    mbarrier_init_shared_cta_b64(shared_address(&smem.s_done), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_full), kGroupWarps * kArrivingLanes);
    mbarrier_init_shared_cta_b64(shared_address(&smem.p_free), kValueWarps * kArrivingLanes);
    for (int i = 0; i < kQReads; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.q_read[i]), kGroupWarps * kArrivingLanes);
    }
    for (int i = 0; i < 2; ++i) {
      mbarrier_init_shared_cta_b64(shared_address(&smem.end_full[i]), kGroupWarps * kArrivingLanes);
    }
  }
  if (threadIdx.x < kPlans * kBlockK) smem.rows[0][threadIdx.x] = kUnlisted;
  __syncthreads();

  if (warpgroup == 0) {
    // -------------------------------------------------------------- score warpgroup
    setmaxnreg_inc_sync_aligned_u32<kScoreRegs>();
    const int matrix_row = warp * kMmaK + lane % 16;
    const unsigned matrix_offset = matrix_row * kLineBytes, matrix_piece = lane / 16;
    const unsigned row_swizzle = lane % 8;
    Position at;
    int tile_parity = 0, p_parity = 1;  // p_free: no phase has ended, so 1 does not wait

    const float scale = sm_scale >= least_scale() ? sm_scale : 1.0f;
    float s[32] = {}, alpha[2] = {};
    unsigned p[16] = {};
    Softmax rows;

    // P and alpha of a tile to the value warpgroups.
    const auto store_p = [&] {
      wait(smem.p_free, p_parity);
#pragma unroll
      for (int j = 0; j < kBlockK / kMmaK; ++j) {
        const unsigned part[4] = {p[4 * j], p[4 * j + 1], p[4 * j + 2], p[4 * j + 3]};
        stmatrix_sync_aligned_m8n8_x4_shared_b16(
            shared_address(&smem.p[0][0]) + matrix_offset +
                ((2 * j + matrix_piece) ^ row_swizzle) * kPieceBytes,
            part);
      }
      if (t < 2) smem.alpha[warp * kMmaK + t * 8 + g] = t == 0 ? alpha[0] : alpha[1];
      fence_proxy_async_shared_cta();
      arrive(smem.p_full);
      p_parity ^= 1;
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
      wait(smem.full[at.slot], at.parity);
#pragma unroll
      for (int c = 0; c < kQRegChunks; ++c) {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          ldmatrix_sync_aligned_m8n8_x4_shared_b16(
              q_reg[c][k], shared_address(&smem.ring[at.slot][c][0][0]) + matrix_offset +
                               ((2 * k + matrix_piece) ^ row_swizzle) * kPieceBytes);
        }
      }
      arrive(smem.q_read[number % kQReads]);
      at.advance();
    };

    read_q(0);
#pragma unroll 1
    for (int item = blockIdx.x, number = 0; item < items; item += gridDim.x, ++number) {
      rows.reset();
      const int tiles = tiles_of(length_of(smem, number));

#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        // S = Q K^T: what comes late last.
        const unsigned long long k_desc =
            matrix_descriptor_128b(shared_address(&smem.ring[at.slot][0][0][0]), 1, kAtomBytes);
        const unsigned long long q_desc =
            matrix_descriptor_128b(shared_address(&smem.q[0][0][0]), 1, kAtomBytes);
        wait(smem.full[at.slot], at.parity);
        if (!kSingleFence) fence_copies();
        if (!kSingleFence) wgmma_fence_sync_aligned();
        if (kSingleFence) late(tile, number);
#pragma unroll
        for (int c = 0; c < kTileChunks; ++c) {
          if (c == kStoreChunk) {
            if (tile > 0) store_p();
            wgmma_fence_sync_aligned();
          }
          if (c == kQRegChunks && !kSingleFence) late(tile, number);
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            const unsigned long long b = k_desc + (c * kChunkBytes + k * kMmaKBytes) / 16;
            const int accumulate = c + k > 0;
            if (c < kQRegChunks) {
              wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16_registers(
                  s, q_reg[c < kQRegChunks ? c : 0][k], b, accumulate);
            } else {
              wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
                  s, q_desc + ((c - kQRegChunks) * kChunkBytes + k * kMmaKBytes) / 16, b,
                  accumulate);
            }
          }
        }
        if (kHasRope) {
          const unsigned long long rope_desc =
              matrix_descriptor_128b(shared_address(&smem.rope[0][0]), 1, kAtomBytes);
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
            wgmma_mma_async_sync_aligned_m64n64k16_f32_bf16_bf16(
                s, q_desc + ((kQSharedChunks - 1) * kChunkBytes + k * kMmaKBytes) / 16,
                rope_desc + k * kMmaKBytes / 16, 1);
          }
        }
        wgmma_commit_group_sync_aligned();

        if (kStoreChunk >= kTileChunks && tile > 0) store_p();
        const unsigned* listed = &smem.rows[at.plan][lane];
        const unsigned listed_low = __ballot_sync(0xffffffff, listed[0] != kUnlisted);
        const unsigned listed_high = __ballot_sync(0xffffffff, listed[kWarp] != kUnlisted);
        wgmma_wait_group_sync_aligned<0>();
        if (tile > 0 || (kHasRope && tiles > 1)) arrive(smem.s_done);
        at.advance();
        tile_parity ^= 1;

        if (kSoftmax) {
          if (scale != sm_scale) {  // it is tiny, not positive or not a number
#pragma unroll
            for (int e = 0; e < 32; ++e) s[e] *= sm_scale;
          }
          rows.tile(s, p, alpha, listed_low, listed_high, t, scale);
        } else {
#pragma unroll
          for (int e = 0; e < 32; e += 2) p[e / 2] = cvt_rn_bf16x2_f32(s[e + 1], s[e]);
          alpha[0] = alpha[1] = 1.0f;
        }
      }
      if (item + static_cast<int>(gridDim.x) < items) read_q(number + 1);
      store_p();

      // The end of the item.
      const int first_head = a.first_head(item);
      const long long first_row = static_cast<long long>(a.token(item)) * h_q + first_head;
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
          smem.end_of_row[number % 2][head] = make_float2(ref, sum + poison);
          if (first_head + head < h_q) {
            const float log_sum = max == infinity() ? max : ref + logf(sum);
            max_logits[first_row + head] = rows.max[r] == masked() ? -infinity() : max;
            lse[first_row + head] = empty ? infinity() : log_sum;
          }
        }
      }
      arrive(smem.end_full[number % 2]);
    }
  } else {
    // -------------------------------------------------------------- value warpgroups
    setmaxnreg_dec_sync_aligned_u32<kValueRegs>();
    const int group = warpgroup - 1, value_warp = group * kGroupWarps + warp;
    Gather gather = {smem, a, group, thread / kPiece, thread % kPiece};
    int index[kHalf] = {};  // of the warp that plans
    const bool plans = value_warp == 0;
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) {
      find_length(smem, a, i, value_warp, lane);
    }
    bar_sync(kValueGroup, kValueThreads);
    if (plans) {
#pragma unroll 1
      for (int i = 0; i < kPlans; ++i) plan_next(smem, a, i, lane, index);
    }
    bar_sync(kValueGroup, kValueThreads);
    unsigned first[kRowSteps] = {};
    gather.load(0, first, 0);  // Q of item 0
    gather.read_rows(first, 1, 0);
    gather.load(kTile, first, 1);
    gather.load_q_chunks(blockIdx.x);
    gather.load_rope(1);
    gather.load(2, 2);

    int slot = 0, plan = 0;  // of the position that is read; three on, one comes into its slot
    int p_parity = 0, s_parity = 0;
    const auto wait_s_done = [&] {
      wait(smem.s_done, s_parity);
      s_parity ^= 1;
    };
    const auto advance = [&] {
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      plan = (plan + 1) % kPlans;
    };
#pragma unroll 1
    for (int number = 0; item_of(number) < items; ++number) {
      int tiles = tiles_of(length_of(smem, number));  // to come
      // Once Q stands in registers its slot is free.
      if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
      bar_sync(kValueGroup, kValueThreads);
      if (kHasRope && tiles > 1) {
        wait_s_done();
        gather.load_rope((plan + 2) % kPlans);
      }
      wait(smem.q_read[number % kQReads], number / kQReads & 1);
      gather.load((plan + 3) % kPlans, slot);
      advance();
      float o[128];
#pragma unroll
      for (int e = 0; e < 128; ++e) o[e] = 0.0f;

#pragma unroll 1
      for (; tiles > 0; --tiles) {
        wait(smem.p_full, p_parity);
        p_parity ^= 1;
        // Read ahead of P V, under which shared memory is slow.
        const int rope_what = smem.plan[(plan + 2) % kPlans];
        unsigned rope_row[kRopeRowSteps];
        gather.read_rows(rope_row, (plan + 2) % kPlans, group * kRopeRowSteps);
        const float alpha[2] = {smem.alpha[warp * kMmaK + g], smem.alpha[warp * kMmaK + 8 + g]};
        // A factor of exactly 1 changes no bit.
        if (__any_sync(0xffffffff, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
          for (int e = 0; e < 128; ++e) o[e] *= alpha[e / 2 % 2];
        }
        if (kGate && tiles > 1) wait_s_done();
        // No proxy fence: the score warpgroup's, between the copies and p_full, serves P and V.
        const unsigned long long p_desc =
            matrix_descriptor_128b(shared_address(&smem.p[0][0]), 1, kAtomBytes);
        const unsigned long long v_desc = matrix_descriptor_128b(
            shared_address(&smem.ring[slot][group * kGroupChunks][0][0]), kChunkBytes, kAtomBytes);
        wgmma_fence_sync_aligned();
#pragma unroll
        for (int k = 0; k < kBlockK / kMmaK; ++k) {
          wgmma_mma_async_sync_aligned_m64n256k16_f32_bf16_bf16_b_transposed(
              o, p_desc + k * kMmaKBytes / 16, v_desc + k * kMmaK * kLineBytes / 16, 1);
        }
        wgmma_commit_group_sync_aligned();
        if (!kGate && tiles > 1) wait_s_done();
        gather.load_rope(rope_what, rope_row);
        if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
        if (tiles == 1 && item_of(number + 1) < items) gather.load_q_chunks(item_of(number + 1));
        // Once an item, and not at its end if it can be helped.
        if (tiles == 2 || (tiles == 1 && tiles_of(length_of(smem, number)) == 1)) {
          find_length(smem, a, number + kAhead, value_warp, tid_x() % kWarp);
        }
        const int what = smem.plan[(plan + 3) % kPlans];
        unsigned row[kRowSteps];
        gather.read_rows(row, (plan + 3) % kPlans, 0);
        wgmma_wait_group_sync_aligned<0>();
        arrive(smem.p_free);
        gather.load(what, row, slot);
        advance();
      }

      const int item = item_of(number);
      const int end_lane = tid_x() % kWarp;  // read anew: kept over the loop, it would crowd out O
      const int head = warp * kMmaK + end_lane / 4, first_head = a.first_head(item);
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        factor[r] = attn_sink != nullptr && first_head + head + r * 8 < h_q
                        ? __ldg(attn_sink + first_head + head + r * 8)
                        : -infinity();
      }
      wait(smem.end_full[number % 2], number / 2 & 1);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 end = smem.end_of_row[number % 2][head + r * 8];
        factor[r] = end.y == 0.0f ? 0.0f : output_scale(end.x, end.y, factor[r]);
      }
      bf16* out_row =
          out + (static_cast<long long>(a.token(item)) * h_q + first_head + head) * kDV +
          group * (kDV / kValueGroups);
      store_out(o, factor, out_row, h_q - first_head - head, end_lane % 4);
    }
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
