// Registers of a warpgroup (PTX ISA "Miscellaneous Instructions: setmaxnreg"), sm_90a.
#pragma once

namespace sparsekit::ptx {

/// setmaxnreg.inc.sync.aligned.u32 (PTX ISA "setmaxnreg"): waits until that many are free.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc_sync_aligned_u32() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// setmaxnreg.dec.sync.aligned.u32 (PTX ISA "setmaxnreg"): gives the others up.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec_sync_aligned_u32() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sparsekit::ptx
