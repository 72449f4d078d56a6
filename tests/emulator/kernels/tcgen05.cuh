// The instructions of the fifth generation of tensor cores that the test kernels use.
#pragma once
#include "ptx.cuh"

constexpr uint32_t kWholeTensorMemory = 512;

template <int kGroup>
__device__ __forceinline__ void tensor_alloc(uint32_t target, uint32_t columns) {
  if (kGroup == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(target),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(target),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
  }
}

template <int kGroup>
__device__ __forceinline__ void tensor_dealloc(uint32_t address, uint32_t columns) {
  if (kGroup == 1)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns)
                 : "memory");
  else
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns)
                 : "memory");
}

/// A matrix with swizzle 128B, K-major, 64 bf16 a row.
__device__ __forceinline__ uint64_t tensor_descriptor(uint32_t address) {
  constexpr uint64_t kStride = 1024, kVersion = 1, kSwizzle128 = 2;
  return (address & 0x3FFFF) >> 4 | 1ull << 16 | (kStride >> 4) << 32 | kVersion << 46 |
         kSwizzle128 << 61;
}

/// f32 = bf16 x bf16, both K-major.
__device__ __forceinline__ constexpr uint32_t instruction(int m, int n) {
  return 1u << 4 | 1u << 7 | 1u << 10 | (n / 8) << 17 | (m / 16) << 24;
}

template <int kGroup>
__device__ __forceinline__ void tensor_mma(uint32_t d, uint64_t a, uint64_t b, uint32_t what,
                                           uint32_t adds) {
  if (kGroup == 1)
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(what), "r"(adds)
        : "memory");
  else
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %4, 0;\n"
        "tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, adds;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(what), "r"(adds)
        : "memory");
}

__device__ __forceinline__ void tensor_commit(uint32_t barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   barrier)
               : "memory");
}

/// An arrival at the mbarriers of the blocks in a mask, after what the pair's leader has started.
__device__ __forceinline__ void tensor_commit_multicast(uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(barrier),
      "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void tensor_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

__device__ __forceinline__ void tensor_load(uint32_t (&r)[8], uint32_t address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]),
        "=r"(r[7])
      : "r"(address));
}

__device__ __forceinline__ void tensor_wait_load() {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
