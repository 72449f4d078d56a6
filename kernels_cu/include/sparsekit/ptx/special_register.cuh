// Special registers (PTX ISA "Special Registers"), read where the call stands: the compiler neither
// keeps nor hoists them.
#pragma once

namespace sparsekit::ptx {

/// %tid.x (PTX ISA "Special Registers: %tid"): the thread in its block.
__device__ __forceinline__ int tid_x() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

/// %ctaid.x (PTX ISA "Special Registers: %ctaid"): the block in the grid.
__device__ __forceinline__ int ctaid_x() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

}  // namespace sparsekit::ptx
