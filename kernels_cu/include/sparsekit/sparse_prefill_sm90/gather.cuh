// What is loaded next, and the copies.
#pragma once

#include "sparsekit/ptx/cp_async_bulk.cuh"
#include "sparsekit/ptx/special_register.cuh"
#include "sparsekit/sparse_prefill_sm90/items.cuh"

namespace sparsekit::sparse_prefill_sm90 {

/// The slot of the ring behind or, with step 2, before `slot`.
__device__ __forceinline__ int next_slot(int slot, int step) {
  const int next = slot + step;
  return next < kSlots ? next : next - kSlots;
}

/// A position in the ring.
///
/// With kSwapSlots the tile that comes third after an item's last one takes the slot of the next Q,
/// which is free first, and the position after it that of the last tile: from an item's first tile
/// on, but the block's first item's, slots follow each other in the other direction.
struct Position {
  int slot = 0;
  int parity =
      0;  // of the phase of full that ends when it has landed; with kSwapSlots a bit a slot
  int plan = 0;
  int step = 1;
  __device__ __forceinline__ int phase() const { return kSwapSlots ? parity >> slot & 1 : parity; }
  __device__ __forceinline__ void turn() { step = kSlots - step; }
  __device__ __forceinline__ void advance() {
    plan = (plan + 1) % kPlans;
    if (kSwapSlots) {
      parity ^= 1 << slot, slot = next_slot(slot, step);
    } else if (++slot == kSlots) {
      slot = 0, parity ^= 1;
    }
  }
};

/// Q of an item into L2, if its heads adjoin.
template <class Arguments>
__device__ __forceinline__ void prefetch_q(const Arguments& a, typename Arguments::Item at) {
  if (a.q_head_stride_elems != kDQk) return;
  const int heads = min(a.h_q - at.first_head, static_cast<int>(kHeads));
  cp_async_bulk_prefetch_l2_global(a.q + a.q_offset_elems(at) + at.first_head * kDQk,
                                   heads * kDQk * sizeof(bf16));
}

/// What a position is and where its rows are, found by one warp, a position a call. Lane l sees to
/// the rows l and l + 32 of a tile, and holds their indices a position ahead: index.
template <class Arguments>
__device__ __forceinline__ void plan_next(SharedMemory<Arguments>& smem, const Arguments& a,
                                          int plan, int lane, int (&index)[kHalf]) {
  Course course = smem.course;
  const int item = item_of(course.number);
  int first_column = 0;  // of the tile that comes next
  if (item >= a.items()) {
    if (lane == 0) smem.plan[plan] = kNone;
    return;
  }
  if (course.left == kAtQ) {
    if (lane == 0) {
      const typename Arguments::Item at = a.where(item);
      smem.plan[plan] = course.number;
      smem.item[course.number % kItemSlots] = at;
      if (kPrefetchQ) prefetch_q(a, at);
    }
    course.left = length_of(smem, a, course.number);
    course.column = a.token_row(item) + a.part(item) * kPartColumns;
    first_column = a.part(item) * kPartColumns;
  } else {
    if (lane == 0) smem.plan[plan] = kTile;
    if (Arguments::kNumbersColumns) first_column = smem.first_column;
#pragma unroll
    for (int h = 0; h < kHalf; ++h) {
      const int column = h * kWarp + lane;
      smem.rows[plan][column] = a.row(index[h], first_column + column);
    }
    course.left -= kBlockK, course.column += kBlockK, first_column += kBlockK;
    if (course.left <= 0) course.left = kAtQ, ++course.number;
  }
#pragma unroll
  for (int h = 0; h < kHalf; ++h) {
    const int column = h * kWarp + lane;
    index[h] = column < course.left ? __ldg(course.column + column) : -1;
  }
  __syncwarp();
  if (lane == 0) smem.course = course;
  if (Arguments::kNumbersColumns && lane == 0) smem.first_column = first_column;
  __syncwarp();
}

/// What a value warpgroup loads: its half of the columns of every position, its half of the rows of
/// the rope chunks and of the shared chunks of Q. Thread t copies piece t % 8 of the rows t / 8,
/// t / 8 + 16, ...
template <class Arguments>
struct Gather {
  using Row = typename Arguments::Row;
  SharedMemory<Arguments>& smem;
  const Arguments& a;
  int group, line, piece;  // line: thread / 8, piece: thread % 8

  /// The same, of this thread read anew: what hangs on it is not kept, where it would crowd out O.
  __device__ __forceinline__ Gather here() const {
    const unsigned all = tid_x(), thread = all % kGroup;
    return {smem, a, static_cast<int>(all / kGroup) - 1, static_cast<int>(thread / kPiece),
            static_cast<int>(thread % kPiece)};
  }

  /// kChunks chunks of row r * 16 + line, from src.
  template <int kChunks>
  __device__ __forceinline__ void copy_row(unsigned chunks, int r, const bf16* src,
                                           bool valid) const {
    const unsigned dst = chunks + line * kLineBytes + (piece ^ line % 8) * kPieceBytes +
                         r * kGatherRows * kLineBytes;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) copy_piece(dst + c * kChunkBytes, src + c * kChunk, valid);
  }

  /// Where the rows r * 16 + line of a planned tile are, from step r = first_step on.
  template <int kCount>
  __device__ __forceinline__ void read_rows(Row (&row)[kCount], int plan, int first_step) const {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      row[s] = smem.rows[plan][(first_step + s) * kGatherRows + line];
    }
  }

  /// Chunks of those rows, from `column` of kv.
  template <int kChunks, int kCount>
  __device__ __forceinline__ void copy_tile(unsigned chunks, int column, const Row (&row)[kCount],
                                            int first_step) const {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      const bool valid = row[s] != Arguments::kUnlisted;
      const unsigned long long at = valid ? row[s] : 0;
      copy_row<kChunks>(chunks, first_step + s, a.element(at, column + piece * kPiece), valid);
    }
  }

  /// Chunks of heads of item `number`, from `column` of Q.
  template <int kChunks>
  __device__ __forceinline__ void copy_q(unsigned chunks, int number, int column, int first_step,
                                         int steps) const {
    const typename Arguments::Item item = smem.item[number % kItemSlots];
    const int first = item.first_head;
    const bf16* src =
        a.q + a.q_offset_elems(item) + first * a.q_head_stride_elems + column + piece * kPiece;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      const int r = first_step + s, head = r * kGatherRows + line;
      const bool valid = first + head < a.h_q;
      copy_row<kChunks>(chunks, r, src + (valid ? head : 0) * a.q_head_stride_elems, valid);
    }
  }

  /// A planned position, whose rows have been read, into that slot.
  __device__ __forceinline__ void load(int what, const Row (&row)[kRowSteps], int slot) {
    if (what == kNone) return;
    const unsigned chunks = shared_address(&smem.ring[slot][group * kGroupChunks]);
    const int column = group * kGroupChunks * kChunk;
    // Addresses of rows take the registers that this thread's place would.
    const Gather by = sizeof(Row) > 4 ? here() : *this;
    if (what == kTile) {
      by.template copy_tile<kGroupChunks>(chunks, column, row, 0);
    } else {
      by.template copy_q<kGroupChunks>(chunks, what, column, 0, kRowSteps);
    }
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.full[slot]));
    __syncwarp();
    mbarrier_arrive_shared_cta_b64(
        shared_address(&smem.full[slot]),
        threadIdx.x - kGroup < kArrivingLanes);  // of the warp that plans
  }

  __device__ __forceinline__ void load(int plan, int slot) {
    Row row[kRowSteps];
    read_rows(row, plan, 0);
    load(smem.plan[plan], row, slot);
  }

  /// The rope chunk of a planned position if it is a tile, once Q K^T of the tile before is done.
  __device__ __forceinline__ void load_rope(int what, const Row (&row)[kRopeRowSteps]) {
    if (!kHasRope || what != kTile) return;
    here().copy_tile<1>(shared_address(&smem.rope()), kDV, row, group * kRopeRowSteps);
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.rope_full));
  }

  __device__ __forceinline__ void load_rope(int plan) {
    Row row[kRopeRowSteps];
    read_rows(row, plan, group * kRopeRowSteps);
    load_rope(smem.plan[plan], row);
  }

  /// The chunks of Q that stay in shared memory, once Q K^T of all items before is done.
  __device__ __forceinline__ void load_q_chunks(int number) {
    const Gather by = here();
    by.template copy_q<kQSharedChunks>(shared_address(&smem.q), number, kQRegChunks * kChunk,
                                       by.group * kRopeRowSteps, kRopeRowSteps);
    cp_async_mbarrier_arrive_noinc_shared_cta_b64(shared_address(&smem.q_full));
  }
};

}  // namespace sparsekit::sparse_prefill_sm90
