// C = A B^T by pairs of blocks, 256 x 128 tiles: each block copies its half of A and of B, the even
// block starts the products of both (cta_group::2); the commit tells both that a stage is free.
#include "tcgen05.cuh"

constexpr int kStages = 2;
constexpr int kRows = 128, kColumns = 128, kDepth = 64;  // rows of a block, columns of the pair
constexpr uint32_t kTileABytes = kRows * kDepth * 2, kTileBBytes = kColumns / 2 * kDepth * 2;
constexpr uint16_t kBothBlocks = 3;
constexpr uint32_t kLeaderMask = 0xFEFFFFFF;  // clears the lowest bit of a block's rank

struct SharedMemory {
  alignas(1024) uint8_t a[kStages][kTileABytes];
  alignas(1024) uint8_t b[kStages][kTileBBytes];
  uint64_t full[kStages];   // of the even block, 1 arrival: for the copies of both blocks
  uint64_t empty[kStages];  // 1 arrival: the commit of the products that read the stage
  uint64_t done;            // 1 arrival: the commit of all products
  uint32_t tensor;
};

__device__ __forceinline__ void copy_tile_of_pair(uint32_t target, const TensorMap* map, int x,
                                                  int y, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".cta_group::2 [%0], [%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128, 1)
    pair_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
              float* c, int columns, int k) {
  extern __shared__ __align__(1024) uint8_t raw[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(raw);
  const int warp = threadIdx.x / 32, steps = k / kDepth;
  const uint32_t rank = cluster_rank();

  if (warp == 0) tensor_alloc<2>(shared_address(&shared.tensor), kColumns);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared_address(&shared.full[i]), 1);
      mbarrier_init(shared_address(&shared.empty[i]), 1);
    }
    mbarrier_init(shared_address(&shared.done), 1);
    fence_mbarrier_init();
  }
  cluster_sync();
  const uint32_t tensor = shared.tensor;

  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages;
      const uint32_t full = shared_address(&shared.full[stage]);
      mbarrier_wait(shared_address(&shared.empty[stage]), (step / kStages & 1) ^ 1);
      if (rank == 0) mbarrier_arrive_expect_tx(full, 2 * (kTileABytes + kTileBBytes));
      copy_tile_of_pair(shared_address(shared.a[stage]), &map_a, step * kDepth,
                        blockIdx.x * kRows, full & kLeaderMask);
      copy_tile_of_pair(shared_address(shared.b[stage]), &map_b, step * kDepth,
                        blockIdx.y * kColumns + rank * (kColumns / 2), full & kLeaderMask);
    }
  } else if (threadIdx.x == 32 && rank == 0) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages;
      mbarrier_wait(shared_address(&shared.full[stage]), step / kStages & 1);
      const uint32_t a = shared_address(shared.a[stage]), b = shared_address(shared.b[stage]);
      for (int part = 0; part < 4; ++part)
        tensor_mma<2>(tensor, tensor_descriptor(a + part * 32), tensor_descriptor(b + part * 32),
                      instruction(2 * kRows, kColumns), step | part);
      tensor_commit_multicast(shared_address(&shared.empty[stage]), kBothBlocks);
    }
    tensor_commit_multicast(shared_address(&shared.done), kBothBlocks);
  }
  __syncwarp();

  mbarrier_wait(shared_address(&shared.done), 0);
  tensor_fence_after();
  float* row = c + (blockIdx.x * kRows + threadIdx.x) * columns + blockIdx.y * kColumns;
  for (int n = 0; n < kColumns; n += 8) {
    uint32_t r[8];
    tensor_load(r, tensor + (warp << 21) + n);
    tensor_wait_load();
    *reinterpret_cast<uint4*>(row + n) = make_uint4(r[0], r[1], r[2], r[3]);
    *reinterpret_cast<uint4*>(row + n + 4) = make_uint4(r[4], r[5], r[6], r[7]);
  }
  cluster_sync();
  if (warp == 0) tensor_dealloc<2>(tensor, kColumns);
}
