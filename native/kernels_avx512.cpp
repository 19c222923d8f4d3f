// Compiled with AVX-512; called only on processors that have it. With RIGL_COMPRESS_WIDE the same loops are compiled
// for any processor, so that they can be tested without AVX-512.
#include "kernels.h"

#if defined(RIGL_COMPRESS_WIDE) || \
    (defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__))
#define RIGL_LANES 16
#define RIGL_NAME "avx512"
#include "kernels_body.h"

const rigl::KernelTable* rigl::avx512_kernels() {
#if !defined(RIGL_COMPRESS_WIDE)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return nullptr;
  if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw")) return nullptr;
#endif
  return &kTable;
}
#else
const rigl::KernelTable* rigl::avx512_kernels() { return nullptr; }
#endif
