// Loads from shared memory (PTX ISA "Data Movement and Conversion Instructions: ld").
#pragma once

namespace sparsekit::ptx {

/// ld.shared.v4.b32 (PTX ISA "ld"): 16 bytes.
__device__ __forceinline__ void ld_shared_v4_b32(unsigned (&d)[4], unsigned src_shared) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(src_shared)
               : "memory");
}

}  // namespace sparsekit::ptx
