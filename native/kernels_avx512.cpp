// Compiled with AVX-512; called only where the processor has it. With RIGL_COMPRESS_WIDE the same loops run on any processor, slowly:
// so they are tested where none has AVX-512.
#include "kernels.h"

#if defined(RIGL_COMPRESS_WIDE)
#define RIGL_LANES 16
#define RIGL_NAME "avx512"
#include "kernels_body.h"

const rigl::KernelTable* rigl::avx512_kernels() { return &kTable; }
#elif defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
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
