// Warp-wide reductions (PTX ISA "Parallel Synchronization and Communication Instructions: redux"),
// sm_80 and later.
#pragma once

namespace sparsekit::ptx {

/// redux.sync.max.s32 (PTX ISA "redux.sync"): the maximum over all 32 lanes, in every lane.
__device__ __forceinline__ int redux_sync_max_s32(int x) {
  int y;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace sparsekit::ptx
