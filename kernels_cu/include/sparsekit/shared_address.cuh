// Addresses in shared memory, as instructions take them.
#pragma once

namespace sparsekit {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

}  // namespace sparsekit
