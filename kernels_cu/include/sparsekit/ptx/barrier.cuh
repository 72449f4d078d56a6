// Named barriers of a block (PTX ISA "Parallel Synchronization and Communication Instructions: bar, barrier").
#pragma once

namespace sparsekit::ptx {

/// bar.sync (PTX ISA "bar"): arrives and waits for `threads` arrivals. Every lane of a warp takes part.
__device__ __forceinline__ void bar_sync(unsigned barrier, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// bar.arrive (PTX ISA "bar"): arrives and goes on; what this thread wrote before is seen by those that bar.sync.
__device__ __forceinline__ void bar_arrive(unsigned barrier, unsigned threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace sparsekit::ptx
