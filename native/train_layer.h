// A sparse layer in training: its output, the gradient of its input, and the gradient of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"
#include "threads.h"
#include "train_kernels.h"
#include "train_pass.h"

namespace rigl {

// Of rows, then of columns. A linear layer has a kernel of one pixel.
struct TrainShape {
  std::int64_t inputs, outputs, groups;
  std::int64_t kernel[2], stride[2], pad[2], dilation[2];
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

class TrainLayer {
 public:
  // `positions` are the flat positions of the connections in the dense weight, ascending.
  TrainLayer(const TrainShape& shape, const std::int64_t* positions, std::size_t count, const KernelTable& kernels);

  // Of each value: the index of its position.
  const std::vector<std::uint32_t>& order() const { return forward_.order; }
  std::int64_t output(int axis, std::int64_t size) const;

  void forward(const TrainCall& call, const Threads& threads);
  void backward(const TrainCall& call, const Threads& threads);

 private:
  // The pixels of the input that one phase of a strided window reaches: stride · u + offset.
  struct Phase {
    Pass pass;
    Placement placement;
    std::int64_t offset[2];
    std::vector<std::uint32_t> from;  // of each value: its index in the order of the forward pass
    std::vector<float> values;
  };

  void plan_phases(const std::vector<Link>& links, const std::vector<std::int64_t>& taps);
  void input_gradient(const TrainCall& call, const Threads& threads);
  void weight_gradient(const TrainCall& call, const Threads& threads);

  TrainShape shape_;
  const KernelTable& kernels_;
  const TrainKernels& train_;
  Pass forward_;
  Placement forward_places_, sample_places_;
  std::vector<Phase> phases_;
};

// Return what is invalid about a layer, or null.
const char* check_train(const TrainShape& shape, const std::int64_t* positions, std::size_t count);

}  // namespace rigl
