// Rows in pages of fp8 values with scales and bf16, to bf16 in shared memory.
//
// A page of P tokens, from a multiple of 16 bytes:
//   0                      576 P                584 P
//   | P x (448 B | 128 B)  | P x (7 B | 1 B)    |
//         |     64 bf16          7 scales 2^(s - 127), of 64 columns each
//         448 e4m3
#pragma once

#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/ptx/shared_store.cuh"
#include "sparsekit/sparse_attn_paged_decode/rows.cuh"

namespace sparsekit::sparse_attn_paged_decode {

enum : int {
  kFp8Columns = 448,
  kFp8OfChunk = kChunkBytes,  // in 16 bytes: two chunks of bf16
  kFp8Chunks = kFp8Columns / kFp8OfChunk,
  kBf16Chunks = (kD - kFp8Columns) / kChunk,
  kBlockChunks = 4,  // of fp8, that have a scale
  kTokenBytes = kFp8Columns + kBf16Chunks * kChunkBytes,
  kScaleBytes = 8,
};

static_assert(kFp8Chunks <= kWarp && kBf16Chunks <= kWarp, "a lane has a chunk of a row");

struct PagedPool {
  const unsigned char* pages;
  long long page_stride_bytes;
  int page_count, page_size;
};

/// Where a column's values lie, and the scales of them, a byte for each 64.
struct PackedSource {
  unsigned long long address;
  uint2 scales;
  bool listed;
};

__device__ __forceinline__ PackedSource source_of(const RowOf<PagedPool>& row, int column,
                                                  int index) {
  const bool in_window = column < row.n_window;
  const PagedPool pool = {
      in_window ? row.window.pages : row.compressed.pages,
      in_window ? row.window.page_stride_bytes : row.compressed.page_stride_bytes,
      in_window ? row.window.page_count : row.compressed.page_count,
      in_window ? row.window.page_size : row.compressed.page_size};
  PackedSource source = {reinterpret_cast<unsigned long long>(row.q), make_uint2(0, 0),
                         is_valid(index, pool.page_count * pool.page_size) && column < row.live};
  if (source.listed) {
    const unsigned char* page = pool.pages + index / pool.page_size * pool.page_stride_bytes;
    const int token = index % pool.page_size;
    source.address = reinterpret_cast<unsigned long long>(page + token * kTokenBytes);
    source.scales = __ldg(
        reinterpret_cast<const uint2*>(page + pool.page_size * kTokenBytes + token * kScaleBytes));
  }
  return source;
}

/// 2^(scale - 127), NaN for 255.
__device__ __forceinline__ float factor_of_scale(unsigned scale) {
  const unsigned bits = scale == 0 ? 1u << 22 : scale == 255 ? 0x7fc00000u : scale << 23;
  return __uint_as_float(bits);
}

/// Two e4m3, the one in bits 0-7 first, exact.
__device__ __forceinline__ float2 pair_of_e4m3(unsigned two) {
#if __CUDA_ARCH__ >= 890
  const unsigned halves = cvt_rn_f16x2_e4m3x2(two);
  return make_float2(cvt_f32_f16(halves), cvt_f32_f16(halves >> 16));
#else
  // As the bits of an f16 they are 2^-8 of themselves, but for NaN.
  const auto single = [](unsigned e4m3) {
    const float part = cvt_f32_f16((e4m3 & 0x80) << 8 | (e4m3 & 0x7f) << 7);
    return (e4m3 & 0x7f) == 0x7f ? __int_as_float(0x7fc00000) : part * 256.0f;
  };
  return make_float2(single(two & 0xff), single(two >> 8 & 0xff));
#endif
}

/// Two e4m3 times the scale, each rounded once: their product is exact in fp32.
__device__ __forceinline__ unsigned unpacked(unsigned two, float factor) {
  const float2 pair = pair_of_e4m3(two);
  return cvt_rn_bf16x2_f32(__fmul_rn(pair.y, factor), __fmul_rn(pair.x, factor));
}

/// The rows of a part as bf16, zeros where nothing is listed; whether this lane's is. All rows of a
/// warp are on their way at once.
template <int kColumns>
__device__ __forceinline__ bool gather(bf16 (&kv)[kColumns][kD], unsigned char (&valid)[kColumns],
                                       const RowOf<PagedPool>& row, int part, int index) {
  constexpr int kRows = kColumns / kWarps;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const PackedSource own = source_of(row, part * row.part_columns + looked_up(), index);
  const unsigned listed = __ballot_sync(0xffffffff, own.listed);
  if (looked_up() < row.part_columns) valid[looked_up()] = own.listed;
  uint4 packed[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    packed[i] = make_uint4(0, 0, 0, 0);
    if (i * kWarps >= row.part_columns) continue;
    const unsigned long long address = __shfl_sync(0xffffffff, own.address, i);
    const bool there = listed >> i & 1;
    const auto from = reinterpret_cast<const unsigned char*>(address);
    if (there && lane < kFp8Chunks) {
      packed[i] = __ldg(reinterpret_cast<const uint4*>(from) + lane);
    }
    if (lane < kBf16Chunks) {
      cp_async_cg_shared_global_l2_128b_16(
          chunk_address(kv, i * kWarps + warp, kD / kChunk - kBf16Chunks + lane),
          from + (there ? kFp8Columns + lane * kChunkBytes : 0), there ? kChunkBytes : 0);
    }
  }
  cp_async_commit_group();
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i * kWarps >= row.part_columns) continue;
    const unsigned low = __shfl_sync(0xffffffff, own.scales.x, i);
    const unsigned high = __shfl_sync(0xffffffff, own.scales.y, i);
    if (lane >= kFp8Chunks) continue;
    const int block = lane / kBlockChunks;
    const float factor = factor_of_scale((block < 4 ? low : high) >> block % 4 * 8 & 255);
    const unsigned words[4] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned out[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        out[j] = unpacked(words[2 * half + j / 2] >> j % 2 * 16 & 0xffff, factor);
      }
      st_shared_v4_b32(chunk_address(kv, i * kWarps + warp, 2 * lane + half), out);
    }
  }
  return own.listed;
}

}  // namespace sparsekit::sparse_attn_paged_decode
