// Waiting at a barrier in shared memory.
#pragma once

#include "sparsekit/ptx/mbarrier.cuh"
#include "sparsekit/shared_address.cuh"

namespace sparsekit {

/// Waits for the end of the phase of that parity.
__device__ __forceinline__ void wait(const unsigned long long& barrier, int parity) {
  while (!ptx::mbarrier_try_wait_parity_shared_cta_b64(shared_address(&barrier), parity)) {
  }
}

}  // namespace sparsekit
