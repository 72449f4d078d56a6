// Stores to shared memory (PTX ISA "Data Movement and Conversion Instructions: st").
#pragma once

namespace sparsekit::ptx {

/// st.shared.v4.b32 (PTX ISA "st"): 16 bytes.
__device__ __forceinline__ void st_shared_v4_b32(unsigned dst_shared, const unsigned (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst_shared), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace sparsekit::ptx
