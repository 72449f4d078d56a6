// Tensor cores of the fifth generation and their memory (PTX ISA "TensorCore 5th Generation Family
// Instructions"), sm_100a, sm_103a and their families.
//
// An address in tensor memory is a lane (bits 16-31) and a 32-bit column (bits 0-15). Templates
// take kCtas, the 1 or 2 blocks of `.cta_group`.
#pragma once

namespace sparsekit::ptx {

// ---------------------------------------------------------------- allocation

/// tcgen05.alloc (PTX ISA "tcgen05.alloc"): one warp (of each block) gets `columns`, a power of two
/// from 32 on; their address goes to shared memory.
template <int kCtas>
__device__ __forceinline__ void tcgen05_alloc_sync_aligned_shared_cta_b32(unsigned dst_shared,
                                                                          unsigned columns) {
  if (kCtas == 1) {
    asm volatile(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(dst_shared),
        "r"(columns)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(dst_shared),
        "r"(columns)
        : "memory");
  }
}

/// tcgen05.relinquish_alloc_permit (PTX ISA "tcgen05.alloc"): this block allocates no more.
template <int kCtas>
__device__ __forceinline__ void tcgen05_relinquish_alloc_permit_sync_aligned() {
  if (kCtas == 1) {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
  } else {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
  }
}

/// tcgen05.dealloc (PTX ISA "tcgen05.dealloc"): by the warp that has allocated.
template <int kCtas>
__device__ __forceinline__ void tcgen05_dealloc_sync_aligned_b32(unsigned address,
                                                                 unsigned columns) {
  if (kCtas == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns)
                 : "memory");
  } else {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(address),
                 "r"(columns)
                 : "memory");
  }
}

// ---------------------------------------------------------------- descriptors

/// A descriptor of a matrix in shared memory (PTX ISA "Shared memory descriptor") with the 128-byte
/// swizzle. `leading_bytes` separates 64-column atoms where columns adjoin and is unused where k
/// does; `stride_bytes` separates groups of eight 128-byte lines.
__device__ __forceinline__ unsigned long long tcgen05_matrix_descriptor_128b(
    unsigned shared, unsigned leading_bytes, unsigned stride_bytes) {
  return (shared & 0x3ffff) >> 4 | static_cast<unsigned long long>(leading_bytes >> 4) << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

/// The same with the 64-byte swizzle, k adjoining: lines of 64 bytes.
__device__ __forceinline__ unsigned long long tcgen05_matrix_descriptor_64b(unsigned shared,
                                                                            unsigned stride_bytes) {
  return (shared & 0x3ffff) >> 4 | 1ull << 16 |
         static_cast<unsigned long long>(stride_bytes >> 4) << 32 | 1ull << 46 | 4ull << 61;
}

/// The instruction descriptor (PTX ISA "Instruction descriptor") of bf16 products summed in fp32, A
/// with k adjoining, B with k or, transposed, with its columns adjoining.
__device__ __forceinline__ constexpr unsigned tcgen05_instruction_descriptor_bf16_f32(
    int m, int n, bool b_transposed) {
  return 1u << 4 | 1u << 7 | 1u << 10 | static_cast<unsigned>(b_transposed) << 16 |
         static_cast<unsigned>(n / 8) << 17 | static_cast<unsigned>(m / 16) << 24;
}

// ---------------------------------------------------------------- products and copies

/// tcgen05.mma.ws.cta_group::1.kind::f16 (PTX ISA "tcgen05.mma.ws"): d = a b, plus d unless
/// `accumulate` is 0; a in tensor memory, k of 16. With 64 rows, lanes 0-63 have the first half of
/// the columns and lanes 64-127 the second, each from the a of its own lanes.
__device__ __forceinline__ void tcgen05_mma_ws_cta_group_1_kind_f16(unsigned d, unsigned a,
                                                                    unsigned long long b,
                                                                    unsigned instruction,
                                                                    unsigned accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.ws.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n"
      "}" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}

/// tcgen05.mma.cta_group::2.kind::f16 (PTX ISA "tcgen05.mma"): the same by a pair of blocks, each
/// with half of the rows of a and d and half of the columns of b. With 128 rows, 64 a block, lanes
/// are shared out as above.
__device__ __forceinline__ void tcgen05_mma_cta_group_2_kind_f16(unsigned d, unsigned a,
                                                                 unsigned long long b,
                                                                 unsigned instruction,
                                                                 unsigned accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::2.kind::f16 [%0], [%1], %2, %3, p;\n"
      "}" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(accumulate)
      : "memory");
}

/// tcgen05.cp.128x256b (PTX ISA "tcgen05.cp"): 32 bytes of each of 128 rows to as many lanes,
/// before what this thread starts next.
template <int kCtas>
__device__ __forceinline__ void tcgen05_cp_128x256b(unsigned d, unsigned long long rows) {
  if (kCtas == 1) {
    asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], %1;" ::"r"(d), "l"(rows) : "memory");
  } else {
    asm volatile("tcgen05.cp.cta_group::2.128x256b [%0], %1;" ::"r"(d), "l"(rows) : "memory");
  }
}

/// tcgen05.commit (PTX ISA "tcgen05.commit"): one arrival, once all that this thread has started is
/// done, at the barrier of this block, or of both blocks of the pair.
template <int kCtas>
__device__ __forceinline__ void tcgen05_commit_mbarrier_arrive_one_b64(unsigned barrier) {
  if (kCtas == 1) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(barrier),
        "h"(static_cast<unsigned short>(3))
        : "memory");
  }
}

// ---------------------------------------------------------------- order

/// tcgen05.fence::before_thread_sync (PTX ISA "tcgen05.fence"): this thread's operations on tensor
/// memory so far come before what the synchronisation that follows orders after it.
__device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/// tcgen05.fence::after_thread_sync (PTX ISA "tcgen05.fence"): and those from here on after what
/// the synchronisation before it has ordered.
__device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// tcgen05.wait::ld (PTX ISA "tcgen05.wait"): this thread's loads are done.
__device__ __forceinline__ void tcgen05_wait_ld_sync_aligned() {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

/// tcgen05.wait::st (PTX ISA "tcgen05.wait"): this thread's stores are done.
__device__ __forceinline__ void tcgen05_wait_st_sync_aligned() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

// ---------------------------------------------------------------- loads and stores

/// tcgen05.ld.sync.aligned.32x32b.x32.b32 (PTX ISA "tcgen05.ld"): lane l of the warp gets 32
/// columns of the l-th lane from `address` on; ready after tcgen05.wait::ld.
__device__ __forceinline__ void tcgen05_ld_sync_aligned_32x32b_x32_b32(unsigned (&d)[32],
                                                                       unsigned address) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]),
        "=r"(d[7]), "=r"(d[8]), "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]),
        "=r"(d[14]), "=r"(d[15]), "=r"(d[16]), "=r"(d[17]), "=r"(d[18]), "=r"(d[19]), "=r"(d[20]),
        "=r"(d[21]), "=r"(d[22]), "=r"(d[23]), "=r"(d[24]), "=r"(d[25]), "=r"(d[26]), "=r"(d[27]),
        "=r"(d[28]), "=r"(d[29]), "=r"(d[30]), "=r"(d[31])
      : "r"(address)
      : "memory");
}

/// tcgen05.st.sync.aligned.32x32b.x16.b32 (PTX ISA "tcgen05.st"): the other way round; done after
/// tcgen05.wait::st.
__device__ __forceinline__ void tcgen05_st_sync_aligned_32x32b_x16_b32(unsigned address,
                                                                       const unsigned (&s)[16]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x16.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16};" ::"r"(address),
      "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]), "r"(s[4]), "r"(s[5]), "r"(s[6]), "r"(s[7]),
      "r"(s[8]), "r"(s[9]), "r"(s[10]), "r"(s[11]), "r"(s[12]), "r"(s[13]), "r"(s[14]), "r"(s[15])
      : "memory");
}

/// tcgen05.st.sync.aligned.32x32b.x32.b32 (PTX ISA "tcgen05.st"): the other way round; done after
/// tcgen05.wait::st.
__device__ __forceinline__ void tcgen05_st_sync_aligned_32x32b_x32_b32(unsigned address,
                                                                       const unsigned (&s)[32]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], {"
      "%1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, "
      "%25, %26, %27, %28, %29, %30, %31, %32};" ::"r"(address),
      "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]), "r"(s[4]), "r"(s[5]), "r"(s[6]), "r"(s[7]),
      "r"(s[8]), "r"(s[9]), "r"(s[10]), "r"(s[11]), "r"(s[12]), "r"(s[13]), "r"(s[14]), "r"(s[15]),
      "r"(s[16]), "r"(s[17]), "r"(s[18]), "r"(s[19]), "r"(s[20]), "r"(s[21]), "r"(s[22]),
      "r"(s[23]), "r"(s[24]), "r"(s[25]), "r"(s[26]), "r"(s[27]), "r"(s[28]), "r"(s[29]),
      "r"(s[30]), "r"(s[31])
      : "memory");
}

}  // namespace sparsekit::ptx
