// A sparse layer in training: its output, the gradient of its input, and the gradient of its weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "threads.h"
#include "train_call.h"
#include "train_conv.h"
#include "train_kernels.h"
#include "train_pass.h"

namespace rigl {

class TrainLayer {
 public:
  // `positions` are the flat positions of the connections in the dense weight, ascending.
  TrainLayer(const TrainShape& shape, const std::int64_t* positions, std::size_t count, const KernelTable& kernels);

  // Of each value: the index of its position.
  const std::vector<std::uint32_t>& order() const { return conv_ ? conv_->order() : forward_.order; }
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
  std::unique_ptr<TrainConv> conv_;  // of windows of several pixels; all else is for windows of one
  Pass forward_;
  Placement forward_places_, sample_places_;
  std::vector<Phase> phases_;
};

// The loops of training that belong to those of inference.
const TrainKernels& train_kernels(const KernelTable& kernels);

// Return what is invalid about a layer, or null.
const char* check_train(const TrainShape& shape, const std::int64_t* positions, std::size_t count);

}  // namespace rigl
