// Barriers in shared memory (PTX ISA "Parallel Synchronization and Communication Instructions:
// mbarrier"), sm_80 and later, waiting sm_90 and later.
#pragma once

namespace sparsekit::ptx {

/// mbarrier.init.shared::cta.b64 (PTX ISA "mbarrier.init"): `arrivals` end a phase.
__device__ __forceinline__ void mbarrier_init_shared_cta_b64(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// mbarrier.arrive.shared::cta.b64 (PTX ISA "mbarrier.arrive"): one arrival, with release.
__device__ __forceinline__ void mbarrier_arrive_shared_cta_b64(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// The same where `arrives`, without a branch, across which the compiler would move nothing.
__device__ __forceinline__ void mbarrier_arrive_shared_cta_b64(unsigned barrier, bool arrives) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %1, 0;\n"
      "@p mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(static_cast<int>(arrives))
      : "memory");
}

/// mbarrier.arrive.release.cluster.shared::cluster.b64 (PTX ISA "mbarrier.arrive"): the same at a
/// barrier of any block of the cluster.
__device__ __forceinline__ void mbarrier_arrive_release_cluster_shared_cluster_b64(
    unsigned barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}

/// mbarrier.arrive.expect_tx.shared::cta.b64 (PTX ISA "mbarrier.arrive"): one arrival, and the phase
/// lasts until so many more bytes have been copied.
__device__ __forceinline__ void mbarrier_arrive_expect_tx_shared_cta_b64(unsigned barrier,
                                                                         unsigned tx_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(tx_bytes)
               : "memory");
}

/// mbarrier.try_wait.parity.shared::cta.b64 (PTX ISA "mbarrier.try_wait"): whether the phase of that
/// parity has ended, after at most a while; with acquire.
__device__ __forceinline__ bool mbarrier_try_wait_parity_shared_cta_b64(unsigned barrier,
                                                                        unsigned parity) {
  unsigned ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// mbarrier.test_wait.parity.shared::cta.b64 (PTX ISA "mbarrier.test_wait"): whether the phase of that
/// parity has ended, at once; with acquire.
__device__ __forceinline__ bool mbarrier_test_wait_parity_shared_cta_b64(unsigned barrier,
                                                                         unsigned parity) {
  unsigned ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 (PTX ISA "mbarrier.try_wait"): the same
/// where threads of other blocks of the cluster arrive.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(
    unsigned barrier, unsigned parity) {
  unsigned ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

}  // namespace sparsekit::ptx
