// The inner loop of training that inference lacks: products of activations and gradients at the connections alone.
// Compiled once per instruction set, as `kernels.h`.
#pragma once

#include "kernels.h"

namespace rigl {

// The gradient of a block's weights from one tile: sums[j] += x[col_idx[j]] · dy[row of j], over `width` floats. Both
// are followed by zeros, or by finite numbers times zeros, up to a whole vector.
struct SampleTask {
  const float* x;
  size_t x_pitch;
  const float* dy;
  size_t dy_pitch;
  int width;
  float* sums;
};

struct TrainKernels {
  void (*sample_tile)(const BlockView&, const SampleTask&);
};

const TrainKernels* portable_train_kernels();
const TrainKernels* avx2_train_kernels();    // null where the compiler lacks the instructions
const TrainKernels* avx512_train_kernels();  // likewise

}  // namespace rigl
