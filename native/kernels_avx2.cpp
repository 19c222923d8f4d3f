// Compiled with AVX2 and FMA; called only on processors that have both.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#define RIGL_LANES 8
#define RIGL_NAME "avx2"
#include "kernels_body.h"

const rigl::KernelTable* rigl::avx2_kernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kTable : nullptr;
}
#else
const rigl::KernelTable* rigl::avx2_kernels() { return nullptr; }
#endif
