// Named barriers of a block (PTX ISA "Parallel Synchronization and Communication Instructions: bar,
// barrier").
#pragma once

namespace sparsekit::ptx {

/// bar.sync (PTX ISA "bar"): waits for `threads` arrivals; whoever takes part executes this very
/// instruction.
__device__ __forceinline__ void bar_sync(unsigned barrier, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// barrier.sync (PTX ISA "barrier"): the same, also between warps that stand at different
/// instructions.
__device__ __forceinline__ void barrier_sync(unsigned barrier, unsigned threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// bar.red.or.pred (PTX ISA "bar"): bar.sync that tells whether any of the threads says so.
__device__ __forceinline__ bool bar_red_or_pred(unsigned barrier, unsigned threads, bool says) {
  unsigned said;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(said)
      : "r"(barrier), "r"(threads), "r"(static_cast<unsigned>(says))
      : "memory");
  return said != 0;
}

}  // namespace sparsekit::ptx
