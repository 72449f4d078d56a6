// Element types of tensors by the names that SK_TYPE_* has for them, without the toolkit's headers;
// all are widened to fp32 exactly.
#pragma once

#include "sparsekit/ptx/floating_point.cuh"

struct __nv_bfloat16 {
  unsigned short bits;
};
struct __half {
  unsigned short bits;
};

namespace sparsekit {

__device__ __forceinline__ float load_element(const float* p) { return __ldg(p); }
__device__ __forceinline__ float load_element(const __nv_bfloat16* p) {
  return __int_as_float(__ldg(&p->bits) << 16);
}
__device__ __forceinline__ float load_element(const __half* p) {
  return ptx::cvt_f32_f16(__ldg(&p->bits));
}

__device__ __forceinline__ void store_element(float* p, float x) { *p = x; }
__device__ __forceinline__ void store_element(__nv_bfloat16* p, float x) {
  p->bits = ptx::cvt_rn_bf16_f32(x);
}
__device__ __forceinline__ void store_element(__half* p, float x) {
  p->bits = ptx::cvt_rn_f16_f32(x);
}

}  // namespace sparsekit
