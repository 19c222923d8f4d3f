// Compiled with AVX-512; called only on processors that have it, or with RIGL_COMPRESS_WIDE on any.
#include "train_kernels.h"

#if defined(RIGL_COMPRESS_WIDE) || \
    (defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__))
#define RIGL_LANES 16
#include "train_body.h"

const rigl::TrainKernels* rigl::avx512_train_kernels() { return &kTable; }
#else
const rigl::TrainKernels* rigl::avx512_train_kernels() { return nullptr; }
#endif
