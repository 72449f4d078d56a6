// Sparse MLA prefill on Hopper for few tokens (sm_90a): each row of indices is cut at fixed columns
// into parts, which blocks work on side by side; their results are merged in ascending order.
//
// What is computed, and how a block does it, stands in ../sparse_prefill_sm90/kernel.cu. A part
// ends in O and the sum l of its weights, both relative to its reference m; over the parts
//   M = max m      l = sum l_i exp(m_i - M)      out = sum O_i exp(m_i - M) / (l + exp(sink - M))

#include "sparsekit/launch_facts.cuh"
#include "sparsekit/ptx/floating_point.cuh"
#include "sparsekit/softmax.cuh"
#include "sparsekit/sparse_prefill_sm90/block.cuh"
#include "sparsekit/sparse_prefill_sm90/one_pool.cuh"

namespace sparsekit::sparse_prefill_sm90 {

enum : int {
  kMergeColumns = 4,  // of a thread
  kMergeThreads = kDV / kMergeColumns,
};

SPARSEKIT_DYNAMIC_SMEM_BYTES(sparse_prefill_sm90_split, sizeof(SharedMemory<OnePool>));

// Grid: x = as many blocks as run at once; block b takes the items b, b + grid, ... Item i is part
// i % parts of the heads and token that i / parts stands for.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_prefill_sm90_split(const bf16* __restrict__ q, const bf16* __restrict__ kv,
                              const int* __restrict__ indices, const int* __restrict__ topk_length,
                              float* __restrict__ part_out, float4* __restrict__ part_end,
                              long long q_token_stride_elems, long long q_head_stride_elems,
                              long long kv_row_stride_elems, long long indices_row_stride_elems,
                              int s_q, int h_q, int s_kv, int topk, float sm_scale) {
  extern __shared__ __align__(kAtomBytes) unsigned char dynamic_smem[];
  auto& smem = *reinterpret_cast<SharedMemory<OnePool>*>(dynamic_smem);
  const OnePool a = {{s_q, h_q, topk},
                     q,
                     kv,
                     indices,
                     topk_length,
                     q_token_stride_elems,
                     q_head_stride_elems,
                     static_cast<unsigned>(kv_row_stride_elems / kPiece),
                     indices_row_stride_elems,
                     s_kv};
  const Results results = {nullptr, nullptr, nullptr, nullptr, part_out, part_end};
  run_block(smem, a, results, sm_scale);
}

// Grid: x = tokens times heads, a block each.
extern "C" __global__ void __launch_bounds__(kMergeThreads)
    sparse_prefill_sm90_merge(const float4* __restrict__ part_out,
                              const float4* __restrict__ part_end,
                              const float* __restrict__ attn_sink,  // null: no sink
                              bf16* __restrict__ out, float* __restrict__ max_logits,
                              float* __restrict__ lse, int h_q, int parts) {
  const int row = blockIdx.x;
  const long long first = static_cast<long long>(row) * parts;
  const auto is_empty = [](const float4& end) { return end.z == 0.0f && end.w == 0.0f; };

  float max = -infinity(), ref = masked();
  for (int i = 0; i < parts; ++i) {
    const float4 end = part_end[first + i];
    max = max_NaN_f32(max, end.x);
    if (!is_empty(end)) ref = max_NaN_f32(ref, end.y);
  }
  float sum = 0.0f, poison = 0.0f;
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int i = 0; i < parts; ++i) {
    const float4 end = part_end[first + i];
    if (is_empty(end)) continue;
    const float weight = end.y == ref ? 1.0f : natural_exp(end.y - ref);
    const float4 part = part_out[(first + i) * kMergeThreads + threadIdx.x];
    sum = __fmaf_rn(weight, end.z, sum), poison += end.w;
    o.x = __fmaf_rn(weight, part.x, o.x), o.y = __fmaf_rn(weight, part.y, o.y);
    o.z = __fmaf_rn(weight, part.z, o.z), o.w = __fmaf_rn(weight, part.w, o.w);
  }
  const bool empty = sum == 0.0f && poison == 0.0f;
  const float sink = attn_sink != nullptr ? __ldg(attn_sink + row % h_q) : -infinity();
  const float factor = empty ? 0.0f : output_scale(ref, sum, sink) + poison;
  const uint2 packed = make_uint2(cvt_rn_bf16x2_f32(o.y * factor, o.x * factor),
                                  cvt_rn_bf16x2_f32(o.w * factor, o.z * factor));
  reinterpret_cast<uint2*>(out)[static_cast<long long>(row) * kMergeThreads + threadIdx.x] = packed;
  if (threadIdx.x != 0) return;
  max_logits[row] = max;
  const float log_sum = max == infinity() ? max : ref + logf(sum);
  lse[row] = empty ? infinity() : log_sum;
}

}  // namespace sparsekit::sparse_prefill_sm90
