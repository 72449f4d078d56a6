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

}  // namespace sparsekit::ptx
