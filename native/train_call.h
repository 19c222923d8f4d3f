// The shape of a sparse layer in training, and what one of its passes gets.
#pragma once

#include <cstdint>

namespace rigl {

// Of rows, then of columns. A linear layer has a kernel of one pixel, and all pixels are samples of its batch.
struct TrainShape {
  std::int64_t inputs, outputs, groups;
  std::int64_t kernel[2], stride[2], pad[2], dilation[2];
  std::int64_t linear;  // or 0: a convolution

  bool is_plain() const { return groups * kernel[0] * kernel[1] * stride[0] * stride[1] == 1 && pad[0] + pad[1] == 0; }

  std::int64_t output(int axis, std::int64_t size) const {
    const std::int64_t room = size + 2 * pad[axis] - dilation[axis] * (kernel[axis] - 1) - 1;
    return room < 0 ? 0 : room / stride[axis] + 1;
  }
};

// Activations and gradients are [channels][height][width][batch], without gaps.
struct TrainCall {
  std::int64_t height, width, batch;  // of the input
  const float* x;
  const float* values;  // of the connections, in the layer's order
  const float* bias;    // per output channel, or null
  float* y;             // of the forward pass
  const float* dy;      // of the backward pass
  float* dx;            // or null: not needed
  float* dvalues;       // or null
};

}  // namespace rigl
