// Columns of a row of indices, and whether what they list is a row of the pool.
#pragma once

namespace sparsekit {

/// The index in `column`; -1, which is never valid, outside [0, columns).
__device__ __forceinline__ int load_index(const int* row, int column, int columns) {
  return static_cast<unsigned>(column) < static_cast<unsigned>(columns) ? __ldg(row + column) : -1;
}

__device__ __forceinline__ bool is_valid(int index, int s_kv) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(s_kv);
}

}  // namespace sparsekit
