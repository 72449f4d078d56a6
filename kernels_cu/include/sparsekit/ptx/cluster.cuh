// Blocks of a cluster (PTX ISA "barrier.cluster", "mapa"), sm_90 and later.
#pragma once

namespace sparsekit::ptx {

/// barrier.cluster.arrive.release.aligned, barrier.cluster.wait.acquire.aligned (PTX ISA
/// "barrier.cluster"): all threads of the cluster meet.
__device__ __forceinline__ void barrier_cluster_arrive_release_aligned() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void barrier_cluster_wait_acquire_aligned() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// mapa.shared::cluster.u32 (PTX ISA "mapa"): what that block of the cluster has at the address.
__device__ __forceinline__ unsigned mapa_shared_cluster_u32(unsigned shared, unsigned rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
  return mapped;
}

/// ld.shared::cluster.v4.f32 (PTX ISA "ld"): 16 bytes of any block of the cluster.
__device__ __forceinline__ float4 ld_shared_cluster_v4_f32(unsigned mapped) {
  float4 d;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
               : "r"(mapped)
               : "memory");
  return d;
}

/// %cluster_ctarank (PTX ISA "Special Registers"): the block in its cluster.
__device__ __forceinline__ unsigned cluster_ctarank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

}  // namespace sparsekit::ptx
