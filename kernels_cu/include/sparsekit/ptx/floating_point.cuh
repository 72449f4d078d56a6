// Scalar floating point (PTX ISA "Floating Point Instructions" and "cvt"), sm_80 and later.
#pragma once

namespace sparsekit::ptx {

/// ex2.approx.ftz.f32 (PTX ISA "ex2"): 2^x, at most 2 ulp off; 0 for -inf, subnormal results
/// flushed to 0.
__device__ __forceinline__ float ex2_approx_ftz_f32(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// ex2.approx.f32 (PTX ISA "ex2"): 2^x, at most 2 ulp off; 0 for -inf, subnormal numbers kept.
__device__ __forceinline__ float ex2_approx_f32(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// div.full.f32 (PTX ISA "div"): a / b over the full range, at most 2 ulp off.
__device__ __forceinline__ float div_full_f32(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// max.NaN.f32 (PTX ISA "max"): NaN when either operand is NaN.
__device__ __forceinline__ float max_NaN_f32(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// cvt.rn.bf16x2.f32 (PTX ISA "cvt"): two floats rounded to nearest even, `low` in bits 0-15.
__device__ __forceinline__ unsigned cvt_rn_bf16x2_f32(float high, float low) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

/// cvt.rn.bf16.f32 (PTX ISA "cvt"): rounded to nearest even.
__device__ __forceinline__ unsigned short cvt_rn_bf16_f32(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

/// cvt.rn.f16.f32 (PTX ISA "cvt"): rounded to nearest even.
__device__ __forceinline__ unsigned short cvt_rn_f16_f32(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

/// cvt.f32.f16 (PTX ISA "cvt"): exact.
__device__ __forceinline__ float cvt_f32_f16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

/// cvt.rn.f16x2.e4m3x2 (PTX ISA "cvt"), sm_89 and later: two fp8 of 8 bits each, exact; the one in
/// bits 0-7 to bits 0-15.
__device__ __forceinline__ unsigned cvt_rn_f16x2_e4m3x2(unsigned short x) {
  unsigned y;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
  return y;
}

}  // namespace sparsekit::ptx
