// Warp-wide instructions (PTX ISA "Parallel Synchronization and Communication Instructions: redux,
// elect"), sm_80 and later, elect sm_90 and later.
#pragma once

namespace sparsekit::ptx {

/// redux.sync.max.s32 (PTX ISA "redux.sync"): the maximum over all 32 lanes, in every lane.
__device__ __forceinline__ int redux_sync_max_s32(int x) {
  int y;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

/// elect.sync (PTX ISA "elect.sync"): true in one lane of the warp, always the same.
__device__ __forceinline__ bool elect_sync() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace sparsekit::ptx
