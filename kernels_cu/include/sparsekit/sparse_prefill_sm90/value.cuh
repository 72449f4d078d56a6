// The value warpgroups: O += P V, and the gather of everything.
#pragma once

#include "sparsekit/ptx/barrier.cuh"
#include "sparsekit/ptx/setmaxnreg.cuh"
#include "sparsekit/ptx/wgmma.cuh"
#include "sparsekit/sparse_prefill_sm90/gather.cuh"
#include "sparsekit/sparse_prefill_sm90/out.cuh"
#include "sparsekit/sparse_prefill_sm90/softmax.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// All tiles of all items of this block for half of the columns.
template <class Arguments>
__device__ __forceinline__ void value_warpgroup(SharedMemory<Arguments>& smem, const Arguments& a,
                                                const Results& results, const Place& place) {
  using Row = typename Arguments::Row;
  const int thread = place.thread, warp = place.warp, lane = place.lane, g = place.g;
  const int items = place.items;
  setmaxnreg_dec_sync_aligned_u32<kValueRegs>();
  const int group = place.warpgroup - 1, value_warp = group * kGroupWarps + warp;
  Gather<Arguments> gather = {smem, a, group, thread / kPiece, thread % kPiece};
  int index[kHalf] = {};  // of the warp that plans
  const bool plans = value_warp == 0;
  find_lengths(smem, a, 0, value_warp, lane);
  bar_sync(kValues, kValueThreads);
  if (plans) {
#pragma unroll 1
    for (int i = 0; i < kPlans; ++i) plan_next(smem, a, i, lane, index);
  }
  bar_sync(kValues, kValueThreads);
  Row first[kRowSteps] = {};
  gather.load(0, first, 0);  // Q of item 0
  gather.read_rows(first, 1, 0);
  gather.load(kTile, first, 1);
  gather.load_q_chunks(0);
  gather.load_rope(1);
  gather.load(2, 2);

  int slot = 0, plan = 0;  // of the position that is read; three on, one comes into its slot
  int p_buffer = 0, p_parity = 0, s_parity = 0;
  const auto wait_q_read = [&](int number) {
    wait(smem.q_read[number % kQReads], number / kQReads & 1);
  };
  const auto wait_s_done = [&] {
    wait(smem.s_done, s_parity);
    s_parity ^= 1;
  };
  const auto advance = [&](int step) {
    slot = kSwapSlots ? next_slot(slot, step) : slot + 1 == kSlots ? 0 : slot + 1;
    plan = (plan + 1) % kPlans;
  };
  float o[128] = {};
  const auto end_item = [&](int number) {
    const typename Arguments::Item item = smem.item[number % kItemSlots];
    const int lane_now = tid_x() % kWarp;  // read anew: kept over the loop, it would crowd out O
    const int head = warp * kMmaK + lane_now / 4;
    const int column = group * (kDV / kValueGroups);
    if (kPartColumns) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (item.first_head + head + r * 8 >= a.h_q) break;
        const long long row = results.part_row(a, item_of(number), item.first_head + head + r * 8);
        store_part(o, results.part_out + row * kDV + column, r, lane_now % 4);
      }
      return;
    }
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int of = item.first_head + head + r * 8;
      factor[r] =
          results.attn_sink != nullptr && of < a.h_q ? __ldg(results.attn_sink + of) : -infinity();
    }
    wait(smem.end_full[number % 2], number / 2 & 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 end = smem.end_of_row[number % 2][head + r * 8];
      factor[r] = end.y == 0.0f ? 0.0f : output_scale(end.x, end.y, factor[r]);
    }
    const int first_head = item.first_head + warp * kMmaK;
    const long long row = static_cast<long long>(item.token) * a.h_q + first_head;
    store_out(o, factor, results.out + row * kDV + column, a.h_q - first_head, lane_now);
  };

#pragma unroll 1
  for (int number = 0;; ++number) {
    // At Q, whose slot is free once it stands in registers.
    const bool more = item_of(number) < items;
    if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
    bar_sync(kValues, kValueThreads);
    int tiles = 0;  // to come
    if (more) {
      tiles = tiles_of(length_of(smem, a, number));
      if (kHasRope && tiles > 1) {
        wait_s_done();
        gather.load_rope((plan + 2) % kPlans);
      }
      if (!kSwapSlots || number == 0) wait_q_read(number);
    }
    const int step = 1 + (number & 1);  // from slot to slot, see Position
    gather.load((plan + 3) % kPlans, kSwapSlots && number > 0 ? next_slot(slot, step) : slot);
    advance(number > 0 ? kSlots - step : step);
    if (number > 0) {
      end_item(number - 1);
      if (!more) break;
    }
    if (number % kBatch == 0) {
      find_lengths(smem, a, number + kBatch, value_warp, tid_x() % kWarp);
    }
    int accumulate = 0;  // the first P V of an item begins O anew

#pragma unroll 1
    for (; tiles > 0; --tiles) {
      wait(smem.p_full, p_parity);
      p_parity ^= 1;
      // Read ahead of P V, under which shared memory is slow.
      const int rope_what = smem.plan[(plan + 2) % kPlans];
      Row rope_row[kRopeRowSteps];
      gather.read_rows(rope_row, (plan + 2) % kPlans, group * kRopeRowSteps);
      const float* factors = &smem.alpha[p_buffer][warp * kMmaK + g];
      const float alpha[2] = {factors[0], factors[8]};
      // A factor of exactly 1 changes no bit.
      if (__any_sync(0xffffffff, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int e = 0; e < 128; ++e) o[e] *= alpha[e / 2 % 2];
      }
      // No proxy fence: the score warpgroup's, between the copies and p_full, serves P and V.
      const unsigned long long p_desc =
          matrix_descriptor_128b(shared_address(&smem.p(p_buffer)[0][0]), 1, kAtomBytes);
      const unsigned long long v_desc = matrix_descriptor_128b(
          shared_address(&smem.ring[slot][group * kGroupChunks][0][0]), kChunkBytes, kAtomBytes);
      wgmma_fence_sync_aligned();
#pragma unroll
      for (int k = 0; k < kBlockK / kMmaK; ++k) {
        wgmma_mma_async_sync_aligned_m64n256k16_f32_bf16_bf16_b_transposed(
            o, p_desc + k * kMmaKBytes / 16, v_desc + k * kMmaK * kLineBytes / 16,
            k > 0 ? 1 : accumulate);
      }
      wgmma_commit_group_sync_aligned();
      accumulate = 1;
      if (kHasRope && tiles > 1) wait_s_done();
      gather.load_rope(rope_what, rope_row);
      if (plans) plan_next(smem, a, plan, tid_x() % kWarp, index);
      if (tiles == 1 && item_of(number + 1) < items) gather.load_q_chunks(number + 1);
      const int what = smem.plan[(plan + 3) % kPlans];
      Row row[kRowSteps];
      gather.read_rows(row, (plan + 3) % kPlans, 0);
      // Beside P V of the last tile into the slot of the next Q.
      const bool swaps = kSwapSlots && tiles == 1;
      if (swaps && item_of(number + 1) < items) {
        wait_q_read(number + 1);
        gather.load(what, row, next_slot(slot, step));
      }
      wgmma_wait_group_sync_aligned<0>();
      arrive(smem.p_free);
      if (kPBuffers == 2) p_buffer ^= 1;
      if (!swaps) gather.load(what, row, slot);
      advance(step);
    }
  }
}

}  // namespace sparsekit::sparse_prefill_sm90
