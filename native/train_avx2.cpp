// Compiled with AVX2 and FMA; called only on processors that have both.
#include "train_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#define RIGL_LANES 8
#include "train_body.h"

const rigl::TrainKernels* rigl::avx2_train_kernels() { return &kTable; }
#else
const rigl::TrainKernels* rigl::avx2_train_kernels() { return nullptr; }
#endif
