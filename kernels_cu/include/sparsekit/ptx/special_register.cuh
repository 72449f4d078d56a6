// Special registers (PTX ISA "Special Registers").
#pragma once

namespace sparsekit::ptx {

/// %tid.x (PTX ISA "Special Registers: %tid"), read where it stands: the compiler neither keeps nor hoists it.
__device__ __forceinline__ int tid_x() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

}  // namespace sparsekit::ptx
