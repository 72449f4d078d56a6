// Non-bulk asynchronous copies (PTX ISA "Data Movement and Conversion Instructions: Asynchronous
// copy"), sm_80 and later.
#pragma once

namespace sparsekit::ptx {

/// cp.async.cg.shared.global.L2::128B (PTX ISA "cp.async"): 16 bytes past L1, 128 fetched into L2.
/// `src_bytes` 0 reads nothing and writes zeros.
__device__ __forceinline__ void cp_async_cg_shared_global_l2_128b_16(
    unsigned dst_shared, const void* src_global, unsigned src_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst_shared),
               "l"(src_global), "r"(src_bytes)
               : "memory");
}

/// cp.async.commit_group (PTX ISA "cp.async.commit_group"): closes a group, which may be empty.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// cp.async.wait_group (PTX ISA "cp.async.wait_group"): waits until at most kPending groups of this
/// thread are open.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace sparsekit::ptx
