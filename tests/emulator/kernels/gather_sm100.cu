// C = A[rows] B^T, 128 x 64 tiles: rows of A are gathered four at a time by tensor copies, B comes
// by plain ones, products are kept in tensor memory. One warp copies, one starts products, all
// four store the result.
#include "tcgen05.cuh"

constexpr int kStages = 2;
constexpr int kRows = 128, kColumns = 64, kDepth = 64;
constexpr uint32_t kTileABytes = kRows * kDepth * 2, kTileBBytes = kColumns * kDepth * 2;
constexpr int kGathered = 4;

struct SharedMemory {
  alignas(1024) uint8_t a[kStages][kTileABytes];
  alignas(1024) uint8_t b[kStages][kTileBBytes];
  uint64_t full[kStages];   // 1 arrival: the thread that starts the copies
  uint64_t empty[kStages];  // 1 arrival: the commit of the products that read the stage
  uint64_t done;            // 1 arrival: the commit of all products
  uint32_t tensor;
};

__device__ __forceinline__ void gather(uint32_t target, const TensorMap* map, int x, int4 rows,
                                       uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(target),
      "l"(map), "r"(x), "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "r"(barrier)
      : "memory");
}

extern "C" __global__ void __launch_bounds__(128, 1)
    gather_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
                const int4* rows, float* c, int columns, int k) {
  extern __shared__ __align__(1024) uint8_t raw[];
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(raw);
  const int warp = threadIdx.x / 32, steps = k / kDepth;

  if (warp == 0) tensor_alloc<1>(shared_address(&shared.tensor), kColumns);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(shared_address(&shared.full[i]), 1);
      mbarrier_init(shared_address(&shared.empty[i]), 1);
    }
    mbarrier_init(shared_address(&shared.done), 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  const uint32_t tensor = shared.tensor;

  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages;
      const uint32_t full = shared_address(&shared.full[stage]);
      mbarrier_wait(shared_address(&shared.empty[stage]), (step / kStages & 1) ^ 1);
      mbarrier_arrive_expect_tx(full, kTileABytes + kTileBBytes);
      for (int i = 0; i < kRows / kGathered; ++i)
        gather(shared_address(shared.a[stage]) + i * kGathered * kDepth * 2, &map_a, step * kDepth,
               rows[blockIdx.y * (kRows / kGathered) + i], full);
      copy_tile(shared_address(shared.b[stage]), &map_b, step * kDepth, blockIdx.x * kColumns,
                full);
    }
  } else if (threadIdx.x == 32) {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const int stage = step % kStages;
      mbarrier_wait(shared_address(&shared.full[stage]), step / kStages & 1);
      const uint32_t a = shared_address(shared.a[stage]), b = shared_address(shared.b[stage]);
      for (int part = 0; part < 4; ++part)
        tensor_mma<1>(tensor, tensor_descriptor(a + part * 32), tensor_descriptor(b + part * 32),
                      instruction(kRows, kColumns), step | part);
      tensor_commit(shared_address(&shared.empty[stage]));
    }
    tensor_commit(shared_address(&shared.done));
  }
  __syncwarp();

  mbarrier_wait(shared_address(&shared.done), 0);
  tensor_fence_after();
  float* row = c + (blockIdx.y * kRows + threadIdx.x) * columns + blockIdx.x * kColumns;
  for (int n = 0; n < kColumns; n += 8) {
    uint32_t r[8];
    tensor_load(r, tensor + (warp << 21) + n);
    tensor_wait_load();
    *reinterpret_cast<uint4*>(row + n) = make_uint4(r[0], r[1], r[2], r[3]);
    *reinterpret_cast<uint4*>(row + n + 4) = make_uint4(r[4], r[5], r[6], r[7]);
  }
  __syncthreads();
  if (warp == 0) tensor_dealloc<1>(tensor, kColumns);
}
