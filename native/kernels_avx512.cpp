// Compiled with AVX-512; called only where the processor has it.
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define RIGL_LANES 16
#define RIGL_NAME "avx512"
#include "kernels_body.h"

const rigl::KernelTable* rigl::avx512_kernels() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")
             ? &kTable
             : nullptr;
}
#else
const rigl::KernelTable* rigl::avx512_kernels() { return nullptr; }
#endif
