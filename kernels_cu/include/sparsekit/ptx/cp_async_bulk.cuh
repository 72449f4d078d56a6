// Bulk copies (PTX ISA "Data Movement and Conversion Instructions: Bulk copy"), sm_90 and later.
#pragma once

namespace sparsekit::ptx {

/// cp.async.bulk.prefetch.L2.global (PTX ISA "cp.async.bulk.prefetch"): a multiple of 16 bytes from
/// a multiple of 16 bytes on will be used soon.
__device__ __forceinline__ void cp_async_bulk_prefetch_l2_global(const void* src_global,
                                                                 unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src_global), "r"(bytes)
               : "memory");
}

}  // namespace sparsekit::ptx
