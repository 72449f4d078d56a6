// What the host must know to launch an entry, written once beside the kernel and read from the
// cubin without a GPU: threads per block from __launch_bounds__ (.nv.info, EIATTR_MAX_THREADS),
// shared memory from the symbol below.
#pragma once

/// Exports `ENTRY_dynamic_smem_bytes`: a 4-byte little-endian unsigned in the cubin's
/// .nv.global.init, STT_OBJECT.
#define SPARSEKIT_DYNAMIC_SMEM_BYTES(ENTRY, BYTES) \
  extern "C" __device__ unsigned ENTRY##_dynamic_smem_bytes = (BYTES)
