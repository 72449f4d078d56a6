// What the descriptors of kernels_cu's tcgen05.cuh are, for addresses that the host gives.
#include "sparsekit/ptx/tcgen05.cuh"

using namespace sparsekit::ptx;

extern "C" __global__ void descriptors(unsigned long long* out, unsigned shared, unsigned leading,
                                       unsigned stride) {
  out[0] = tcgen05_matrix_descriptor_128b(shared, leading, stride);
  out[1] = tcgen05_matrix_descriptor_64b(shared, stride);
  out[2] = tcgen05_instruction_descriptor_bf16_f32(64, 128, false);
  out[3] = tcgen05_instruction_descriptor_bf16_f32(64, 256, true);
  out[4] = tcgen05_instruction_descriptor_bf16_f32(128, 128, false);
  out[5] = tcgen05_instruction_descriptor_bf16_f32(128, 256, true);
}
