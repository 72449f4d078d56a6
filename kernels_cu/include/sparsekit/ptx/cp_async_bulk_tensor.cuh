// Bulk copies of tiles of tensors (PTX ISA "Data Movement and Conversion Instructions: Tensor
// copy"), sm_90 and later; gather4 sm_100 and later.
#pragma once

namespace sparsekit::ptx {

/// A tensor map as the host makes it (PTX ISA "Tensors"): a `__grid_constant__` parameter.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// prefetch.tensormap (PTX ISA "prefetch"): the map will be used soon.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// cp.async.bulk.tensor.3d.shared::cluster.global.tile (PTX ISA "cp.async.bulk.tensor"): the map's
/// box from these coordinates on, zeros outside of the tensor; its bytes are counted at `barrier`.
/// For a pair of blocks (kCtas 2) that may be the barrier of either.
template <int kCtas>
__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_cluster_global_tile(
    unsigned dst_shared, const TensorMap& map, int x, int y, int z, unsigned barrier) {
  if (kCtas == 1) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst_shared),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".cta_group::2 [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(dst_shared),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
  }
}

/// cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4 (PTX ISA "cp.async.bulk.tensor"):
/// the columns from x on of four rows, one below the other, a row that does not exist as zeros.
template <int kCtas>
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_cluster_global_tile_gather4(
    unsigned dst_shared, const TensorMap& map, int x, const int (&rows)[4], unsigned barrier) {
  if (kCtas == 1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(dst_shared),
        "l"(&map), "r"(x), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"
        ".cta_group::2 [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(dst_shared),
        "l"(&map), "r"(x), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(barrier)
        : "memory");
  }
}

/// cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4 (PTX ISA "cp.async.bulk.tensor"): the
/// same into this block's own shared memory, which targets without a suffix have too.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_cta_global_tile_gather4(
    unsigned dst_shared, const TensorMap& map, int x, const int (&rows)[4], unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(dst_shared),
      "l"(&map), "r"(x), "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(barrier)
      : "memory");
}

}  // namespace sparsekit::ptx
