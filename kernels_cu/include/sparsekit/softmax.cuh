// Numbers of a softmax over listed columns, and the factor that ends it with a sink.
#pragma once

#include "sparsekit/ptx/floating_point.cuh"

namespace sparsekit {

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

/// The score of a masked column, -FLT_MAX: its weight is 0, and unlike a listed -inf it poisons
/// nothing. No finite score is below it.
__device__ __forceinline__ float masked() { return __int_as_float(0xff7fffff); }

// Enumerators are constants that, unlike constexpr variables, leave no symbol in the cubin.
enum : unsigned {
  kLog2EBits = 0x3fb8aa3b,
  kLeastScaleBits = 0x21800000,  // 2^-60
};

/// Scaled by no less, masked() has the weight 0.
__device__ __forceinline__ float least_scale() { return __int_as_float(kLeastScaleBits); }

__device__ __forceinline__ float log2_e() { return __int_as_float(kLog2EBits); }

/// e^x; 0 for -inf.
__device__ __forceinline__ float natural_exp(float x) {
  return ptx::ex2_approx_ftz_f32(x * log2_e());
}

/// The factor of O in out, for reference m and sum l of a head with at least one listed row. IEEE
/// arithmetic carries the non-finite cases: a NaN sink or score gives NaN, a sink of +inf gives 0,
/// one of -inf changes nothing.
__device__ __forceinline__ float output_scale(float m, float l, float sink) {
  const float top = ptx::max_NaN_f32(m, sink);
  const float weight = natural_exp(m - top);
  const float sink_weight = sink == infinity()    ? 1.0f
                            : sink == -infinity() ? 0.0f
                                                  : natural_exp(sink - top);
  return weight / (l * weight + sink_weight);
}

}  // namespace sparsekit
