// The gather warps: rows of kv, and Q, to shared memory.
#pragma once

#include "primitives.cuh"

namespace sparsekit::sparse_prefill_sm90_few {

/// The tiles and Q of all tokens of this block.
__device__ __forceinline__ void gather_tokens(SharedMemory& smem, const Arguments& a, int thread) {
  // Thread t copies piece t % 8 of the rows t / 8, t / 8 + 8, ...
  const int line = thread / kLinePieces, piece = thread % kLinePieces;
  const unsigned ring =
      shared_address(smem.ring) + line * kLineBytes + (piece ^ line % 8) * kPieceBytes;
  const bf16* column = a.kv + piece * kPiece;
  Position<kSlots> at;
  Position<kPlans> plan;
  int q_parity = 1;
#pragma unroll 1
  for (int token = blockIdx.x; token < a.s_q; token += gridDim.x) {
    unsigned flags;
#pragma unroll 1
    do {
      wait(smem.plan_full[plan.slot], plan.parity);
      unsigned row[kRowSteps];
#pragma unroll
      for (int r = 0; r < kRowSteps; r += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(&smem.plan[plan.slot].rows[line][r]);
        row[r] = four.x, row[r + 1] = four.y, row[r + 2] = four.z, row[r + 3] = four.w;
      }
      flags = smem.plan[plan.slot].flags;
      arrive(smem.plan_free[plan.slot]);
      plan.advance();
      const bf16* src[kRowSteps];
#pragma unroll
      for (int r = 0; r < kRowSteps; ++r) {
        const unsigned long long pieces = row[r] != kUnlisted ? row[r] : 0;
        src[r] = column + pieces * kPiece;
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        wait(smem.free[at.slot], at.parity ^ 1);
        const unsigned unit = ring + at.slot * kUnitBytes;
#pragma unroll
        for (int r = 0; r < kRowSteps; ++r) {
#pragma unroll
          for (int c = 0; c < kUnitChunks; ++c) {
            if (kGather || token == static_cast<int>(blockIdx.x)) {
              copy_piece(unit + c * kChunkBytes + r * kLines * kLineBytes,
                         src[r] + column_of(u * kUnitChunks + c), row[r] != kUnlisted);
            }
          }
        }
        cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.full[at.slot]));
        at.advance();
      }
      if (flags & kFirst) {  // Q, behind what does not wait for the token before
        wait(smem.q_free, q_parity);
        q_parity ^= 1;
#pragma unroll 6
        for (int i = 0; i < kQSteps; ++i) {
          const int x = thread + i * kGatherThreads, chunk = x / kQPieces;
          const int head = x / kLinePieces % kHeads;
          const bool valid = head < a.h_q;
          copy_piece(shared_address(smem.q[chunk][head]) + (piece ^ head % 8) * kPieceBytes,
                     a.q + token * a.q_token_stride_elems +
                         (valid ? head : 0) * a.q_head_stride_elems + column_of(chunk) +
                         piece * kPiece,
                     valid);
        }
        cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.q_full));
      }
    } while (!(flags & kLast));
  }
}

}  // namespace sparsekit::sparse_prefill_sm90_few
