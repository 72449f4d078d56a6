// C = A B^T + bias, 64 x 64 tiles: a producer warpgroup fills a ring of tiles by tensor copies, a
// consumer warpgroup multiplies them by wgmma; C goes back through shared memory by a tensor copy.
#include "ptx.cuh"

constexpr int kStages = 3;
constexpr int kTile = 64;
constexpr uint32_t kTileBytes = kTile * kTile * 2;
constexpr uint32_t kBiasBytes = kTile * 4;
constexpr int kGroup = 128;

struct SharedMemory {
  alignas(1024) uint8_t a[kStages][kTileBytes];
  alignas(1024) uint8_t b[kStages][kTileBytes];
  alignas(1024) float c[kTile][kTile];
  alignas(16) float bias[kTile];
  uint64_t full[kStages];   // 1 arrival: the thread that starts the copies
  uint64_t empty[kStages];  // 4 arrivals: a lane of each consumer warp
};

__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
  constexpr uint64_t kStride = 1024, kSwizzle128 = 1;
  return (address & 0x3FFFF) >> 4 | 1ull << 16 | (kStride >> 4) << 32 | kSwizzle128 << 62;
}

__device__ __forceinline__ void wgmma(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(2 * kGroup, 1)
    gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
         const __grid_constant__ TensorMap map_c, const float* bias, int k) {
  extern __shared__ __align__(1024) uint8_t raw[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(raw);
  const int thread = threadIdx.x % kGroup, steps = k / kTile;

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared_address(&shared.full[i]), 1);
      mbarrier_init(shared_address(&shared.empty[i]), 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kGroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0) {
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages, round = step / kStages;
        const uint32_t full = shared_address(&shared.full[stage]);
        mbarrier_wait(shared_address(&shared.empty[stage]), (round & 1) ^ 1);
        mbarrier_arrive_expect_tx(full, 2 * kTileBytes + (step == 0 ? kBiasBytes : 0));
        copy_tile(shared_address(shared.a[stage]), &map_a, step * kTile, blockIdx.y * kTile, full);
        copy_tile(shared_address(shared.b[stage]), &map_b, step * kTile, blockIdx.x * kTile, full);
        if (step == 0)
          copy_bulk(shared_address(shared.bias), bias + blockIdx.x * kTile, kBiasBytes, full);
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[32] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    mbarrier_wait(shared_address(&shared.full[stage]), (step / kStages) & 1);
    const uint32_t a = shared_address(shared.a[stage]), b = shared_address(shared.b[stage]);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int part = 0; part < 4; ++part)
      wgmma(d, descriptor(a + part * 32), descriptor(b + part * 32));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (thread % 32 == 0) mbarrier_arrive(shared_address(&shared.empty[stage]));
  }

  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    const int x = column + e % 2 + e / 4 * 8, y = row + e / 2 % 2 * 8;
    shared.c[y][x] = d[e] + shared.bias[x];
  }
  fence_proxy_async();
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (thread == 0) {
    store_tile(&map_c, blockIdx.x * kTile, blockIdx.y * kTile, shared_address(shared.c));
    bulk_commit_group();
    bulk_wait_group_read();
  }
}
