// Warp-level matrix instructions (PTX ISA "Warp-level Matrix Instructions: ldmatrix, mma"), sm_80
// and later.
//
// Fragments of m16n8k16, lane l, g = l / 4, t = l % 4:
//   A (16 x 16)  a0 = (g, 2t..)  a1 = (g + 8, 2t..)  a2 = (g, 2t + 8..)  a3 = (g + 8, 2t + 8..)
//   B (16 x 8)   b0 = (2t.., g)  b1 = (2t + 8.., g)
//   C (16 x 8)   c0 c1 = (g, 2t..)  c2 c3 = (g + 8, 2t..)
#pragma once

namespace sparsekit::ptx {

/// ldmatrix.sync.aligned.m8n8.x4.shared.b16 (PTX ISA "ldmatrix"): lane l addresses row l % 8 of
/// matrix l / 8.
__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned (&d)[4],
                                                                         unsigned row_shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row_shared)
               : "memory");
}

/// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 (PTX ISA "ldmatrix"): each 8 x 8 matrix arrives
/// transposed.
__device__ __forceinline__ void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    unsigned (&d)[4], unsigned row_shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(row_shared)
               : "memory");
}

/// stmatrix.sync.aligned.m8n8.x4.shared.b16 (PTX ISA "stmatrix"), sm_90 and later: lane l addresses
/// row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_sync_aligned_m8n8_x4_shared_b16(unsigned row_shared,
                                                                         const unsigned (&s)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_shared),
               "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3])
               : "memory");
}

/// stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 (PTX ISA "stmatrix"), sm_90 and later: each 8 x 8
/// matrix is stored transposed; lanes 0-15 address rows.
__device__ __forceinline__ void stmatrix_sync_aligned_m8n8_x2_trans_shared_b16(
    unsigned row_shared, const unsigned (&s)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_shared),
               "r"(s[0]), "r"(s[1])
               : "memory");
}

/// stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 (PTX ISA "stmatrix"), sm_90 and later: the same of
/// four.
__device__ __forceinline__ void stmatrix_sync_aligned_m8n8_x4_trans_shared_b16(
    unsigned row_shared, const unsigned (&s)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_shared),
      "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3])
      : "memory");
}

/// movmatrix.sync.aligned.m8n8.trans.b16 (PTX ISA "movmatrix"): an 8 x 8 matrix, a row in each quad,
/// transposed.
__device__ __forceinline__ unsigned movmatrix_sync_aligned_m8n8_trans_b16(unsigned a) {
  unsigned d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 (PTX ISA "mma"): c += a b.
__device__ __forceinline__ void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace sparsekit::ptx
