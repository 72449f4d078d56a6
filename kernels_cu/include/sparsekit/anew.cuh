// Values as the compiler is to see them.
#pragma once

namespace sparsekit {

/// x, of which the compiler knows nothing: what follows from it is computed where it stands, not
/// kept in registers over a loop.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// The same value, known to the compiler as equal in all lanes, so that one register may hold it.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

}  // namespace sparsekit
