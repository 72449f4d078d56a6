// Values that the compiler is not to look through.
#pragma once

namespace sparsekit {

/// x, of which the compiler knows nothing: what follows from it is computed where it stands, not
/// kept in registers over a loop.
__device__ __forceinline__ int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace sparsekit
