// Batch normalization in training, of activations with the batch innermost: one contiguous row per channel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "threads.h"
#include "train_kernels.h"

namespace rigl {

struct NormCall {
  std::int64_t channels, size;  // size: of a row
  const float* x;
  const float* weight;  // per channel, or null: ones
  const float* bias;    // or null: zeros
  float* y;             // of the forward pass
  float* mean;          // per channel: written by the forward pass, read by the backward pass
  float* variance;
  const float* dy;  // of the backward pass
  float* dx;        // or null
  float* dweight;
  float* dbias;
  float epsilon;
  std::int32_t clipped;  // the gradient is that of a rectified output
};

void norm_forward(const TrainKernels& kernels, const NormCall& call, const Threads& threads);
void norm_backward(const TrainKernels& kernels, const NormCall& call, const Threads& threads);

}  // namespace rigl
