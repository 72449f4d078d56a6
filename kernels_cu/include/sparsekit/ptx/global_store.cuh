// Stores to global memory (PTX ISA "Data Movement and Conversion Instructions: st").
#pragma once

namespace sparsekit::ptx {

/// st.global.v4.b32 (PTX ISA "st"): 16 bytes, which the compiler does not take apart.
__device__ __forceinline__ void st_global_v4_b32(void* dst, const unsigned (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(dst), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

}  // namespace sparsekit::ptx
