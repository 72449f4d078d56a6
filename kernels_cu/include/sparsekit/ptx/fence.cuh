// Fences (PTX ISA "Parallel Synchronization and Communication Instructions: membar, fence"), sm_90
// and later.
#pragma once

namespace sparsekit::ptx {

/// fence.proxy.async.shared::cta (PTX ISA "fence"): what this thread knows of in shared memory
/// becomes visible to the async proxy, which wgmma reads through.
__device__ __forceinline__ void fence_proxy_async_shared_cta() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// fence.mbarrier_init.release.cluster (PTX ISA "fence"): barriers that this thread has initialised
/// are so for the cluster and the async proxy.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace sparsekit::ptx
