// Compiled with AVX2, FMA and F16C; called only on processors that have all three.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <cpuid.h>
#define RIGL_LANES 8
#define RIGL_NAME "avx2"
#include "kernels_body.h"

namespace {

// Not every compiler knows "f16c" as a name to ask for.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

const rigl::KernelTable* rigl::avx2_kernels() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() ? &kTable : nullptr;
}
#else
const rigl::KernelTable* rigl::avx2_kernels() { return nullptr; }
#endif
